"""`cudal2 serve` over a pool without a compiler, in this process or, as a script, in one of its own to be killed:
`python served.py LOG OVERRIDE…` appends the source of each kernel that it judges to LOG.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from fakes import ENVIRONMENT, FakePool, verdict

from cudal2 import judging
from cudal2.archive import Archive
from cudal2.config import ServeConfig, load
from cudal2.records import Candidate, HarnessFault, Status, Verdict
from cudal2.serving.client import Client
from cudal2.serving.server import Server, run
from cudal2.serving.service import Service
from cudal2.worker.cache import verdict_key


class HeldPool(FakePool):
    """Judges as the fake pool does, under the keys that a worker would use; what says `fault` gets no verdict, and what
    says `clock` a timeout. `judged` are the sources in order, `ahead_of` what was to be built. While `open` is not set
    it judges nothing. Each kernel takes `seconds`."""

    def __init__(self, config: Any, target: str = "cpu", seconds: float = 0.0, log: Path | None = None) -> None:
        super().__init__(config, target)
        self.config, self.seconds, self.said = config, seconds, log
        self.judged: list[str] = []
        self.ahead_of: list[str] = []
        self.begun, self.open = threading.Event(), threading.Event()
        self.open.set()

    def ahead(self, candidates) -> None:
        self.ahead_of += [candidate.source for candidate in candidates]

    def _one(self, candidate: Candidate) -> Verdict | None:
        self.begun.set()
        assert self.open.wait(30)
        time.sleep(self.seconds)
        self.judged.append(candidate.source)
        if self.said:
            with self.said.open("a") as file:
                file.write(f"{candidate.source}\n")
        if "fault" in candidate.source:
            self.fault = HarnessFault("the device is lost", "Plug it in")
            return None
        if "interrupt" in candidate.source:
            raise KeyboardInterrupt
        found = verdict(candidate)
        if "clock" in candidate.source:
            found = msgspec.structs.replace(found, status=Status.TIMEOUT, timings=())
        return msgspec.structs.replace(found, key=verdict_key(candidate, ENVIRONMENT.fingerprint, self.config))


class Serving:
    """A server in this process, with all that is behind it."""

    def __init__(self, config: ServeConfig, pool: HeldPool, archive: Archive, server: Server, service: Service) -> None:
        self.config, self.pool, self.archive, self.server, self.service = config, pool, archive, server, service
        self.queue = service.queue

    def client(self, **options: Any) -> Client:
        return Client(self.server.url, **options)

    @property
    def samples(self) -> dict[tuple[str, int], str]:
        """The source of each sample in the archive, by session and number."""
        found = self.archive.samples("serve")
        return {(one.origin.run, one.origin.step): self.archive.source(one.source_hash) for one in found}


@contextlib.contextmanager
def serving(folder: Path, *overrides: str, token: str = "", seconds: float = 0.0) -> Iterator[Serving]:
    """A server in threads of this process, ended afterwards."""
    config = load("serve", [f"run={folder / 'run'}", "port=0", *overrides], ServeConfig)
    pool = HeldPool(config.worker, seconds=seconds)
    with Archive.of(config.run) as archive, Server(config, token) as server:
        service = Service(config, pool, archive)  # type: ignore[arg-type]
        worker = threading.Thread(target=service.queue.work, daemon=True)
        worker.start()
        server.begin(service)
        try:
            yield Serving(config, pool, archive, server, service)
        finally:
            pool.open.set()
            service.queue.close()
            server.end()
            worker.join(30)
            assert not worker.is_alive()


if __name__ == "__main__":

    class Logged(HeldPool):
        def __init__(self, config: Any, target: str) -> None:
            super().__init__(config, target, 0.01, Path(sys.argv[1]))

    judging.Pool = Logged  # type: ignore[misc,assignment]
    run(load("serve", sys.argv[2:], ServeConfig), lambda server: print(server.url, flush=True))
