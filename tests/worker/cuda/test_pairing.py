"""Candidates that know how they are judged: what they may learn, bet on or leave to a clock gains them nothing. And of
the read floor which launch counts, and that all go through the same histories on all sets.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from fake_gpu import PROBLEM, READINGS, Candidate, FakeReading, FakeVendor
from msgspec.structs import replace

from cudal2.problem import parse
from cudal2.records import Status
from cudal2.worker import inputs
from cudal2.worker.cuda import pairing
from cudal2.worker.cuda.pairing import TimingContext, pair, pair_on_host
from cudal2.worker.gpu.arena import check_calls
from cudal2.worker.outcome import CandidateFailed
from cudal2.worker.timing import ReadFloor

BASELINES = ("cublas-tn", "cublaslt-nn")

AT_ONCE = 1e-6
"""Seconds a call so few that all sets are one window."""


def judge(context: TimingContext, candidate: Candidate):
    check_calls(candidate, context.arena, candidate.workspace, context.rounding)
    return pair(candidate.replay, AT_ONCE, candidate.workspace, context, "cublas-tn", AT_ONCE)


def verdict(context: TimingContext, candidate: Candidate) -> Status:
    context.arena.restore()
    try:
        judge(context, candidate)
    except CandidateFailed as failed:
        return failed.status
    return Status.OK


class Ahead(Candidate):
    """The first call of a replay does all others' work, unless the candidate thinks better of it."""

    replays = -1

    def __call__(self, sets, touches=None):
        self.replays += 1
        self.done: dict | None = None
        return super().__call__(sets, touches)

    def call(self, number):
        if self.done is None:
            self.done = {}
            if self.dares(number):
                self.done = {other: self.multiply(other) for other in range(self.arena.buffers.sets)}
        self.write(number, self.done.get(number, self.multiply(number)))

    def dares(self, number: int) -> bool:
        return True


def test_the_caches_are_emptied_before_the_turn_of_either_side(context, monkeypatch):
    """What was filled, or what the other side read last, would be there for one of them."""
    arena, side, events = context.arena, context.baseline, list[str]()

    def noted(owner: object, name: str, event: str) -> None:
        done = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (events.append(event), done(*given))[1])

    candidate = Candidate(arena)
    for owner, name in ((arena, "fill"), (arena, "settle"), (side, "run"), (candidate, "replay")):
        noted(owner, name, name)
    judge(context, candidate)
    turns = [(before, event) for before, event in pairwise(events) if event in ("run", "replay")]
    assert {before for before, _ in turns} == {"settle"}
    assert {event for _, event in turns} == {"run", "replay"}


@pytest.mark.parametrize("context", [parse("40_24_32_nn_f32"), parse("5_24_32_tn_f32_bf16_bias")], indirect=True)
@pytest.mark.parametrize("name", BASELINES)
def test_both_sides_find_their_inputs_in_the_same_memory(context, name, monkeypatch) -> None:
    """Whichever layout the baseline wants; and then it finds there what the candidate does, and so does that again."""
    side, seen = context.baseline, []
    run = side.run

    def noted(name, history):
        operands = side.inputs(name[-2:])
        seen.append([operand.data_ptr() for operand in operands])
        a, b = (operand[history.order[0]].float() for operand in operands[:2])
        ours = [operand[history.order[0]].float() for operand in context.arena.inputs[:2]]
        turned = name[-2:] != context.arena.problem.layout
        assert torch.equal(a, ours[0]) and torch.equal(b.T if turned else b, ours[1])
        return run(name, history)

    monkeypatch.setattr(side, "run", noted)
    pair(Candidate(context.arena).replay, AT_ONCE, 0, context, name, AT_ONCE)
    assert len(seen) > 5
    assert all(one == [operand.data_ptr() for operand in context.arena.given] for one in seen)
    assert context.arena.inputs_intact()


@pytest.mark.parametrize("name", BASELINES)
def test_nobody_changes_what_the_baseline_reads(context, name, monkeypatch) -> None:
    run = context.baseline.run

    def harmed(name, history):
        seconds = run(name, history)
        context.arena.given[1][history.order[-1]].view(torch.int16)[0, 0] ^= 1
        return seconds

    monkeypatch.setattr(context.baseline, "run", harmed)
    with pytest.raises(CandidateFailed) as failed:
        pair(Candidate(context.arena).replay, AT_ONCE, 0, context, name, AT_ONCE)
    assert failed.value.status is Status.WRONG


def test_no_single_replay_is_the_one_to_be_honest_in(context: TimingContext) -> None:
    """Were the inputs changed but once, betting on the moment would win one time in seven."""

    def cautious(moment: int) -> Candidate:
        class Cautious(Ahead):
            def dares(self, number):
                return self.replays != 4 + moment  # after four single calls

        return Cautious(context.arena)

    assert [verdict(context, cautious(moment)) for moment in range(9)] == [Status.WRONG] * 9


def test_one_call_that_finds_its_inputs_unchanged_does_not_vouch_for_the_others(many_sets: TimingContext) -> None:
    """The first call of a replay keeps a copy of some sets' inputs, and when one of them is called, the candidate knows
    whether these have changed. If not, one call does the work of all that are left, and nothing is read again.
    """

    class Probes(Ahead):
        def call(self, number):
            if self.done is None:
                self.done, self.sure = {}, False
                self.copies = {other: self.inputs(other) for other in range(0, self.arena.buffers.sets, 8)}
            elif number in self.copies and not self.sure:
                self.sure = all(map(torch.equal, self.copies[number], self.inputs(number)))
                self.copies = self.copies if self.sure else {}  # honest in what is left of the replay
                if self.sure:
                    self.done = {other: self.multiply(other) for other in range(self.arena.buffers.sets)}
            self.write(number, self.done.get(number, self.multiply(number)))

        def inputs(self, number):
            return self.arena.given[0][number].clone(), self.arena.given[1][number].clone()

    context = many_sets
    assert Status.WRONG in [verdict(context, Probes(context.arena)) for _ in range(2)]


def test_a_changed_input_looks_like_any_other(context: TimingContext) -> None:
    class LooksForChanges(Ahead):
        def dares(self, number):
            large = 4.5 * 2.0 ** inputs.uneven(PROBLEM.type)
            return not any(bool((m[number].abs() > large).any()) for m in (self.arena.given[0], self.arena.given[1]))

    assert verdict(context, LooksForChanges(context.arena)) is Status.WRONG


class PutsOff(Candidate):
    """Remembers calls, and does their work in a later one: in that which the candidate thinks to be the last."""

    def __call__(self, sets, touches=None):
        self.waiting: list[int] = []
        self.made = 0
        return super().__call__(sets, touches)

    def call(self, number):
        self.waiting.append(number)
        self.made += 1
        if self.calls <= 4 or self.now():
            for each in self.waiting:
                self.write(each, self.multiply(each))
            self.waiting = []

    def now(self) -> bool:
        raise NotImplementedError


def every(count: int) -> type[PutsOff]:
    class Every(PutsOff):
        def now(self):
            return self.made % count == 0

    return Every


def first_of(count: int) -> type[PutsOff]:
    """Puts off a window's first calls only: so many there are in each."""

    class First(PutsOff):
        def now(self):
            return self.made >= count

    return First


class UntilTheLast(PutsOff):
    def now(self):
        return self.made == self.arena.buffers.sets


class CopiesFirst(PutsOff):
    """Each call copies its own inputs when it is its turn, so that it need not mind what becomes of them; one that is
    sure to come works for all so far. What stands in their outputs until then is the poison, or something in its stead.
    """

    stand_in: float | None = None

    def call(self, number):
        self.made += 1
        if self.calls <= 4 or self.made >= self.sure:
            self.write(number, self.multiply(number))
        else:
            self.waiting.append((number, self.multiply(number)))
            if self.stand_in is not None:
                self.write(number, torch.full_like(self.arena.c[number], self.stand_in))
        if self.made == self.sure:
            for other, result in self.waiting:
                self.write(other, result)

    @property
    def sure(self) -> int:
        sets = self.arena.buffers.sets
        return sets - sets // 2


class CopiesAndStandsIn(CopiesFirst):
    stand_in = 0.0


class CopiesAndMends(CopiesFirst):
    """Each place of what it owes gets a word of its own, which it looks for where elements are kept, to put the result
    there."""

    def call(self, number):
        log = self.arena.memory[: self.arena.buffers.bytes // 2][-self.arena.buffers.log_words :]
        if self.made == 0:
            self.before = log.clone()
        super().call(number)
        if self.waiting and self.waiting[-1][0] == number:
            self.write(number, self.codes(len(self.waiting) - 1).view(self.arena.c.dtype))
        if self.made == self.sure and self.waiting:
            codes = torch.cat([self.codes(owed).flatten() for owed in range(len(self.waiting))]).tolist()
            results = torch.cat([result.view(torch.int16).flatten() for _, result in self.waiting]).tolist()
            final = dict(zip(codes, results))
            for place in (log != self.before).nonzero().flatten().tolist():
                log[place] = final.get(int(log[place]), int(log[place]))

    def codes(self, owed: int) -> torch.Tensor:
        size = self.arena.c[0].numel()
        return (torch.arange(size) + size * owed - (1 << 15)).to(torch.int16).view(self.arena.c[0].shape)


@pytest.mark.parametrize(
    "kind",
    [every(2), every(3), first_of(2), first_of(4), UntilTheLast, CopiesFirst, CopiesAndStandsIn, CopiesAndMends],
    ids=range(8),
)
@pytest.mark.parametrize("protocol", ["device", "offline"])
def test_work_that_is_put_off_is_wrong(context: TimingContext, kind: type[PutsOff], protocol: str) -> None:
    """What a call has written is looked at when it is over, and must be the same in the end."""
    context.arena.restore()
    candidate = kind(context.arena)
    with pytest.raises(CandidateFailed) as failed:
        if protocol == "device":
            judge(context, candidate)
        else:
            check_calls(candidate, context.arena, 0, context.rounding)
            pair_on_host(candidate.host, 0, context, "cublas-tn", protocol)
    assert failed.value.status is Status.WRONG, failed.value.reason


def test_noticing_touches_does_not_help(context: TimingContext) -> None:
    """A candidate that sees that something was written before its call, but not where, can hold on to nothing: it is so
    before every call. One that sees where as well has as much to do again as an honest one.
    """

    class Notices(Ahead):
        noticed = False

        def touched(self, *touch):
            super().touched(*touch)
            self.noticed = True

        def call(self, number):
            self.done = None if self.noticed else self.done
            self.noticed = False
            super().call(number)

    class CountsWork(Ahead):
        """Its first call works for all; then it mends the set that was touched, and no other."""

        work = honest = 0

        def touched(self, where, source, bits):
            super().touched(where, source, bits)
            number = where // self.arena.buffers.stride
            if self.done and number < self.arena.buffers.sets:
                self.done[number] = self.multiply(number)

        def call(self, number):
            self.honest += 1
            super().call(number)

        def multiply(self, number):
            self.work += 1
            return super().multiply(number)

    counting = CountsWork(context.arena)
    assert verdict(context, counting) is Status.OK, "it uses what it should"
    assert counting.work > 1.2 * counting.honest, "and works more than an honest one"
    noticing = Notices(context.arena)
    assert verdict(context, noticing) is Status.OK, "it is honest before every touch: before every call"


def test_the_number_of_calls_is_drawn(context: TimingContext) -> None:
    counts: dict[str, set[int]] = {"device": set(), "offline": set()}

    class Counts(Candidate):
        def __call__(self, sets, touches=None):
            counts[self.protocol].add(len(sets))
            return super().__call__(sets, touches)

    sets = context.arena.buffers.sets
    for protocol in counts:
        candidate = Counts(context.arena)
        candidate.protocol = protocol
        for _ in range(12):
            if protocol == "device":
                pair(candidate.replay, AT_ONCE, 0, context, "cublas-tn", AT_ONCE)
            else:
                pair_on_host(candidate.host, 0, context, "cublas-tn", protocol)
        assert counts[protocol] == set(range(sets - sets // 2, sets + 1))


def test_an_order_does_not_come_again(context: TimingContext) -> None:
    orders: list[tuple[int, ...]] = []

    class Learns(Candidate):
        def __call__(self, sets, touches=None):
            orders.append(tuple(sets))
            return super().__call__(sets, touches)

    assert verdict(context, Learns(context.arena)) is Status.OK
    replays = [order for order in orders if len(order) > 1]
    assert len(set(replays)) > len(replays) // 2


class Sloppy(Candidate):
    """One element in 25 is wrong in its last digit: more than fp32 sums explain, less than two results may differ."""

    def sloppy(self, number: int) -> bool:
        raise NotImplementedError

    def multiply(self, number):
        c = super().multiply(number)
        if self.sloppy(number):
            c.view(torch.int16)[torch.rand(c.shape) < 0.04] ^= 1
        return c


def test_every_set_is_computed_as_the_checked_ones(context: TimingContext) -> None:
    class InOtherSets(Sloppy):
        def sloppy(self, number):
            return number > 1

    # Which calls are looked at closely is drawn: of these few sets one judgement in a hundred meets none of the sloppy.
    found = [verdict(context, InOtherSets(context.arena)) for _ in range(3)]
    assert sum(status in (Status.IMPRECISE, Status.WRONG) for status in found) >= 2


def test_later_calls_are_looked_at_as_closely_as_first_ones(context: TimingContext) -> None:
    class InLaterCalls(Sloppy):
        def __call__(self, sets, touches=None):
            self.first = True
            return super().__call__(sets, touches)

        def sloppy(self, number):
            first, self.first = self.first, False
            return not first

    assert verdict(context, InLaterCalls(context.arena)) is Status.IMPRECISE


def test_inputs_of_other_calls_are_no_memory(context: TimingContext) -> None:
    class Remembers(Candidate):
        def call(self, number):
            super().call(number)
            self.arena.given[0][number - 1, 0, 0] = 1  # the last set's where it is the first

    class RemembersLater(Remembers):
        def call(self, number):
            (super() if self.calls > 4 else super(Remembers, self)).call(number)

    for kind in (Remembers, RemembersLater):
        assert verdict(context, kind(context.arena)) is Status.WRONG
    assert verdict(context, Candidate(context.arena)) is Status.OK  # nor for the next candidate


def test_what_an_unfinished_replay_should_have_changed_is_forgotten(context: TimingContext) -> None:
    window = slice(0, context.arena.buffers.sets)
    history = context.history(window)
    history.apply(context.arena.inputs)
    assert not context.arena.inputs_intact()
    assert verdict(context, Candidate(context.arena)) is Status.OK


def test_a_clock_must_be_right_where_it_tells_the_speed(context: TimingContext) -> None:
    """Not only in one replay, in which the candidate is as slow as it is."""

    class HidesMost(Candidate):
        replays = 0

        def __call__(self, sets, touches=None):
            super().__call__(sets, touches)
            self.replays += 1
            host = 1e-3 * len(sets)
            return (host if self.replays == 5 else 1e-6 * len(sets)), host + 1e-5

    assert verdict(context, HidesMost(context.arena)) is Status.IMPLAUSIBLE


@pytest.mark.parametrize("protocol", ["offline", "server"])
def test_a_call_on_the_hosts_clock_that_does_the_others_work(context: TimingContext, protocol: str) -> None:
    with pytest.raises(CandidateFailed) as failed:
        pair_on_host(Ahead(context.arena).host, 0, context, "cublas-tn", protocol)
    assert failed.value.status is Status.WRONG


def test_no_call_of_a_block_is_left_out_of_its_time(context: TimingContext) -> None:
    """One call takes as long as all of the vendor's, the others next to nothing: no faster than the vendor."""

    class AllInOne(Candidate):
        def host(self, history, gap):
            self.replay(history)
            return [1e-5 * len(history.order), *[1e-8] * (len(history.order) - 1)]

    timing = pair_on_host(AllInOne(context.arena).host, 0, context, "cublas-tn", "offline")
    assert timing.speedup == pytest.approx(1, rel=0.01)


def test_calls_on_the_hosts_clock_stay_inside_their_matrices(context: TimingContext) -> None:
    class Outside(Candidate):
        def host(self, history, gap):
            self.arena.memory[self.arena.buffers.offsets[2] // 2 + PROBLEM.m * PROBLEM.n] = 1
            return super().host(history, gap)

    with pytest.raises(CandidateFailed) as failed:
        pair_on_host(Outside(context.arena).host, 0, context, "cublas-tn", "offline")
    assert failed.value.status is Status.OUT_OF_BOUNDS


@pytest.fixture
def readings(monkeypatch) -> dict[str, FakeReading]:
    made = {launch: FakeReading(seconds) for launch, seconds in READINGS.items()}
    monkeypatch.setattr(FakeVendor, "readings", lambda self, sets: made)
    return made


def test_the_fastest_launch_counts_and_touches_do_not(context: TimingContext, readings, monkeypatch) -> None:
    seconds = {1: 2e-7, 4: 3e-7}
    monkeypatch.setattr(FakeVendor, "touch_seconds", seconds)
    found = pairing.read_floor(replace(context, touch_seconds=seconds), BASELINES)
    assert found.launch == min(READINGS, key=READINGS.__getitem__)
    assert found.rounds == pytest.approx([READINGS[found.launch]] * pairing.ROUNDS)
    assert list(found.baselines) == list(BASELINES)
    assert all(len(rounds) == pairing.ROUNDS for rounds in found.baselines.values())


@pytest.mark.parametrize("context", [parse("40_24_32_nn_f32"), parse("5_24_32_tn_f32_bf16_bias")], indirect=True)
def test_all_go_through_the_same_histories_each_on_every_set(context: TimingContext, readings, monkeypatch) -> None:
    asked: list[tuple] = []

    def run(name: str, history) -> float:
        side = context.baseline
        touches = history.touches((*context.arena.given, side.c), side._log)
        asked.append((tuple(history.order), touches.tobytes()))
        return 1e-5

    monkeypatch.setattr(context.baseline, "run", run)
    pairing.read_floor(context, ("torch-nn", "torch-tn"))
    every = sorted(readings.values(), key=lambda one: one.seconds)
    seen = [one.seen for one in every]
    assert [len(one) for one in seen] == [*[pairing.SIEVE + pairing.ROUNDS + 2] * pairing.FINALISTS, pairing.SIEVE + 1]
    assert seen[0] == seen[1] == seen[2] and seen[3] == seen[0][: pairing.SIEVE + 1]
    assert asked[::2] == asked[1::2] == seen[0][pairing.SIEVE + 1 :], "whose turn it was, and that of each"
    assert all(sorted(order) == list(range(context.arena.buffers.sets)) for order, _ in seen[0])
    assert len(set(seen[0])) == len(seen[0]), "none is known from before"


def test_a_spread_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    drawn = [ReadFloor("1x256x4", rng.lognormal(size=pairing.ROUNDS).tolist(), {}).spread for _ in range(2000)]
    assert 0.94 < np.mean([low <= 1 <= high for _, low, high in drawn]) < 0.99
    assert ReadFloor("1x256x4", [3.0, 1.0, 2.0], {}).spread == (2.0, 1.0, 3.0)
