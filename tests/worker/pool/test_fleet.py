"""What a pool does with slots that get lost, come and go, whatever they are; see test_cluster.py for real ones."""

import random
import sys
import threading
from concurrent.futures import BrokenExecutor, Executor, Future

import pytest
import specimens

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault
from cudal2.worker.pool import pool, processes
from cudal2.worker.pool.pool import TRIES, Pool
from cudal2.worker.pool.processes import Lost
from cudal2.worker.worker import Worker


class FakeFleet:
    """Slots by number. `accident` says, for each call, which exception it ends with, if any; Lost takes the slot."""

    def __init__(self, count: int, accident) -> None:
        self.alive, self.accident, self.started = set(range(count)), accident, []
        self.one_at_a_time = threading.Lock()

    def check(self) -> None: ...

    def slots(self):
        if not self.alive:
            raise HarnessFault("none is left", "start one")
        return sorted(self.alive)

    def start(self, slot):
        if slot not in self.alive:
            raise Lost(f"slot {slot}")
        self.started.append(slot)
        return FakeExecutor(self, slot)

    def end(self, *executors) -> None: ...

    def close(self) -> None: ...


class FakeExecutor(Executor):
    def __init__(self, fleet: FakeFleet, slot: int) -> None:
        self.fleet, self.slot = fleet, slot

    def submit(self, function, *arguments) -> Future:
        answer: Future = Future()
        with self.fleet.one_at_a_time:
            error = self.fleet.accident(self.slot, function, *arguments)
            if error is None:
                says = {processes.judge: specimens.verdict, processes.ready: lambda among: among[-1]}
                answer.set_result(says.get(function, lambda *_: specimens.HERE)(*arguments))
            else:
                answer.set_exception(error)
                if isinstance(error, Lost):
                    self.fleet.alive.discard(self.slot)
        return answer


@pytest.fixture
def fleet(monkeypatch):
    monkeypatch.setattr(pool.time, "sleep", lambda _: None)

    def fleet(count, accident=lambda *_: None):
        made = FakeFleet(count, accident)
        monkeypatch.setattr(pool, "_fleet", lambda *_: made)
        return made

    return fleet


def candidates(count: int) -> list[Candidate]:
    return [Candidate(str(number), Problem(64, 64, 64 * (1 + number % 3))) for number in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_lost_each_candidate_has_one_verdict(fleet, seed) -> None:
    rng = random.Random(seed)

    def accident(slot, function, *_):
        chance = rng.random()
        if chance < 0.02 and len(machines.alive) > 1:
            return Lost(f"slot {slot}")
        if chance < 0.04:
            machines.alive.add(100 + rng.randrange(50))
        return BrokenExecutor() if chance > 0.99 else None

    machines = fleet(4, accident)
    wanted, seen = candidates(150), []
    with Pool(WorkerConfig()) as judges:
        found = judges.evaluate(wanted, lambda candidate, verdict: seen.append(candidate))
    assert [verdict and verdict.key for verdict in found] == [candidate.key for candidate in wanted]
    assert sorted(seen, key=wanted.index) == wanted
    assert len(machines.started) > 4


def test_a_candidate_that_takes_its_slot_along_is_given_up(fleet) -> None:
    wanted = candidates(30)

    def accident(slot, function, *arguments):
        return Lost("a slot") if function is processes.judge and arguments[0] == wanted[7] else None

    machines = fleet(6, accident)
    with Pool(WorkerConfig()) as judges:
        found = judges.evaluate(wanted)
        assert [place for place, verdict in enumerate(found) if verdict is None] == [7]
        assert judges.fault is not None and len(machines.alive) == 6 - TRIES


def test_where_no_slot_is_left_what_was_judged_is_known(fleet) -> None:
    seen = []

    def accident(slot, function, *_):
        return Lost("a slot") if function is processes.judge and len(seen) >= 5 else None

    fleet(3, accident)
    with Pool(WorkerConfig()) as judges, pytest.raises(HarnessFault, match="none is left"):
        judges.evaluate(candidates(40), lambda *one: seen.append(one))
    assert len({candidate for candidate, _ in seen}) == len(seen) >= 5 and all(verdict for _, verdict in seen)


def test_slots_that_never_come_to_judging_are_not_tried_for_ever(fleet) -> None:
    def accident(slot, function, *_):
        machines.alive.add(slot + 1)
        return Lost(f"slot {slot}") if function is processes.build else None

    machines = fleet(2, accident)
    with Pool(WorkerConfig()) as judges, pytest.raises(HarnessFault, match="slot"):
        judges.evaluate(candidates(9))


def test_an_environment_is_asked_of_another_slot(fleet) -> None:
    machines = fleet(2, lambda slot, *_: Lost("slot 0") if slot == 0 else None)
    with Pool(WorkerConfig()) as judges:
        assert judges.environment() == specimens.HERE and machines.alive == {1} and judges.width == 1


def test_ray_is_named_where_it_is_missing_and_else_never_asked_for(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with Pool(WorkerConfig(protocols=())) as here:
        assert here.width == 1
    with Pool(WorkerConfig(executor="ray")) as cluster, pytest.raises(HarnessFault, match=r"cudal2\[ray\]"):
        cluster.environment()


def test_what_works_on_this_machine_alone_says_so() -> None:
    with pytest.raises(ValueError, match=r"worker\.executor=ray"):
        Worker(WorkerConfig(executor="ray"))
    with pytest.raises(ValueError, match=r"worker\.devices"):
        WorkerConfig(executor="ray", devices=(0, 1))


def test_an_error_of_the_referees_costs_one_verdict(monkeypatch) -> None:
    class Broken:
        def evaluate(self, candidate: Candidate) -> None:
            raise KeyError("what")

    monkeypatch.setattr(processes, "_worker", Broken())
    with pytest.raises(HarnessFault, match=r"KeyError.*report it"):
        processes.judge(Candidate("text", Problem(8, 8, 8)))
