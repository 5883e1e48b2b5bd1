"""A runner that holds a kernel, its parent, and beside it one edited kernel after the other, on the sets of one arena.

An edit only moves instructions, so it must give what the parent gives on the same inputs, bit for bit, at every launch.
What the parent gives is kept where only the referee maps it; so are the inputs and the patterns around them.
"""

import secrets

import torch

from cudal2.records import Status
from cudal2.worker import inputs, measurement, verify
from cudal2.worker.cuda import plan, session
from cudal2.worker.cuda.memory import SharedMemory
from cudal2.worker.cuda.pairing import TimingContext
from cudal2.worker.cuda.session import Runner
from cudal2.worker.gpu.checking import check_calls
from cudal2.worker.outcome import CandidateFailed, Outcome, raise_finding

PARENT, EDITED = 0, 1
"""The runner's slots."""


class Beside:
    """Takes the runner, which has seen no kernel, and loads the parent. Every method may raise CandidateFailed."""

    def __init__(self, runner: Runner, memory: SharedMemory, context: TimingContext, parent: plan.CudaLaunchable):
        self.context, self.arena, self.runner = context, context.arena, runner
        self.workspace = -(-parent.recording.workspace // 2) * 2
        self.exact = False
        """Whether the parent gives the same bits each time, so that an edit has to as well."""
        self._inputs, self._first, self._cold = -1, 0, True
        self.arrangement = 0
        """Even where the parent was loaded before the edit, odd where behind it."""
        packed = plan.pack(parent.recording, parent.cubin, self.arena.buffers.workspace)
        runner.load(packed, memory.fd, self.arena.buffers.bytes)

    def verify(self) -> tuple[Outcome, float]:
        """The parent held to the ordinary checks, and seconds of its fastest call."""
        return check_calls(self.runner.run, self.arena, self.workspace, self.context.rounding)

    def load(self, code: bytes) -> None:
        """Have an edited cubin beside the parent, in place of the one before it; the parent was loaded before it."""
        self.runner.load_second(code, session.BEFORE if self.arrangement % 2 else session.KEPT)
        self.arrangement, self._cold = 0, True

    def arrange(self, number: int) -> None:
        """Have both loaded anew: the parent first where the number is even, the edit first where it is odd."""
        self.runner.load_second(None, session.BEHIND if number % 2 else session.BEFORE)
        self.arrangement, self._cold = number, True

    @property
    def fresh(self) -> bool:
        """Whether the inputs are still those of the last `renew`."""
        return self._inputs == self.arena.inputs_given

    def renew(self) -> None:
        """Fresh inputs in every set, everything around them whole, and what the parent alone makes of them."""
        self.arena.restore()
        self.arena.fill(slice(None))
        self._run_parent()
        self.context.check_one(int(self.context.rng.integers(self.arena.buffers.sets)))
        self.arena.reference.copy_(self.arena.c)
        raise_finding(verify.check_values(self.arena.reference))
        self.arena.poison(self.workspace)
        self._inputs = self.arena.inputs_given

    def repeat(self) -> bool:
        """Whether the parent gives the same bits for every set once more. Comes after `renew`."""
        self._run_parent()
        same = torch.equal(self._bits(self.arena.c), self._bits(self.arena.reference))
        self.arena.poison(self.workspace)
        return same

    def pairs(self, number: int, count: int) -> list[tuple[float, float]]:
        """Up to `number` pairs of turns, each turn of `count` calls, as many as there are sets for in one go; seconds a
        call of the edited kernel and of the parent. Which of a pair goes first, and which sets it has, is drawn. Behind
        a load a call of either comes first that is not timed: it is another matter. None, where only that finds room.
        """
        sets, warm = self.arena.buffers.sets, int(self._cold)
        number = min(number, (sets // 2 - warm) // count)
        counts = [1] * warm + [count] * number
        self._first = measurement.next_start(self._first, 2 * sum(counts), range(sets))
        window = slice(self._first, self._first + 2 * sum(counts))
        self._first, self._cold = window.stop, False
        order = iter(self.context.order(window))
        leaders = [secrets.randbelow(2) for _ in counts]
        turns = [
            (slot, [next(order) for _ in range(calls)])
            for calls, leader in zip(counts, leaders)
            for slot in (leader, 1 - leader)
        ]
        self.arena.settle()
        seconds = self.runner.turns(turns)
        self._compare(window, [one for slot, sets in turns if slot == EDITED for one in sets])
        inputs.poison(self.arena.c[window])
        two = [(seconds[2 * place + 1 - leader], seconds[2 * place + leader]) for place, leader in enumerate(leaders)]
        return [(edited / count, parent / count) for edited, parent in two[warm:]]

    def check(self) -> None:
        """All that an edited kernel may have spoilt beside the outputs that were compared."""
        self.context.check(slice(0, 0), self.workspace)

    def close(self) -> None:
        self.runner.close()

    def _run_parent(self) -> None:
        """The parent on every set, in random order, with all that it writes poisoned before and looked at after."""
        every = slice(0, self.arena.buffers.sets)
        self.arena.poison(self.workspace)
        self.arena.settle()
        self.runner.turns([(PARENT, self.context.order(every))])
        self.context.check(every, self.workspace)

    def _compare(self, window: slice, edited: list[int]) -> None:
        found, expected = self.arena.c[window], self.arena.reference[window]
        if not self.exact:
            raise_finding(verify.check_timed(found, expected, self.arena.problem, self.context.rounding))
            return
        if torch.equal(self._bits(found), self._bits(expected)):
            return
        differing = (found.view(torch.int16) != expected.view(torch.int16)).flatten(1).sum(1).tolist()
        counts = {window.start + place: count for place, count in enumerate(differing) if count}
        number, count = next((item for item in counts.items() if item[0] in edited), (-1, 0))
        if not count:
            self.context.check(window, self.workspace)
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "beside it the unedited kernel gives other results than alone")
        said = f"{count} of {found[0].numel()} elements of a call differ from the unedited kernel's"
        broken = verify.check_values(self.arena.c[number])
        raise CandidateFailed(Status.WRONG, f"{said}; {broken[1]}" if broken else said)

    @staticmethod
    def _bits(matrices: torch.Tensor) -> torch.Tensor:
        return matrices.view(torch.int64)  # four elements at once
