"""The assembly game: the instructions of a compiled kernel, which of them may change places, and what that gains.

The door is `polish`, which is what `cudal2 sass` calls. It takes a kernel (`listing`), plays with one of `searches`
on the window (`blocks`) and the legal moves of `game`, asks a GPU or the simulator, and has `legality` prove what won.
Behind `legality` stand the rules: `dependence`, over `latencies` with the rules of order, `flow`, and `reuse`.
"""
