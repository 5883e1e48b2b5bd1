"""The queue before the judge: many ask at once, one batch at a time is judged.

A pool can evaluate only once at a time, so one thread (`work`) takes what waits as a batch. What comes meanwhile is
built ahead. The archive is the state: a kernel that it knows is not judged again, and after a kill nothing else is
needed to go on.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.judging import judge
from cudal2.records import CLOCKED, Candidate, HarnessFault, Verdict
from cudal2.serving.messages import Refusal
from cudal2.worker.pool.pool import Pool

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """A verdict, and whether it was reached earlier."""

    verdict: Verdict
    recalled: bool


Asked = tuple[Candidate, Origin]
Place = Future[Found]
"""One client's place in the queue; it holds the verdict in the end, a HarnessFault, or a Refusal."""


class Queue:
    """At most `most` requests wait, and at most `batch` are judged together.

    `key` gives the key that a verdict on a candidate has here and now (`Worker.key`): an archived one counts only if it
    has the same. `reward` is archived with each sample. `ask` and `leave` may be called from any thread.
    """

    def __init__(
        self,
        pool: Pool,
        archive: Archive,
        reward: Callable[[Candidate, Verdict], float],
        key: Callable[[Candidate], str],
        most: int,
        batch: int,
    ) -> None:
        self.pool, self.archive, self.reward, self.key = pool, archive, reward, key
        self.most, self.batch = most, batch
        self.judging = self.judged = self.recalled = self.left = self.batches = 0
        self._waiting: dict[Place, Asked] = {}
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many requests wait for a batch."""
        return len(self._waiting)

    def ask(self, candidate: Candidate, origin: Origin) -> Place:
        """A place for this candidate; its verdict is there at once if the archive has it.

        Raises Refusal where the queue is full or closed.
        """
        place = Place()
        if self._closed:
            raise stopping()
        if self._recall(place, candidate, origin):
            return place
        with self._changed:
            if self._closed:
                raise stopping()
            if len(self._waiting) >= self.most:
                raise Refusal(503, f"{self.most} requests wait already", "Ask again later", pause=1)
            self._waiting[place] = candidate, origin
            self._changed.notify()
        # A pool that is just losing its processes, or told to end, has nobody to build.
        with suppress(RuntimeError, StopIteration):
            self.pool.ahead([candidate])
        return place

    def leave(self, place: Place) -> None:
        """Nobody waits there any more. A kernel whose batch has begun is judged all the same, and archived."""
        with self._changed:
            if self._waiting.pop(place, None):
                self.left += 1

    def work(self) -> None:
        """Judges batch after batch until the queue is closed. What is raised in here, as by Ctrl-C, closes it."""
        try:
            while batch := self._next():
                self._judge(batch)
        finally:
            self.close()

    def close(self) -> None:
        """Whoever waits is told that the server stops, and nobody else is let in."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
            self._changed.notify()
        for place in waiting:
            place.set_exception(stopping())

    def _next(self) -> dict[Place, Asked]:
        """Those who have waited longest; {} once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            chosen = list(self._waiting)[: self.batch]
            return {place: self._waiting.pop(place) for place in chosen}

    def _judge(self, batch: dict[Place, Asked]) -> None:
        places: dict[Candidate, list[Place]] = {}
        asked: list[Asked] = []
        self.judging, started = len(batch), time.monotonic()

        def answer(candidate: Candidate, verdict: Verdict | None) -> None:
            for place in places.pop(candidate):
                self.judging -= 1
                if verdict is None:
                    place.set_exception(self._fault())
                else:
                    self.judged += 1
                    place.set_result(Found(verdict, False))

        try:
            for place, (candidate, origin) in batch.items():
                if not self._recall(place, candidate, origin):  # an earlier batch may have judged it
                    places.setdefault(candidate, []).append(place)
                    asked.append((candidate, origin))
            judge(self.pool, self.archive, asked, answer, self.reward)
        except HarnessFault as fault:
            log.error("a batch of %d has no verdicts: %s", len(asked), fault)
            _fail(batch, fault)
        except BaseException:
            _fail(batch, stopping())
            raise
        finally:
            self.judging, self.batches = 0, self.batches + 1
        log.info("a batch of %d: %d judged, %.1f s", len(batch), len(asked), time.monotonic() - started)

    def _recall(self, place: Place, candidate: Candidate, origin: Origin) -> bool:
        """Whether the archive knows this kernel; if so, the sample joins it and the place has its verdict."""
        verdict = known(self.archive, candidate, self.key(candidate))
        if verdict is None:
            return False
        earned = msgspec.structs.replace(origin, reward=self.reward(candidate, verdict))
        self.archive.add(verdict, candidate, earned)
        with self._changed:
            self.recalled += 1
        place.set_result(Found(verdict, True))
        return True

    def _fault(self) -> HarnessFault:
        return self.pool.fault or HarnessFault("the harness gave no verdict", "Run `cudal2 doctor` on the server")


def known(archive: Archive, candidate: Candidate, key: str) -> Verdict | None:
    """The last verdict that the archive has under this key, except one that a clock decided; None where it has none."""
    rows = archive.rows(
        "SELECT body FROM verdicts WHERE problem = ? AND target = ? AND source = ? AND json_extract(body, '$.key') = ? "
        "ORDER BY id DESC LIMIT 1",
        (candidate.problem.name, candidate.target, candidate.kernel_hash, key),
    )
    found = next((archive.read(body) for (body,) in rows), None)
    return None if found is None or found.status in CLOCKED else found


def stopping() -> Refusal:
    """What those are told who wait while the server ends."""
    return Refusal(503, "the server is stopping", "Ask again once it runs: what was judged is recalled", pause=2)


def _fail(batch: dict[Place, Asked], error: Exception) -> None:
    for place in batch:
        if not place.done():
            place.set_exception(error)
