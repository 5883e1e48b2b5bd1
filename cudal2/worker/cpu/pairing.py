"""Candidate and baseline on the same buffers of a processor: the two sides of a comparison.

Both sides' code runs while it is timed, in processes that share the inputs and the outputs. So each is stopped whenever
the other is timed, both are woken before the inputs of a batch exist, and a batch's inputs change while it runs.
"""

import math
import secrets
import statistics
from collections.abc import Callable

import msgspec
from torch import Tensor

from cudal2.records import Status, Timing
from cudal2.target import CPU
from cudal2.worker import stale, timing
from cudal2.worker.cpu import states
from cudal2.worker.cpu.changes import Perturbation
from cudal2.worker.cpu.context import TimingContext, timed
from cudal2.worker.cpu.scheduling import check_ours, threads
from cudal2.worker.cpu.session import Side
from cudal2.worker.measurement import Batch, Role, Sides, measure, next_start
from cudal2.worker.outcome import CandidateFailed, check_closely, raise_finding

AWAKE = 2.0
"""Seconds that a candidate's call which wakes it up may take, though its others are no slow ones: it is not timed."""
BASELINE_BATCHES = 7
WATCHED = 6
"""Batches, or as many as are to be timed at most, that must not be over when their inputs change. In one of them who
works ahead is overlooked 2 to 4 times in a hundred, who reads no more than the next call's bias every second time
(experiments/worker/found.py)."""
LONGEST = 4 / 3
"""So many times `batch_ms` the longest batch takes; the shortest takes half of that."""
GUESSES = 3
"""Single calls from which is told how many make a batch; the first is slow."""
BATCHES = 3
"""So many, or more, tell how many cores a candidate keeps busy."""
ROWS, COLUMNS = 64, 1024
"""At most so many of an output are looked at more closely, for one core has to make them in fp64."""
GREEDY = 1.03
"""So many times its cores a candidate may keep busy: the two clocks of a batch do not begin and end at one instant. Who
keeps to them has 0.97 of them."""


Refer = Callable[[int, int], None]
"""So many calls from a slot on of what outputs are compared with, where that is not the baseline itself."""


class CpuSides(Sides):
    """Every batch has inputs of its own, which a side sees when its clock runs and not before, and a poisoned C.

    Some inputs change while it runs. The batch of either side is as long as its own speed takes: a slow baseline need
    not make as many calls as the candidate.
    """

    warm_up = False  # a few single calls have come before
    looks_always = False

    def __init__(
        self,
        candidate: Side,
        baseline: Side,
        context: TimingContext,
        baseline_seconds: float,
        refer: Refer | None = None,
    ) -> None:
        self.problem, self.rounding, self.slots = context.arena.problem, CPU.rounding, context.slots
        self._sides: dict[Role, Side] = {"candidate": candidate, "baseline": baseline}
        self._context, self._baseline_seconds, self._refer = context, baseline_seconds, refer
        self._expected: dict[Role, float] = {}
        self._each: dict[Role, list[float]] = {"candidate": [], "baseline": []}  # seconds a call of its batches
        self._alone = 0.0  # a single call of the candidate's, without waking and stopping
        self._perturbations: list[Perturbation] = []
        self._watched, self._changes = 0, False
        self._alike = 0  # of the baseline's batches those that could have been watched as well
        self._sleepy: dict[Role, int] = {"candidate": 0, "baseline": 0}  # batches that waking up took most of
        self._cores: list[float] = []  # busy in each of the candidate's batches
        self.waited: list[float] = []
        """Shares of the baseline's batches for which a thread of it had no core (`Side.waited`)."""
        self._results: list[Tensor] = []
        self._references: list[Tensor] = []

    def calls(self, candidate: list[float], baseline: list[float]) -> tuple[int, int]:
        if candidate:  # a disturbed batch looks slow: go by the fastest seen
            self._expected = {"candidate": min(candidate), "baseline": min(baseline)}
        else:
            self._expected = {"candidate": self._guess(), "baseline": self._baseline_seconds}
        share = 1 + secrets.randbelow(1001) / 1000
        return self._calls_of("candidate", share), self._calls_of("baseline", share)

    def _calls_of(self, role: Role, share: float) -> int:
        """Drawn, lest a call know that it is the last: of so many as take a third more than `batch_ms`, or as there are
        slots for, half to all, `share` times half; either side draws the same share, in the mean `batch_ms` long.
        """
        context = self._context
        most = timing.calls_for(self._expected[role], LONGEST * context.config.batch_ms / 1e3, context.most)
        return max(1, min(most, round(share * most / 2)))

    def _guess(self) -> float:
        self._context.fill(self.slots.start, 1)
        candidate = self._sides["candidate"]
        seconds, alone = zip(*((candidate.run(self.slots.start, 1), candidate.replied) for _ in range(GUESSES)))
        self._alone = min(alone)
        return min(seconds)

    def wake(self, batch: Batch) -> None:
        """Perturbations are drawn here, so that nothing is left to do when their moments have come."""
        self._perturbations = self._context.perturbations(batch.first, batch.candidate, change=True)
        for role in batch.order:
            self._context.wake(self._sides[role], self._expected[role], AWAKE if role == "candidate" else math.inf)

    def fill(self, batch: Batch) -> None:
        self._context.fill(batch.first, batch.count)

    def ready(self, role: Role, batch: Batch) -> None:
        """Poisons for each side: both write to the same outputs."""
        self._context.poison(batch.first, batch.count)

    def run(self, role: Role, batch: Batch) -> float:
        context, side = self._context, self._sides[role]
        if role == "candidate":
            length = self._length(role, batch.candidate)
            seconds = timed(side, batch.first, batch.candidate, length, self._perturbations)
            self._note(role, seconds, batch.candidate)
            excess = self._excess(side)
            for one in self._perturbations:
                one.conclude()
            met = [one for one in self._perturbations if one in side.met and not one.late]
            self._watched += bool(met) or not self._perturbations
            self._changes |= bool(self._perturbations)
            self._results = context.outputs(batch.first, batch.candidate)
            return seconds * excess
        alike = context.perturbations(batch.first, batch.baseline, change=False)
        theirs = self._length("candidate", batch.candidate)
        length = min(self._length(role, batch.baseline), theirs)
        seconds = timed(side, batch.first, batch.baseline, length, alike)
        self.waited.append(side.waited)
        over = side.started + theirs  # what is seen later would not have been seen of a candidate that is faster
        self._alike += any(one in side.met and one.told < over for one in alike)
        self._note(role, seconds, batch.baseline)
        if self._refer:
            self._refer(batch.first, batch.candidate)
        elif batch.baseline < batch.candidate:  # its result is wanted for each of the candidate's calls
            side.run(batch.first + batch.baseline, batch.candidate - batch.baseline)
        self._references = context.outputs(batch.first, batch.candidate)
        return seconds

    def _note(self, role: Role, seconds: float, calls: int) -> None:
        self._each[role].append(seconds)
        self._sleepy[role] += self._sides[role].woken > seconds * calls / 2

    def unwatched(self) -> Exception:
        """Whoever does not answer while inputs change, so that these have changed before its calls, is slow itself; and
        so is who has done all by then and says so later, where the baseline is watched at such moments. On a busy
        machine both may be others' doing: raises Disturbed where the baseline's threads were kept from running."""
        check_ours(statistics.median(self.waited), "the baseline", self._context.config)
        most = len(self._each["candidate"]) / 2
        if self._alike > most:
            return CandidateFailed(Status.REJECTED, "its batches are over long before it says so")
        if self._sleepy["candidate"] > most > self._sleepy["baseline"]:
            return CandidateFailed(Status.REJECTED, "does not answer when it is woken")
        return super().unwatched()

    def _excess(self, side: Side) -> float:
        """So many times its cores a side kept busy, at least 1: the batch counts for so much longer.

        Whoever starts threads of its own choice has more of the machine than what it is compared with. Raises
        CandidateFailed where it does so in most batches.
        """
        if not (given := GREEDY * self._context.config.threads):
            return 1.0
        self._cores.append(side.cores)
        if len(self._cores) >= BATCHES and statistics.median(self._cores) > given:
            said = f"keeps {statistics.median(self._cores):.1f} cores busy, of {self._context.config.threads}"
            raise CandidateFailed(Status.REJECTED, f"{said} that it was given")
        return max(1.0, side.cores / given)

    def _length(self, role: Role, calls: int) -> float:
        """Seconds that a batch of so many calls of that side is likely to take: as long a call as most so far.

        Neither the fastest nor a single call, which a candidate could hurry in, lest all moments come early.
        """
        first = self._alone if role == "candidate" else self._baseline_seconds
        return calls * statistics.median(self._each[role] or [first])

    def outputs(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """With the baseline's result on the new inputs where they changed, and where a call may have used either, what
        an honest one may have left that is nearest to its output.
        """
        if any(one.early is not None for one in self._perturbations):
            raise CandidateFailed(Status.WRONG, "in timed calls the output of a later call was written")
        if batch.leader == "baseline":
            for slot in {slot for one in self._perturbations for slot in one.changed}:
                (self._refer or self._sides["baseline"].run)(slot, 1)
                self._references[0][slot - batch.first] = self._context.arena.c(slot)
        arena = self._context.arena
        for slot in {slot for one in self._perturbations for slot in one.unsure}:
            places = [arena.element(slot, one.unsure[slot]) for one in self._perturbations if slot in one.unsure]
            result, reference = (part[0][slot - batch.first] for part in (self._results, self._references))
            reference.copy_(states.nearest(result, reference, arena.given(slot), places, self.problem))
        self._check_changes(batch)
        return list(zip(self._results, self._references))

    def _check_changes(self, batch: Batch) -> None:
        """Whether the calls whose inputs changed before they began used what they then were. Raises CandidateFailed."""
        unsure = {pair for one in self._perturbations for pair in one.unsure.items()}
        sure = {pair for one in self._perturbations for pair in one.changed.items()} - unsure
        for slot, word in sure:
            place, given = self._context.arena.element(slot, word), self._context.arena.given(slot)
            result, reference = (part[0][slot - batch.first] for part in (self._results, self._references))
            line = states.line(result, reference, given, place, self.problem)
            raise_finding(stale.check(*line, self.problem, self.rounding))

    def look_closer(self, batch: Batch) -> None:
        """At a part of a call's output, if possible of a later call, whose inputs are as they were then."""
        moved = {slot for one in self._perturbations for slot in (*one.changed, *one.unsure)}
        left = [slot for slot in range(batch.first, batch.first + batch.candidate) if slot not in moved]
        if not left:
            return
        slot, problem = secrets.choice(left[1:] or left), self.problem
        rows, columns = (_drawn(*sizes) for sizes in ((problem.m, ROWS), (problem.n, COLUMNS)))
        a, b, *more = self._context.arena.given(slot)
        others = [one.expand(problem.m, problem.n)[rows][:, columns] for one in more]  # whatever broadcasts
        given = [a[rows], b[columns] if problem.layout == "tn" else b[:, columns], *others]
        part = msgspec.structs.replace(problem, m=len(rows), n=len(columns))
        check_closely(self._results[0][slot - batch.first][rows][:, columns], given, part, self.rounding)

    def watched(self) -> bool:
        """Where no batch has a later call that could give its author away, there is nothing to watch. Else it must have
        been half as often as the baseline could be: who is watched more seldom chooses when."""
        enough = max(min(WATCHED, self._context.config.max_pairs), self._alike / 2)
        return not self._changes or self._watched >= enough


def _drawn(size: int, most: int) -> list[int]:
    return sorted(secrets.SystemRandom().sample(range(size), min(size, most)))


@threads(1)
def pair(
    candidate: Side,
    baseline: Side,
    context: TimingContext,
    name: str,
    baseline_seconds: float,
    refer: Refer | None = None,
) -> Timing:
    """Time `candidate` against `baseline` (called `name`, about `baseline_seconds` a call); its outputs are compared
    with the baseline's, or with what `refer` leaves in their place.

    Raises CandidateFailed, and Disturbed where the baseline's threads were kept from running in most batches. A
    candidate's threads are not asked: it may have so many that they keep one another waiting.
    """
    sides = CpuSides(candidate, baseline, context, baseline_seconds, refer)
    found = measure(sides, context.config, name, "device")
    check_ours(statistics.median(sides.waited), name, context.config)
    return found


@threads(1)
def fastest_seconds(side: Side, context: TimingContext, batches: int = BASELINE_BATCHES) -> float:
    """Seconds a call of one side alone in the fastest of so many batches: whatever disturbs only adds.

    Raises Disturbed where its threads were kept from running in all of these.
    """
    first, batch = context.slots.start, context.config.batch_ms / 1e3
    context.fill(first, 1)
    fastest = min(side.run(first, 1) for _ in range(GUESSES))
    waited = []
    for _ in range(batches):
        # As in pairs: on slots that others wrote last. A single call is told mostly by what waking up takes, so the
        # first batches are short.
        calls = timing.calls_for(fastest, batch, context.most)
        first = next_start(first, calls, context.slots)
        context.wake(side, fastest)
        context.fill(first, calls)
        context.poison(first, calls)
        fastest = min(fastest, side.run(first, calls) / calls)
        waited.append(side.waited)
        first += calls
    check_ours(min(waited), "a baseline", context.config)
    return fastest
