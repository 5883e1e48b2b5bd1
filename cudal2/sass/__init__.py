"""The assembly game: what stands in a finished kernel, what may change places in it, what a change costs."""
