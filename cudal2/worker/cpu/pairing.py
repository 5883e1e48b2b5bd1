"""Two sides timed in pairs on the same buffers, and every output of a timed call compared."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.records import Timing
from cudal2.target import CPU
from cudal2.worker import inputs, timing, verify
from cudal2.worker.cpu.arena import GUARDED, Arena
from cudal2.worker.cpu.session import Side
from cudal2.worker.outcome import raise_finding

SLOW_CALL = 0.1
"""Seconds of a call beyond which waking up is too small a part of it to be warmed up for."""
BASELINE_BATCHES = 7


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

    def run(self, side: Side, first: int, calls: int, expected: float) -> float:
        """Seconds of the batch. A call on a slot outside it wakes the side up first, unless calls are slow."""
        warm = (0 if self.arena.first_timed else 1 - first) if expected < SLOW_CALL else None
        return side.run(first, calls, warm)


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


@threads(1)
def pair(side: Side, vendor: Side, stage: Stage, name: str, vendor_seconds: float) -> Timing:
    """Time `side` against `vendor` (baseline `name`, about `vendor_seconds` a call).

    Every batch has inputs of its own, a poisoned C, and slots moved on by one batch; every output of a timed call is
    compared with the vendor's result on the same inputs. Raises CandidateFailed.
    """
    arena, config = stage.arena, stage.config
    started, batch, first = time.perf_counter(), config.batch_ms / 1e3, arena.first_timed
    stage.fill(first, 1)
    candidate, baseline = [side.run(first, 1, None)], [vendor_seconds]  # guesses, dropped below
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
        stage.fill(first, count)
        results: list[Tensor] = []
        references: list[Tensor] = []
        sides = [
            (side, mine, expected[0], candidate, results),
            (vendor, theirs, expected[1], baseline, references),
        ]
        for who, calls, guess, seconds, outputs in sides if secrets.randbelow(2) else reversed(sides):
            stage.poison(first, count)
            seconds.append(stage.run(who, first, calls, guess) / calls)
            if calls < mine:  # the vendor, whose result is wanted for each of the candidate's calls
                who.run(first + calls, mine - calls, None)
            outputs += [part.clone() for part in arena.outputs(first, mine)]
        for result, reference in zip(results, references):
            raise_finding(verify.check_timed(result, reference, arena.problem, CPU.rounding))
        first += count
        if timing.enough(candidate, baseline, config, started):
            break
    return timing.summary(candidate, baseline, name, "device", mine, config)


@threads(1)
def fastest_seconds(side: Side, stage: Stage) -> float:
    """Seconds a call of one side alone in the fastest of BASELINE_BATCHES batches: whatever disturbs only adds."""
    first = stage.arena.first_timed
    stage.fill(first, stage.most)
    guess = side.run(first, 1, None)
    calls = timing.calls_for(guess, stage.config.batch_ms / 1e3, stage.most)
    return min(stage.run(side, first, calls, guess) / calls for _ in range(BASELINE_BATCHES))
