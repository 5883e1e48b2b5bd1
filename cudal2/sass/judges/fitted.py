"""A simulator fitted to what was measured of its kernel, so that it may say which schedule is worth measuring next.

Of figures drawn at random, and of small changes of the best known, those are kept under which simulated speedups rank
the measured edits best (Spearman's correlation). A third of the edits is kept back from that: while these are not
surely ranked better than by chance, all schedules are alike to it.
"""

import math
import random

import msgspec
import numpy as np

from cudal2.config import MachineConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass.judges.simulator import Simulated
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Listing

FIGURES = {
    "warps": (1, 2, 3, 4),
    "matrix": (2, 4, 8, 16, 32),
    "shared": (2, 4, 8, 16, 32),
    "shared_latency": (20, 28, 36, 48),
    "copy": (2, 4, 8, 16, 32),
    "copy_latency": (200, 400, 600, 900),
    "read_latency": (8, 16, 32),
}
"""What is fitted, and to which of these values."""
DRAWN, CHANGED = 24, 12
"""Machines that are tried: at random, and beside the best of them one figure at a time."""
EDITS = 64
"""Measured edits that decide at most, and that are kept back at most: simulating one takes some milliseconds."""
DOUBT = 1.64
"""By so many deviations must the edits that were kept back be ranked better than by chance: one time in twenty."""


def correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, 0 where one of the two is constant."""
    first, second = _ranks(one), _ranks(other)
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else 0.0


def _ranks(values: list[float]) -> np.ndarray:
    """Equal values share the mean of their ranks."""
    _, place, count = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def drawn(rng: random.Random) -> MachineConfig:
    """A machine with figures at random."""
    return MachineConfig(**{name: rng.choice(values) for name, values in FIGURES.items()})


class Fitted:
    """Estimated speedups of one kernel's schedules, by `machine` until `first` edits are measured, then by a fit to
    these, anew each time they have doubled; `first` 0: always by `machine`. Told the same it estimates the same.

    Raises ValueError where there is no loop to simulate.
    """

    def __init__(self, listing: Listing, machine: MachineConfig, first: int = 0, seed: int = 0) -> None:
        self._listing, self._next, self._rng = listing, first, random.Random(seed)
        self._simulated = Simulated(listing, machine)
        self._known: dict[Edit, float] = {}
        self.machine = machine
        self.trusted = True
        """Whether it ranked the edits that were kept back at the last fit surely better than chance does."""

    def of(self, listing: Listing) -> float:
        """The estimated speedup of a schedule; 1 for each while the fit is worth nothing."""
        return self._simulated.of(listing) if self.trusted else 1.0

    def learn(self, edit: Edit, measured: Measured) -> None:
        """What was measured of an edit; what is not right is of no use."""
        if self._next and measured.status is Status.OK and edit.moves:
            self._known[edit] = measured.speedup
            if len(self._known) == self._next:
                self._next *= 2
                self._fit()

    def _fit(self) -> None:
        edits = self._rng.sample(list(self._known.items()), len(self._known))
        third = len(edits) // 3
        held, those = self._replayed(edits[:third][:EDITS]), self._replayed(edits[third:][:EDITS])
        tried = {one: self._agreement(one, those) for one in (self.machine, *(drawn(self._rng) for _ in range(DRAWN)))}
        best = max(tried, key=lambda machine: tried[machine])
        for _ in range(CHANGED):
            name = self._rng.choice(list(FIGURES))
            other = msgspec.structs.replace(best, **{name: self._rng.choice(FIGURES[name])})
            if other not in tried:
                tried[other] = self._agreement(other, those)
            best = max(best, other, key=lambda machine: tried[machine])
        self.machine, self._simulated = best, Simulated(self._listing, best)
        self.trusted = self._agreement(best, held) * math.sqrt(max(0, len(held) - 1)) > DOUBT

    def _replayed(self, edits: list[tuple[Edit, float]]) -> list[tuple[Listing, float]]:
        return [(replayed(self._listing, edit), speedup) for edit, speedup in edits]

    def _agreement(self, machine: MachineConfig, measured: list[tuple[Listing, float]]) -> float:
        judge = Simulated(self._listing, machine)
        return correlation([judge.of(schedule) for schedule, _ in measured], [speedup for _, speedup in measured])
