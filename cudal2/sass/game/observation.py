"""The observation of a player: a row of features for each instruction of the window, in its present order."""

import numpy as np

from cudal2.sass import opcodes
from cudal2.sass.encoding import NO_BARRIER, Controls
from cudal2.sass.game.chains import Chains
from cudal2.sass.game.legality import LONGEST
from cudal2.sass.game.moves import Kind
from cudal2.sass.game.play import Play
from cudal2.sass.listing import Instruction

_CLASSES = (
    opcodes.MATRIX,
    opcodes.SHARED_LOADS,
    opcodes.SHARED_STORES,
    opcodes.GLOBAL_LOADS,
    opcodes.GLOBAL_STORES,
    opcodes.COPIES,
    opcodes.CONSTANT_LOADS,
    opcodes.ARITHMETIC,
    frozenset({"BAR", "DEPBAR", "LDGDEPBAR"}),
)
_OWN = len(_CLASSES) + 1 + 5 + 3 * 6 + 6
WIDTH = _OWN + 6 + len(Kind)
"""The number of features of one instruction, most of them from 0 to 1: its class, fields and operands; whether it is
pinned; the distance to the next dependence up and down; its critical path; its place; and which moves are legal."""


class Observer:
    """Makes observations of one game; features that never change are computed once."""

    def __init__(self, start: Play) -> None:
        self._chains = Chains(start.legality)
        self._own: dict[tuple[int, Controls], np.ndarray] = {}
        self._longest = max(1, int(self._chains.way.max(initial=1)))

    def see(self, play: Play) -> np.ndarray:
        """The observation of a state: float32 [instructions, WIDTH]."""
        known, count = play.legality, len(play)
        seen = np.zeros((count, WIDTH), np.float32)
        seen[:, :_OWN] = [self._figures(one) for one in play.instructions]
        numbers = known.order
        above, below = self._chains.nearest(known.where)
        seen[:, _OWN] = known.fixed[numbers]
        seen[:, _OWN + 1] = np.minimum(above[numbers], 32) / 32
        seen[:, _OWN + 2] = np.minimum(below[numbers], 32) / 32
        seen[:, _OWN + 3] = self._chains.way[numbers] / self._longest
        seen[:, _OWN + 4] = (np.arange(count) - known.first) / np.maximum(1, known.last - known.first)
        seen[:, _OWN + 5] = (np.arange(count) - numbers) / count
        seen[:, _OWN + 6 :] = play.mask()
        return seen

    def _figures(self, one: Instruction) -> np.ndarray:
        key = (one.origin, one.controls)
        if key not in self._own:
            self._own[key] = np.array(_own(one), np.float32)
        return self._own[key]


def _own(one: Instruction) -> list[float]:
    """The features of an instruction that depend only on itself and its fields."""
    kinds = [float(one.operation in those) for those in _CLASSES]
    fields = one.controls
    names = [*one.defines, *one.uses]
    return [
        *kinds,
        float(not any(kinds)),
        *(fields.stall / LONGEST, fields.yield_, fields.reuse.bit_count() / 3, one.compiled.reuse.bit_count() / 3),
        float(bool(one.guard)),
        *(float(fields.wait >> number & 1) for number in range(6)),
        *_one_hot(fields.write_barrier),
        *_one_hot(fields.read_barrier),
        *(min(len(group), 16) / 16 for group in (one.defines, one.uses)),
        *(float(any(name.startswith(letter) for name in names)) for letter in ("P", "UR", "UP")),
        float(bool(one.defines & one.uses)),
    ]


def _one_hot(barrier: int) -> list[float]:
    return [float(barrier == number) for number in range(NO_BARRIER - 1)]
