"""Where the two sides of a comparison are timed on a processor: their buffers, inputs of their own for each batch, and
how often these change while it runs.
"""

import math
import secrets
from collections.abc import Sequence

import msgspec
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.worker import inputs
from cudal2.worker.cpu.arena import GUARDED, Arena
from cudal2.worker.cpu.changes import Perturbation
from cudal2.worker.cpu.session import Side

SLOW_CALL = 0.1
"""Seconds of a call beyond which waking up is too small a part of it to be warmed up for."""
LOOKS, CROWDED = 16, 4
"""At most, in a batch; and in one of so few calls that every look would meet the same ones."""
ANOTHER = 4
"""Of so many looks all but one have another behind them: four in a long batch, in the mean. More would be found out,
but each takes 0.14 ms, in which a kernel that keeps all cores busy has one less."""


class TimingContext(msgspec.Struct, frozen=True):
    """Where sides are timed: the buffers, the normals their inputs are cut from (kept from zero), and for how long."""

    arena: Arena
    normals: Tensor
    config: WorkerConfig

    @property
    def slots(self) -> range:
        """Where batches lie: the packed slots, or the guarded ones where there are no others."""
        return range(self.arena.first_timed, self.arena.count)

    @property
    def most(self) -> int:
        """Calls in the largest batch: every packed slot, or one of the guarded ones."""
        return self.arena.count - GUARDED if self.arena.first_timed else 1

    def fill(self, first: int, count: int) -> None:
        """Fresh inputs, of which no earlier ones tell anything but sizes, and in each batch of another uneven scale."""
        inputs.flip_signs(self.normals)
        self.arena.fill_inputs(first, count, self.normals, inputs.uneven_powers(self.arena.problem))

    def poison(self, first: int, count: int) -> None:
        """NaN in every output."""
        for part in self.arena.outputs(first, count):
            inputs.poison(part)

    def outputs(self, first: int, count: int) -> list[Tensor]:
        """Copies of the outputs of these slots, each [slots, M, N]."""
        return [part.clone() for part in self.arena.outputs(first, count)]

    def wake(self, side: Side, expected: float, most: float = math.inf) -> None:
        """A call outside any batch, so that the process and its threads are awake in the next one.

        It comes before the batch has inputs. Slow calls (`expected` seconds) need none. Nobody compares its output,
        which says nothing of who was woken before, as it is poisoned; nor may it take more than `most` seconds.
        """
        if expected < SLOW_CALL:
            inputs.poison(self.arena.c(0))
            with side.within(most):
                side.run(0, 1)

    def perturbations(self, first: int, calls: int, change: bool) -> list[Perturbation]:
        """For a batch of so many calls one, and by chance more: whoever has met one does not know whether it was the
        last. None where no call has a later one to be found out by.
        """
        if first < GUARDED or calls < 2:
            return []
        most = max(CROWDED, min(LOOKS, calls // 4))
        count = next((n for n in range(1, most) if not secrets.randbelow(ANOTHER)), most)
        return [Perturbation(self.arena, first, calls, change) for _ in range(count)]


def timed(side: Side, first: int, calls: int, within: float, perturbations: Sequence[Perturbation]) -> float:
    """Seconds a call of a batch that is perturbed at random moments of its first `within` seconds."""
    moments = [secrets.randbelow(1000) / 1000 * within for _ in perturbations]
    return side.run(first, calls, list(zip(moments, perturbations))) / calls
