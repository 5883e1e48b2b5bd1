"""A fitted simulator ranks schedules as the machine does that measured them, and says nothing where it cannot."""

import random

import pytest
from sass.planted import listing

from cudal2.config import MachineConfig, SassSearchConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass.game.moves import edited
from cudal2.sass.game.play import Play
from cudal2.sass.game.task import Task
from cudal2.sass.judges.fitted import Fitted, correlation
from cudal2.sass.judges.simulator import Simulated

KERNEL = listing()
HIDDEN = MachineConfig(warps=1, matrix=2, shared=16, shared_latency=48)
WRONG = MachineConfig(warps=4, matrix=32, shared=2, shared_latency=20)
FIRST = 24


def measured(speedup: float) -> Measured:
    return Measured(Status.OK, speedup, speedup, speedup)


@pytest.fixture(scope="module")
def edits() -> list[Edit]:
    """Random walks of up to 20 legal moves, no two alike."""
    task = Task(Play(KERNEL), SassSearchConfig(), 0, lambda edit: measured(1.0), lambda listing: 1.0)
    found = set[Edit]()
    while len(found) < 3 * FIRST:
        play = Play(KERNEL)
        for _ in range(task.rng.randrange(1, 20)):
            task.step(play)
        found.add(play.edit())
    return sorted(found - {Play(KERNEL).edit()}, key=repr)[: 3 * FIRST - 1]


def learnt(edits: list[Edit], speedups: list[float], machine: MachineConfig = WRONG, first: int = FIRST) -> Fitted:
    fitted = Fitted(KERNEL, machine, first)
    for edit, speedup in zip(edits, speedups):
        fitted.learn(edit, measured(speedup))
    return fitted


def test_it_ranks_what_it_has_not_seen_as_the_machine_that_measured(edits: list[Edit]) -> None:
    truth = [Simulated(KERNEL, HIDDEN).of(edited(KERNEL, edit)) for edit in edits]
    fitted = learnt(edits[:FIRST], truth[:FIRST])
    rest = [edited(KERNEL, edit) for edit in edits[FIRST:]]
    before = correlation([Simulated(KERNEL, WRONG).of(one) for one in rest], truth[FIRST:])
    after = correlation([fitted.of(one) for one in rest], truth[FIRST:])
    assert after > max(0.8, before) and fitted.trusted
    again = learnt(edits[:FIRST], truth[:FIRST])
    assert again.machine == fitted.machine


def test_what_is_told_at_random_leaves_it_without_an_opinion(edits: list[Edit]) -> None:
    """But for one time in twenty, by the choice of what is kept back."""
    rng, good = random.Random(3), listing(good=True)
    parts = [edits[n : n + FIRST] for n in (0, FIRST // 2, FIRST)]
    told = [learnt(part, [rng.uniform(0.99, 1.01) for _ in part]) for part in parts]
    assert sum(one.of(good) == 1.0 for one in told) >= 2


def test_it_is_the_machine_of_the_configuration_until_there_is_enough(edits: list[Edit]) -> None:
    good, plain = listing(good=True), Simulated(KERNEL, WRONG)
    for fitted in (learnt(edits[: FIRST - 1], [1.0] * FIRST), learnt(edits, [1.0] * len(edits), first=0)):
        assert fitted.machine == WRONG and fitted.of(good) == plain.of(good)
    fitted = Fitted(KERNEL, WRONG, FIRST)
    for edit in edits[:FIRST]:  # neither failures nor one edit told twice are edits measured
        fitted.learn(edit, Measured(Status.WRONG))
        fitted.learn(edits[0], measured(1.1))
    assert fitted.machine == WRONG and fitted.of(good) == plain.of(good)
