"""The queue: batches, places that are left, faults, and an archive that is all the state there is."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes import ENVIRONMENT
from processes import wait_for
from served import HeldPool
from specimens import PROBLEM

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.config import RewardConfig, WorkerConfig
from cudal2.records import Candidate, HarnessFault
from cudal2.serving.messages import Refusal
from cudal2.serving.queue import Queue
from cudal2.train.rewards import reward
from cudal2.worker.worker import verdict_key

SECONDS = 20


def origin(number: int, run: str = "s") -> Origin:
    return Origin(kind="serve", run=run, step=number, index=0)


class Behind:
    """A queue with its archive and a pool that may be held."""

    def __init__(self, archive: Archive, worker: WorkerConfig, most: int = 100, batch: int = 64) -> None:
        self.archive, self.pool = archive, HeldPool(worker)
        self.queue = Queue(
            self.pool,
            archive,
            lambda candidate, verdict: reward(verdict, candidate.source, RewardConfig()),
            lambda candidate: verdict_key(candidate, ENVIRONMENT.fingerprint, worker),
            most,
            batch,
        )
        self.raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.queue.work()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.raised.append(error)

    def ask(self, source: str, number: int = 0, run: str = "s"):
        return self.queue.ask(Candidate(source, PROBLEM), origin(number, run))

    def hold(self) -> None:
        """From here on a batch, of one kernel that is named `held`, is under way."""
        self.pool.open.clear()
        self.pool.begun.clear()
        self.held = self.ask("held", 999)
        assert self.pool.begun.wait(SECONDS)

    def end(self) -> None:
        self.pool.open.set()
        self.queue.close()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def archive(tmp_path):
    with Archive.of(tmp_path) as archive:
        yield archive


@pytest.fixture
def behind(archive):
    one = Behind(archive, WorkerConfig())
    yield one
    one.end()


def samples(archive: Archive) -> dict[tuple[str, int], str]:
    found = archive.samples("serve")
    return {(one.origin.run, one.origin.step): archive.source(one.source_hash) for one in found}


def test_what_comes_during_a_batch_is_built_at_once_and_judged_as_the_next(behind):
    behind.hold()
    places = [behind.ask(f"fast {number}", number) for number in range(5)]
    assert behind.pool.ahead_of[1:] == [f"fast {number}" for number in range(5)]
    assert behind.queue.waiting == 5 and not any(place.done() for place in places)
    behind.pool.open.set()
    assert [place.result(SECONDS).verdict.speedup for place in places] == [2.0] * 5
    assert wait_for(lambda: behind.queue.batches == 2, SECONDS)


def test_no_batch_is_larger_than_it_may_be_and_those_who_came_first_are_in_it(archive):
    behind = Behind(archive, WorkerConfig(), batch=2)
    behind.hold()
    places = [behind.ask(f"slow {number}", number) for number in range(5)]
    behind.pool.open.set()
    assert all(place.result(SECONDS) for place in places)
    behind.end()
    assert behind.pool.judged == ["held", *(f"slow {number}" for number in range(5))]
    assert behind.queue.batches == 4


def test_a_kernel_that_many_ask_for_is_judged_once_and_each_sample_is_kept(behind):
    with ThreadPoolExecutor(64) as threads:
        places = list(threads.map(lambda number: behind.ask(f"fast {number % 8}", number), range(64)))
    found = [place.result(SECONDS) for place in places]
    assert sorted(behind.pool.judged) == sorted(f"fast {kind}" for kind in range(8))
    assert samples(behind.archive) == {("s", number): f"fast {number % 8}" for number in range(64)}
    assert {one.verdict.speedup for one in found} == {2.0}
    assert behind.queue.judged + behind.queue.recalled == 64
    assert all(one.origin.reward is not None for one in behind.archive.samples())


def test_a_client_that_leaves_loses_its_place_and_nobody_elses(behind):
    behind.hold()
    gone, stays, alone = behind.ask("fast", 1), behind.ask("fast", 2), behind.ask("slow", 3)
    behind.queue.leave(gone)
    behind.queue.leave(alone)
    behind.pool.open.set()
    assert stays.result(SECONDS).verdict.ok
    behind.end()
    assert behind.pool.judged == ["held", "fast"] and not gone.done() and behind.queue.left == 2
    assert ("s", 2) in samples(behind.archive) and ("s", 1) not in samples(behind.archive)


def test_what_is_under_way_when_its_client_leaves_is_archived(behind):
    behind.hold()
    behind.queue.leave(behind.held)
    behind.pool.open.set()
    behind.held.result(SECONDS)
    assert samples(behind.archive) == {("s", 999): "held"} and behind.queue.left == 0


def test_a_fault_reaches_those_who_asked_for_it_and_leaves_no_trace(behind):
    behind.hold()
    lost, fine = behind.ask("fault", 1), behind.ask("fast", 2)
    behind.pool.open.set()
    assert fine.result(SECONDS).verdict.ok
    with pytest.raises(HarnessFault, match="the device is lost"):
        lost.result(SECONDS)
    with pytest.raises(HarnessFault, match="the device is lost"):  # nothing but faults in the batch
        behind.ask("fault again", 3).result(SECONDS)
    assert behind.ask("slow", 4).result(SECONDS).verdict.ok
    assert set(samples(behind.archive)) == {("s", 999), ("s", 2), ("s", 4)}


def test_a_full_queue_takes_nobody_and_goes_on(archive):
    behind = Behind(archive, WorkerConfig(), most=2)
    behind.hold()
    places = [behind.ask("fast", 1), behind.ask("slow", 2)]
    with pytest.raises(Refusal, match="2 requests wait already") as refused:
        behind.ask("bug", 3)
    assert (refused.value.code, refused.value.pause) == (503, 1)
    behind.pool.open.set()
    assert all(place.result(SECONDS) for place in places) and behind.ask("bug", 4).result(SECONDS)
    behind.end()


def test_whoever_waits_when_the_server_ends_is_told_so(behind):
    behind.hold()
    waits = behind.ask("fast", 1)
    behind.queue.close()
    with pytest.raises(Refusal, match="stopping"):
        waits.result(SECONDS)
    with pytest.raises(Refusal, match="stopping"):
        behind.ask("slow", 2)
    behind.pool.open.set()
    assert behind.held.result(SECONDS).verdict.ok  # it was under way


def test_ctrl_c_within_a_batch_keeps_what_was_judged_and_tells_the_rest(behind):
    behind.hold()
    places = [behind.ask(text, number) for number, text in enumerate(("fast", "interrupt", "slow"))]
    behind.pool.open.set()
    assert places[0].result(SECONDS).verdict.ok
    for place in places[1:]:
        with pytest.raises(Refusal, match="stopping"):
            place.result(SECONDS)
    behind.end()
    assert isinstance(behind.raised[0], KeyboardInterrupt)
    assert samples(behind.archive) == {("s", 999): "held", ("s", 0): "fast"}


def test_what_was_judged_before_is_recalled_by_another_server(archive):
    first = Behind(archive, WorkerConfig())
    places = [first.ask(text, number) for number, text in enumerate(("fast", "bug", "clock"))]
    before = [place.result(SECONDS) for place in places]
    first.end()
    second = Behind(archive, WorkerConfig())
    after = [second.ask(text, number, "t").result(SECONDS) for number, text in enumerate(("fast", "bug", "clock"))]
    second.end()
    assert [one.recalled for one in after] == [True, True, False]  # a clock may say something else now
    assert [one.verdict for one in after] == [one.verdict for one in before]
    assert second.pool.judged == ["clock"] and len(samples(archive)) == 6


def test_a_verdict_reached_with_other_settings_is_not_recalled(archive):
    first = Behind(archive, WorkerConfig())
    first.ask("fast").result(SECONDS)
    first.end()
    stricter = Behind(archive, WorkerConfig(min_pairs=9))
    assert not stricter.ask("fast").result(SECONDS).recalled
    stricter.end()
    again = Behind(archive, WorkerConfig())  # and the later one does not hide it
    assert again.ask("fast").result(SECONDS).recalled
    again.end()


def test_a_request_that_is_made_again_is_one_sample(behind):
    for _ in range(2):
        behind.ask("fast", 7).result(SECONDS)
    assert samples(behind.archive) == {("s", 7): "fast"} and behind.pool.judged == ["fast"]
