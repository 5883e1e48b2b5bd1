"""A simulator whose parameters are fitted to the measurements of its kernel, to choose which schedule to measure next.

Parameters are drawn at random, and the best are then varied one at a time. Those are kept whose simulated speedups rank
the measured edits best (Spearman's correlation). A third of the edits is held out. Unless these are ranked surely
better than by chance, the simulator has no preference.
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
"""The parameters that are fitted, and their possible values."""
DRAWN, CHANGED = 24, 12
"""How many machines are tried: at random, then with one parameter of the best changed."""
EDITS = 64
"""The most measured edits to fit to, and to hold out: simulating one takes some milliseconds."""
DOUBT = 1.64
"""So many standard deviations above chance must the held-out edits be ranked: chance does that one time in twenty."""


def correlation(one: list[float], other: list[float]) -> float:
    """Spearman's rank correlation; 0 where one of the two is constant."""
    first, second = _ranks(one), _ranks(other)
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else 0.0


def _ranks(values: list[float]) -> np.ndarray:
    """Ranks; equal values share the mean of theirs."""
    _, place, count = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def drawn(rng: random.Random) -> MachineConfig:
    """A machine with random parameters."""
    return MachineConfig(**{name: rng.choice(values) for name, values in FIGURES.items()})


class Fitted:
    """Estimates the speedups of one kernel's schedules: by `machine` until `first` edits are measured, then by a fit to
    these, renewed each time their number has doubled. With `first` 0 always by `machine`. Deterministic.

    Raises ValueError where there is no loop to simulate.
    """

    def __init__(self, listing: Listing, machine: MachineConfig, first: int = 0, seed: int = 0) -> None:
        self._listing, self._next, self._rng = listing, first, random.Random(seed)
        self._simulated = Simulated(listing, machine)
        self._known: dict[Edit, float] = {}
        self.machine = machine
        self.trusted = True
        """Whether the last fit ranked the held-out edits surely better than chance."""

    def of(self, listing: Listing) -> float:
        """The estimated speedup of a schedule; 1 for all schedules while the fit is not trusted."""
        return self._simulated.of(listing) if self.trusted else 1.0

    def learn(self, edit: Edit, measured: Measured) -> None:
        """Takes the measurement of an edit; one that is not right is ignored."""
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
