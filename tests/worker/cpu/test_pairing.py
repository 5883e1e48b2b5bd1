"""What a side may see when, with sides that are Python functions on the arena."""

import math
from collections.abc import Callable, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import cycle

import msgspec
import pytest
import torch

from cudal2.config import WorkerConfig
from cudal2.dtype import FP16
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.worker import inputs, measurement, verify
from cudal2.worker.cpu.arena import GUARDED, Arena
from cudal2.worker.cpu.context import CROWDED, LOOKS, TimingContext
from cudal2.worker.cpu.pairing import COLUMNS, GREEDY, ROWS, fastest_seconds, pair
from cudal2.worker.outcome import CandidateFailed

PROBLEM = Problem(32, 16, 24)
CONFIG = WorkerConfig(batch_ms=0.5, min_pairs=3, max_pairs=3)


class Fake:
    """A side that does `call(slot)` for each of its calls, and what is to be done meanwhile after `after` of them."""

    def __init__(self, call: Callable[[int], None], after: int = 3) -> None:
        self.call, self.after = call, after
        self.batches: list[range] = []
        self.cores, self.woken, self.waited, self.limit = 1.0, 0.0, 0.0, math.inf
        self.started = math.inf  # it says how long it took, whatever the clock: every look comes in time

    @contextmanager
    def within(self, seconds: float):
        self.limit, before = seconds, self.limit
        yield
        self.limit = before

    def run(self, first: int, count: int, meanwhile=()) -> float:
        self.batches.append(range(first, first + count))
        for done, slot in enumerate(self.batches[-1]):
            for _, look in meanwhile if done == self.after else ():
                look()
            self.call(slot)
        self.met = [look for _, look in meanwhile]
        self.replied = 20e-6 * count
        return self.replied


@pytest.fixture
def context():
    with closing(Arena(PROBLEM)) as arena:
        yield context_of(arena)


def context_of(arena: Arena) -> TimingContext:
    normals = torch.empty(1 << 22, dtype=torch.float16)
    inputs.fill_normal(inputs.generator(), normals)
    inputs.keep_from_zero(normals, FP16)
    return TimingContext(arena, normals, CONFIG)


def product(context: TimingContext, slot: int) -> torch.Tensor:
    a, b = context.arena.given(slot)
    return (a.float() @ b.float().T).half()


def honest(context: TimingContext) -> Callable[[int], None]:
    return lambda slot: context.arena.c(slot).copy_(product(context, slot))  # type: ignore[return-value]


def test_honest_sides_pass_and_no_call_outside_a_batch_sees_its_inputs(context: TimingContext) -> None:
    """The call that wakes a side up comes before the inputs of the batch, and before its outputs are poisoned."""
    seen: set[bytes] = set()
    fresh: list[bool] = []

    def call(slot: int) -> None:
        arena = context.arena
        if slot < GUARDED:
            timed = range(GUARDED, arena.count)
            seen.update(arena.given(i)[0].numpy().tobytes() for i in timed)
            assert not any(arena.c(i).isnan().all() for i in timed)
        else:
            fresh.append(arena.given(slot)[0].numpy().tobytes() not in seen)
        honest(context)(slot)

    side = Fake(call)
    timing = pair(side, Fake(honest(context)), context, "fake", 20e-6)
    assert timing.pairs == 3 and timing.speedup == pytest.approx(1, rel=0.1)
    assert sum(batch == range(1) for batch in side.batches) >= 3, "it is woken before every batch"
    assert fresh and all(fresh)


def test_results_held_from_before_the_change_are_wrong(context: TimingContext) -> None:
    """Whoever computes four calls at once, into memory of its own, hands out the old result of a changed input."""
    held: dict[int, torch.Tensor] = {}

    def call(slot: int) -> None:
        if slot not in held:
            held.update({ahead: product(context, ahead) for ahead in range(slot, min(slot + 4, context.arena.count))})
        context.arena.c(slot).copy_(held.pop(slot))

    with pytest.raises(CandidateFailed, match="in timed calls") as failed:
        pair(Fake(call, after=5), Fake(honest(context)), context, "fake", 20e-6)
    assert failed.value.status == "wrong"


def test_outputs_written_before_their_calls_are_seen(context: TimingContext) -> None:
    class Meddler(Fake):
        """Looked at while a call runs: the later outputs are there, its own is not."""

        def run(self, first: int, count: int, meanwhile=()) -> float:
            if meanwhile and count > 8:
                for ahead in range(first + 1, first + 4):
                    context.arena.c(ahead).fill_(1)
                meanwhile[0][1]()
            return super().run(first, count)

    with pytest.raises(CandidateFailed, match="later call"):
        pair(Meddler(honest(context)), Fake(honest(context)), context, "fake", 20e-6)


def test_a_call_that_had_begun_when_its_input_changed_may_have_used_either(context: TimingContext) -> None:
    """An honest side that is between two calls when the change comes is not accused."""

    class Between(Fake):
        def run(self, first: int, count: int, meanwhile=()) -> float:
            if meanwhile and count > 8:
                perturbation = meanwhile[0][1]
                looked = perturbation._running()
                perturbation._running = lambda: looked
                old = product(context, first + looked + 1)  # begun with the old input …
                for slot in range(first, first + looked + 1):
                    self.call(slot)  # … as all before it are over
                perturbation()
                elapsed = super().run(first, count)
                self.met = [perturbation]
                context.arena.c(first + looked + 1).copy_(old)
                return elapsed
            return super().run(first, count)

    assert pair(Between(honest(context)), Fake(honest(context)), context, "fake", 20e-6).pairs == 3


@pytest.mark.parametrize(
    ("given", "busy", "ok"), [(1, 1.9, False), (1, 1.06, False), (2, 1.9, True), (1, 1.01, True), (0, 9.0, True)]
)
def test_no_candidate_keeps_more_cores_busy_than_it_was_given(context, given, busy, ok) -> None:
    """`num_threads(64)`: what it is compared with has `worker.threads`."""
    context = msgspec.structs.replace(context, config=msgspec.structs.replace(CONFIG, threads=given))
    side = Fake(honest(context))
    side.cores = busy
    with nullcontext() if ok else pytest.raises(CandidateFailed, match="cores busy, of 1") as failed:
        assert pair(side, Fake(honest(context)), context, "fake", 20e-6).pairs == 3
    assert ok or failed.value.status == "rejected"


def test_a_batch_on_more_cores_counts_for_as_much_longer(context) -> None:
    """Or fewer than half of the batches would be worth it."""

    class Seldom(Fake):
        timed = 0

        def run(self, first: int, count: int, meanwhile=()) -> float:
            self.timed += bool(meanwhile)
            self.cores = 2.0 if self.timed % 5 in (3, 0) else 1.0
            return super().run(first, count, meanwhile) / self.cores

    config = msgspec.structs.replace(CONFIG, threads=1, min_pairs=20, max_pairs=20)
    context = msgspec.structs.replace(context, config=config)
    found = pair(Seldom(honest(context)), Fake(honest(context)), context, "fake", 20e-6)
    assert found.high <= GREEDY + 1e-6


def test_moments_go_by_the_length_of_most_batches(context) -> None:
    """Neither by single calls nor by the fastest batch, which a candidate could hurry in."""
    moments = []

    class Timed(Fake):
        def run(self, first: int, count: int, meanwhile=()) -> float:
            super().run(first, count, meanwhile)
            moments.extend(moment for moment, _ in meanwhile)
            self.replied = 1e-6  # what it says
            return 20e-6 * count

    context = msgspec.structs.replace(context, config=msgspec.structs.replace(CONFIG, min_pairs=20, max_pairs=20))
    side = Timed(honest(context))
    pair(side, Fake(honest(context)), context, "fake", 20e-6)
    calls = max(len(batch) for batch in side.batches)
    assert max(moments[1:]) > 0.5 * 20e-6 * calls, "nineteen of them"


def test_what_was_met_before_its_calls_were_asked_for_is_not_watched(context, monkeypatch) -> None:
    monkeypatch.setattr(measurement, "UNWATCHED", 0)

    class Early(Fake):
        def run(self, first: int, count: int, meanwhile=()) -> float:
            elapsed = super().run(first, count, meanwhile)
            self.met = []
            return elapsed

    with pytest.raises(HarnessFault, match="too busy to watch"):
        pair(Early(honest(context)), Early(honest(context)), context, "fake", 20e-6)


class Late(Fake):
    def run(self, first: int, count: int, meanwhile=()) -> float:
        elapsed = super().run(first, count)
        for _, look in meanwhile:
            look()
        self.met = [look for _, look in meanwhile]
        return elapsed


def test_who_says_late_that_all_is_over_is_to_blame_where_the_baseline_is_watched(context, monkeypatch) -> None:
    """Its batches look long, so that every look comes when they are over."""
    monkeypatch.setattr(measurement, "UNWATCHED", 0)
    with pytest.raises(CandidateFailed, match="long before it says so") as failed:
        pair(Late(honest(context)), Fake(honest(context)), context, "fake", 20e-6)
    assert failed.value.status == "rejected"
    with pytest.raises(HarnessFault, match="too busy to watch"):
        pair(Late(honest(context)), Late(honest(context)), context, "fake", 20e-6)
    baseline = Fake(honest(context))
    baseline.started = 0.0  # watched when the candidate's batch would have been over
    with pytest.raises(HarnessFault, match="too busy to watch"):
        pair(Late(honest(context)), baseline, context, "fake", 20e-6)


@pytest.mark.parametrize("unseen", [0, 3])
def test_who_chooses_when_it_is_watched_gets_no_figure(context, monkeypatch, unseen) -> None:
    """Six watched batches are enough where the baseline is not watched oftener either, as on a busy machine."""
    monkeypatch.setattr(measurement, "UNWATCHED", 0)

    class Seldom(Fake):
        every, timed = 1, 0

        def run(self, first: int, count: int, meanwhile=()) -> float:
            elapsed = super().run(first, count, meanwhile)
            self.timed += bool(meanwhile)
            self.met = self.met if self.timed % self.every == 0 else []
            return elapsed

    context = msgspec.structs.replace(context, config=msgspec.structs.replace(CONFIG, min_pairs=40, max_pairs=40))
    candidate, baseline = Seldom(honest(context)), Seldom(honest(context))
    candidate.every, baseline.every = 4, 1 + unseen
    expected = nullcontext() if unseen else pytest.raises(CandidateFailed, match="before it says so")
    with expected:
        assert pair(candidate, baseline, context, "fake", 20e-6).pairs == 40


def test_who_has_met_one_change_may_meet_another(context) -> None:
    """Honest until an input has changed, from then on to the end of the batch four calls ahead."""
    held: dict[int, torch.Tensor] = {}

    class Cautious(Fake):
        def run(self, first: int, count: int, meanwhile=()) -> float:
            pending, met = [look for _, look in meanwhile], False
            for slot in range(first, first + count):
                if (slot - first) % 5 == 3 and pending:
                    pending.pop()()
                    met = True
                if met and slot not in held:
                    held.update({ahead: product(context, ahead) for ahead in range(slot, min(slot + 4, first + count))})
                context.arena.c(slot).copy_(held.pop(slot) if met else product(context, slot))
            held.clear()
            return super().run(first, 0, meanwhile) + 20e-6 * count

    context = msgspec.structs.replace(context, config=msgspec.structs.replace(CONFIG, min_pairs=30, max_pairs=30))
    with pytest.raises(CandidateFailed, match="in timed calls"):
        pair(Cautious(lambda slot: None), Fake(honest(context)), context, "fake", 20e-6)


def test_no_batch_has_the_signs_of_an_earlier_one(context: TimingContext) -> None:
    before = context.normals.clone()
    context.fill(context.slots.start, 2)
    assert torch.equal(before.abs(), context.normals.abs())
    assert 0.4 < float((before.sign() == context.normals.sign()).float().mean()) < 0.6


@pytest.mark.parametrize("who", [("candidate",), ("baseline",), ("candidate", "baseline"), ()])
def test_who_does_not_answer_when_woken_is_to_blame_that_nothing_is_watched(context, monkeypatch, who) -> None:
    class Sleepy(Fake):
        sleeps = False

        def run(self, first: int, count: int, meanwhile=()) -> float:
            seconds = super().run(first, count, meanwhile)
            self.met = []  # inputs had changed before the calls were asked for
            self.woken = 0.9 * seconds if self.sleeps else 0.0
            return seconds

    monkeypatch.setattr(measurement, "UNWATCHED", 0)
    sides = {role: Sleepy(honest(context)) for role in ("candidate", "baseline")}
    for role in who:
        sides[role].sleeps = True
    blamed, said = (CandidateFailed, "answer") if who == ("candidate",) else (HarnessFault, "too busy")
    with pytest.raises(blamed, match=said):
        pair(*sides.values(), context, "torch", 20e-6)


def test_the_number_of_calls_is_drawn_and_alike_for_both(context) -> None:
    context = msgspec.structs.replace(context, config=msgspec.structs.replace(CONFIG, min_pairs=60, max_pairs=60))
    sides = Fake(honest(context)), Fake(honest(context))
    pair(*sides, context, "torch", 20e-6)
    timed = [
        [len(batch) for batch in side.batches if batch.start >= GUARDED][3 * (side is sides[0]) :] for side in sides
    ]
    timed = [[count for count in one if count > 1] for one in timed]
    assert timed[0] == timed[1], "equally fast, equally many"
    most = max(timed[0])
    assert len(set(timed[0])) > 8 and min(timed[0]) >= most / 2 - 1
    assert sum(timed[0]) / len(timed[0]) == pytest.approx(CONFIG.batch_ms / 20e-3, rel=0.15)


def test_nothing_in_the_slot_of_the_call_that_wakes_tells_who_was_woken_before(context) -> None:
    """Nor may a candidate stay there for long."""
    seen: list[bool] = []
    limits: dict[str, set[float]] = {"candidate": set(), "baseline": set()}

    def waking(name: str) -> Fake:
        def call(slot: int) -> None:
            if slot == 0:
                seen.append(bool(context.arena.c(0).isnan().all()))
                limits[name].add(side.limit)
            honest(context)(slot)

        side = Fake(call)
        return side

    pair(waking("candidate"), waking("baseline"), context, "torch", 20e-6)
    assert len(seen) >= 6 and all(seen)
    assert max(limits["candidate"]) <= 2 and limits["baseline"] == {math.inf}


def test_a_call_that_may_have_used_either_input_is_compared_all_the_same(context, monkeypatch) -> None:
    """Whoever sees that inputs change while a call runs cannot give that call up."""

    class GivesUp(Fake):
        def run(self, first: int, count: int, meanwhile=()) -> float:
            elapsed = super().run(first, count, meanwhile)
            if meanwhile and count > 8:
                looks = [look for _, look in meanwhile]
                for look in looks:
                    look.conclude = lambda look=look: (type(look).conclude(look), look.unsure.update(given_up(look)))
            return elapsed

    def given_up(look) -> dict[int, int]:
        slot = next(iter(look.changed))
        context.arena.c(slot).fill_(1)
        return {slot: int(context.arena.calls[slot, 0] // 2)}

    with pytest.raises(CandidateFailed, match="in timed calls") as failed:
        pair(GivesUp(honest(context)), Fake(honest(context)), context, "torch", 20e-6)
    assert failed.value.status == "wrong"


@pytest.mark.parametrize(("calls", "most"), [(2, CROWDED), (CROWDED * 4, CROWDED), (LOOKS * 4, LOOKS)])
def test_nobody_knows_how_often_inputs_change(context, calls: int, most: int) -> None:
    """A batch of few calls has few looks, or each of them would change the same call."""
    counts = {len(context.perturbations(GUARDED, calls, change=True)) for _ in range(400)}
    assert {1, CROWDED} <= counts <= set(range(1, most + 1)) and (max(counts) > CROWDED) == (most > CROWDED)


class Kept(Fake):
    """Whose threads wait for a core: in each of its batches for the next of these shares, over and over."""

    def __init__(self, call: Callable[[int], None], shares: Sequence[float]) -> None:
        super().__init__(call)
        self.shares = cycle(shares)

    def run(self, first: int, count: int, meanwhile=()) -> float:
        seconds = super().run(first, count, meanwhile)
        if count > 1:  # and no single call, of which there may be any number
            self.waited = next(self.shares)
        return seconds


def test_a_baseline_that_is_kept_from_running_is_a_disturbance_and_never_a_speedup(context: TimingContext) -> None:
    """Beside a busy program all of its batches are slow, the first look too: nothing else tells."""
    for shares, ok in (([0.02], True), ([0.02, 0.02, 0.9], True), ([0.5], False), ([0.5, 0.02, 0.5], False)):
        baseline = Kept(honest(context), shares)
        with nullcontext() if ok else pytest.raises(measurement.Disturbed, match="for 50% of the time"):
            assert pair(Fake(honest(context)), baseline, context, "fake", 20e-6).pairs == 3


def test_nobody_is_to_blame_for_late_answers_where_the_baseline_is_kept_from_running(context, monkeypatch) -> None:
    monkeypatch.setattr(measurement, "UNWATCHED", 0)
    for share, expected in ((0.02, CandidateFailed), (0.5, measurement.Disturbed)):
        with pytest.raises(expected):
            pair(Late(honest(context)), Kept(honest(context), [share]), context, "fake", 20e-6)


def test_a_candidate_whose_threads_keep_one_another_waiting_gets_its_verdict(context: TimingContext) -> None:
    assert pair(Kept(honest(context), [0.9]), Fake(honest(context)), context, "fake", 20e-6).pairs == 3


def test_a_figure_alone_needs_one_batch_that_had_its_cores(context: TimingContext) -> None:
    assert fastest_seconds(Kept(honest(context), [0.6, 0.6, 0.01]), context) > 0
    with pytest.raises(measurement.Disturbed, match="busy"):
        fastest_seconds(Kept(honest(context), [0.6, 0.5]), context)


def test_one_output_of_a_batch_is_held_to_the_bounds_of_single_calls(context: TimingContext, monkeypatch) -> None:
    """Whatever is made of the comparison of all of them."""
    monkeypatch.setattr(verify, "check_timed", lambda *_: None)

    def coarse(slot: int) -> None:
        context.arena.c(slot).copy_(product(context, slot))
        context.arena.c(slot).view(torch.int16).bitwise_and_(-2)

    pair(Fake(honest(context)), Fake(honest(context)), context, "theirs", 20e-6)
    with pytest.raises(CandidateFailed) as failed:
        pair(Fake(coarse), Fake(honest(context)), context, "theirs", 20e-6)
    assert failed.value.status is Status.IMPRECISE


@pytest.mark.parametrize("layout", ["tn", "nn"])
@pytest.mark.parametrize("epilogue", ["none", "bias", "bias_gelu"])
@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_honest_outputs_pass_a_closer_look(layout: str, epilogue: str, accumulate: str) -> None:
    """More rows and columns than are looked at."""
    problem = Problem(2 * ROWS, COLUMNS + 24, 40, layout, accumulate, epilogue=epilogue)
    with closing(Arena(problem)) as arena:

        def fused(slot: int) -> None:
            arena.c(slot).copy_(verify.reference(arena.given(slot), problem))

        pair(Fake(fused), Fake(fused), context_of(arena), "theirs", 20e-6)
