"""How much of what a call reads can lie in the L2 already, if earlier calls ask for a slice of every set still to come?

    python experiments/worker/hedging.py > experiments/worker/hedging.txt       # a model, no GPU

Windows, orders and buffers are the referee's; the rest is reckoned. A call asks for equal slices of all sets that it
does not know to be over, and need not guess which is next: each set of a window is called once. What is asked for comes
while touches run, whose time is subtracted (`touches`), or as fast as is asked (`any time`), as far as the L2 holds it;
what was read leaves the L2 first. Prints the share of a window's bytes of inputs that lie in the L2 when their call
comes, with as many sets as there are, and with more sets to draw windows from, of which few are called.
"""

from types import SimpleNamespace

import numpy as np

from cudal2 import operators
from cudal2.problem import parse
from cudal2.worker import timing
from cudal2.worker.cuda.pairing import GpuSides
from cudal2.worker.gpu import buffers
from cudal2.worker.gpu.history import FEW, TOUCHES_OF_FEW
from cudal2.worker.measurement import next_start

CALLS = {
    "1_4096_4096": 9.0,
    "8_4096_4096": 9.0,
    "64_64_64": 2.1,
    "64_64_4096": 4.0,
    "256_256_256": 3.0,
    "1024_1024_1024": 6.0,
    "2048_2048_2048": 28.0,
}
"""Microseconds a call, about as fast as the vendor on an H200."""
L2, BANDWIDTH = 40e6, 4.3e12
"""Bytes that the L2 holds of what was asked for, and bytes a second that come into it."""
TOUCHES = {1: 0.65e-6, TOUCHES_OF_FEW: 1.3e-6}
"""Seconds of the touches before a call, by their number; the second is reckoned."""
WINDOWS, MORE = 40, 8 << 30
"""How many windows are drawn; bytes of sets to draw from, where there are more."""


def share(name: str, microseconds: float, whole_call: bool, rotated: int = buffers.ROTATED) -> float:
    """Of the bytes of inputs."""
    problem, rng, found = parse(name), np.random.default_rng(1), list[float]()
    sets = buffers.buffer_layout(problem, rotated).sets
    size = sum(2 * one.elements for one in operators.inputs(problem))
    most = timing.calls_for(microseconds / 1e6, 0.01, buffers.buffer_layout(problem).sets)
    sides, first = SimpleNamespace(_most=most, _context=SimpleNamespace(rng=rng)), 0
    for _ in range(WINDOWS):
        count = GpuSides.calls(sides, [], [])[0]  # type: ignore[arg-type]
        start = next_start(first, count, range(sets))
        first = start + count
        order = rng.choice(sets, count, replace=False) if rotated > buffers.ROTATED else start + rng.permutation(count)
        seconds = TOUCHES[TOUCHES_OF_FEW if count <= FEW else 1] + whole_call * microseconds / 1e6
        there, waiting, met = np.zeros(sets), np.ones(sets, bool), 0.0
        for one in order:
            met += there[one]
            there[one], waiting[one] = 0, False
            room = min(BANDWIDTH * seconds, L2 - there.sum())
            there += np.minimum(size - there, max(room, 0) / max(waiting.sum(), 1)) * waiting
        found.append(met / (count * size))
    return float(np.mean(found))


def main() -> None:
    print(f"{'shape':<16} {'touches':>8} {'any time':>9} {'of 8 GiB':>9}")
    for name, microseconds in CALLS.items():
        shares = (
            share(name, microseconds, False),
            share(name, microseconds, True),
            share(name, microseconds, True, MORE),
        )
        print(f"{name:<16} {shares[0]:8.2f} {shares[1]:9.2f} {shares[2]:9.2f}")


if __name__ == "__main__":
    main()
