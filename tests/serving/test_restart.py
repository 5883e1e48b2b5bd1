"""kill -9 and start again: nothing judged is lost, nothing is counted twice, and no client notices but by waiting."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hasty
import pytest
import served
from processes import below, names, wait_for
from thorough import only_thorough

from cudal2.archive import Archive
from cudal2.serving.client import Client, NoService

PROBLEM = "64_128_256"
pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Command:
    """A server in a process of its own, ready for clients."""

    def __init__(self, *words: object) -> None:
        words = ("env", "--default-signal=INT", sys.executable, *words)
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(list(map(str, words)), **both)
        assert self.process.stdout
        self.said = self.process.stdout.readline()
        assert "http://" in self.said, self.process.communicate()

    def kill(self) -> None:
        pids = below(self.process.pid)
        self.process.kill()
        self.process.communicate()
        assert wait_for(lambda: not names(pids), 15), names(pids)


def samples(run: Path) -> dict[tuple[str, int], str]:
    with Archive.of(run, create=False) as archive:
        assert archive.rows("PRAGMA integrity_check") == [("ok",)]
        return {(one.origin.run, one.origin.step): archive.source(one.source_hash) for one in archive.samples("serve")}


@only_thorough
def test_killed_again_and_again_it_goes_on(tmp_path):
    """Eight clients ask for thirty kernels each, of a pool that takes 10 ms for one; the server is killed thrice."""
    port, log = free_port(), tmp_path / "judged"
    words = (served.__file__, log, f"run={tmp_path / 'run'}", f"port={port}")
    server, kept = Command(*words), {}

    def one(number: int) -> dict[tuple[str, int], str]:
        client = Client(f"http://127.0.0.1:{port}", patience=60)
        sources = [f"fast {number if turn % 3 else ''} {turn}" for turn in range(30)]
        for source in sources:
            assert client.source(PROBLEM, source).metrics["speedup"] == 2.0
        return {(client.session, turn): source for turn, source in enumerate(sources)}

    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(one, number) for number in range(8)]
        for _ in range(3):
            there = len(kept)
            assert wait_for(lambda there=there: log.exists() and len(log.read_text().split("\n")) > there + 20, 60)
            server.kill()
            found = samples(tmp_path / "run")
            assert kept.items() <= found.items()
            kept = found
            server = Command(*words)
        wanted = dict(pair for client in clients for pair in client.result(120).items())
    server.kill()
    assert samples(tmp_path / "run") == wanted and len(wanted) == 240
    judged = Counter(log.read_text().splitlines())
    assert set(judged) == set(wanted.values())
    assert sum(judged.values()) - len(judged) <= 3  # each kill may cost the kernel that was under way


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_and_clients_are_told(tmp_path, number):
    log = tmp_path / "judged"
    words = ("-c", f"import sys; sys.argv[1:1] = [{str(log)!r}]; {SLOW}", f"run={tmp_path / 'run'}", "port=0")
    server = Command(*words)
    url = server.said.split()[0]
    told: list[str] = []

    def ask() -> None:
        try:
            Client(url).source(PROBLEM, "fast")
        except NoService as error:
            told.append(str(error))

    asks = threading.Thread(target=ask)
    asks.start()
    assert wait_for(lambda: Client(url).health()["judging"] == 1, 30)
    began = time.monotonic()
    os.kill(server.process.pid, number)
    asks.join(20)
    assert server.process.wait(20) == 128 + number and time.monotonic() - began < 10
    assert "stopping" in told[0] and "Traceback" not in server.process.stderr.read()


SLOW = f"""
sys.path[:0] = {[str(Path(served.__file__).parent), *filter(None, sys.path)]!r}
import served, threading
from cudal2 import cli, judging
class Slow(served.HeldPool):
    def __init__(self, config, target):
        super().__init__(config, target)
    def _one(self, candidate):
        threading.Event().wait(60)
judging.Pool = Slow
sys.argv[1:2] = ["serve"]
sys.exit(cli.main())
"""


def test_64_clients_of_the_real_judge_and_a_kill(tmp_path):
    """Each asks for kernels of its own and for common ones, right ones and wrong ones; halfway the server is killed."""
    folder, port = Path(__file__).parents[1] / "worker" / "kernels", free_port()
    where = [f"run={tmp_path / 'run'}", f"worker.cache={tmp_path / 'cache'}", f"port={port}"]
    words = ("-m", "cudal2.cli", "serve", *where, *hasty.HASTY)
    right, wrong = ((folder / name).read_text() for name in ("openmp.cpp", "zero.cpp"))
    server = Command(*words)

    def one(number: int) -> dict[tuple[str, int], str]:
        client = Client(f"http://127.0.0.1:{port}", patience=300)
        own = right.replace("hgemm(", f"/* {number % 16} */ hgemm(")
        found = [client.source("64_64_64", own), client.completion("64_64_64", f"```cpp\n{wrong}\n```")]
        assert [one.status for one in found] == ["ok", "wrong"] and found[0].reward >= 0 > found[1].reward
        return {(client.session, 0): own, (client.session, 1): wrong.strip() + "\n"}

    with ThreadPoolExecutor(64) as threads:
        clients = [threads.submit(one, number) for number in range(64)]
        assert wait_for(lambda: Archive.file(tmp_path / "run").exists() and len(samples(tmp_path / "run")) > 8, 200)
        server.kill()
        before = samples(tmp_path / "run")
        server = Command(*words)
        wanted = dict(pair for client in clients for pair in client.result(400).items())
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 130
    found = samples(tmp_path / "run")
    assert before.items() <= found.items() and found == wanted
    with Archive.of(tmp_path / "run") as archive:
        times = Counter(source for (source,) in archive.rows("SELECT source FROM verdicts"))
    assert len(times) == 17 and set(times.values()) == {1}
