"""Two sides timed in pairs on the same buffers, and every output of a timed call compared."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.records import Status, Timing
from cudal2.target import CPU
from cudal2.worker import inputs, timing, verify
from cudal2.worker.cpu.arena import GUARDED, Arena
from cudal2.worker.cpu.perturbation import Perturbation
from cudal2.worker.cpu.session import Side
from cudal2.worker.outcome import CandidateFailed, raise_finding

SLOW_CALL = 0.1
"""Seconds of a call beyond which waking up is too small a part of it to be warmed up for."""
BASELINE_BATCHES = 7
GUESSES = 3
"""Single calls from which is told how many make a batch; the first is slow."""


class Stage(msgspec.Struct, frozen=True):
    """Where sides are timed: the buffers, the normals their inputs are cut from, and for how long."""

    arena: Arena
    pool: Tensor
    config: WorkerConfig

    @property
    def most(self) -> int:
        """Calls in the largest batch: every packed slot, or one of the guarded ones."""
        return self.arena.count - GUARDED if self.arena.first_timed else 1

    def next_window(self, first: int, count: int) -> int:
        """The first slot of the next batch of `count`, moving on through the slots and round again."""
        return first if first + count <= self.arena.count else self.arena.first_timed

    def fill(self, first: int, count: int) -> None:
        """Fresh inputs."""
        self.arena.fill_inputs(first, count, self.pool)

    def poison(self, first: int, count: int) -> None:
        """NaN in every output."""
        for part in self.arena.outputs(first, count):
            inputs.poison(part)

    def outputs(self, first: int, count: int) -> list[Tensor]:
        """Copies of the outputs of these slots, each [slots, M, N]."""
        return [part.clone() for part in self.arena.outputs(first, count)]

    def wake(self, side: Side, expected: float) -> None:
        """A call outside any batch, so that the process and its threads are awake in the next one.

        It comes before the batch has inputs. Slow calls (`expected` seconds) need none.
        """
        if expected < SLOW_CALL:
            side.run(0, 1)

    def perturbation(self, first: int, calls: int, change: bool) -> Perturbation | None:
        """For a batch of so many calls; None where no call has a later one to be found out by."""
        return Perturbation(self.arena, first, calls, change) if first >= GUARDED and calls > 1 else None


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Our own tensor work on so many threads.

    Small work takes one: those of a pool spin on for a while beside what is being timed, and on a busy machine they
    wait for each other ten times as long as they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timed(side: Side, first: int, calls: int, expected: float, perturbation: Perturbation | None) -> float:
    """Seconds a call of a batch that is perturbed at a random moment; a call is expected to take so many seconds."""
    moment = secrets.randbelow(1000) / 1000 * calls * expected
    return side.run(first, calls, (moment, perturbation) if perturbation else None) / calls


@threads(1)
def pair(side: Side, vendor: Side, stage: Stage, name: str, vendor_seconds: float) -> Timing:
    """Time `side` against `vendor` (baseline `name`, about `vendor_seconds` a call).

    Every batch has inputs of its own, which its side sees when its clock runs and not before; a poisoned C; and slots
    moved on by one batch. Some inputs change while it runs. Every output of a timed call is compared with the vendor's
    result on the same inputs. Raises CandidateFailed.
    """
    arena, config = stage.arena, stage.config
    started, batch, first = time.perf_counter(), config.batch_ms / 1e3, arena.first_timed
    stage.fill(first, 1)
    candidate, baseline = [side.run(first, 1) for _ in range(GUESSES)], [vendor_seconds]  # dropped below
    warm_up = True
    while True:
        # A disturbed batch looks slow: go by the fastest seen.
        mine = timing.calls_for(min(candidate), batch, stage.most)
        theirs = timing.calls_for(min(baseline), batch, stage.most)
        expected = min(candidate), min(baseline)
        if warm_up:
            candidate, baseline, warm_up = [], [], False
        count = max(mine, theirs)
        first = stage.next_window(first, count)
        perturbed = stage.perturbation(first, mine, change=True)
        vendor_first = bool(secrets.randbelow(2))
        order = ("vendor", "candidate") if vendor_first else ("candidate", "vendor")
        for who in order:
            stage.wake(*((side, expected[0]) if who == "candidate" else (vendor, expected[1])))
        stage.fill(first, count)
        for who in order:
            stage.poison(first, count)
            if who == "candidate":
                candidate.append(timed(side, first, mine, expected[0], perturbed))
                results = stage.outputs(first, mine)
            else:
                alike = stage.perturbation(first, theirs, change=False)
                baseline.append(timed(vendor, first, theirs, expected[1], alike))
                if theirs < mine:  # its result is wanted for each of the candidate's calls
                    vendor.run(first + theirs, mine - theirs)
                references = stage.outputs(first, mine)
        if perturbed:
            if perturbed.early is not None:
                raise CandidateFailed(Status.WRONG, "in timed calls the output of a later call was written")
            for slot in perturbed.changed:
                if vendor_first:
                    vendor.run(slot, 1)
                    references[0][slot - first] = arena.c(slot)
            for slot in perturbed.unsure:  # may have used either input
                results[0][slot - first] = references[0][slot - first]
        for result, reference in zip(results, references):
            raise_finding(verify.check_timed(result, reference, arena.problem, CPU.rounding))
        first += count
        if timing.enough(candidate, baseline, config, started):
            break
    return timing.summary(candidate, baseline, name, "device", mine, config)


@threads(1)
def fastest_seconds(side: Side, stage: Stage) -> float:
    """Seconds a call of one side alone in the fastest of BASELINE_BATCHES batches: whatever disturbs only adds."""
    first, batch = stage.arena.first_timed, stage.config.batch_ms / 1e3
    stage.fill(first, 1)
    fastest = min(side.run(first, 1) for _ in range(GUESSES))
    for _ in range(BASELINE_BATCHES):
        # As in pairs: on slots that others wrote last. A single call is told mostly by what waking up takes, so the
        # first batches are short.
        calls = timing.calls_for(fastest, batch, stage.most)
        first = stage.next_window(first, calls)
        stage.wake(side, fastest)
        stage.fill(first, calls)
        stage.poison(first, calls)
        fastest = min(fastest, side.run(first, calls) / calls)
        first += calls
    return fastest
