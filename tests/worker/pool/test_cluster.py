"""The pool on a Ray cluster of this machine: a head that judges nothing, and nodes that come, die and differ."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import msgspec
import pytest
from naive import NAIVE
from processes import below, names, wait_for
from thorough import some

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault
from cudal2.worker.pool.pool import Pool, check
from cudal2.worker.worker import Worker

pytestmark = pytest.mark.parts
KERNELS = Path(__file__).parents[1] / "kernels"


class Nodes:
    """A cluster whose nodes have addresses of the loopback network, each with one processor to give."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self.few = {"object_store_memory": 80_000_000, "temp_dir": folder}
        head = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False, **self.few}
        self.cluster, self.count = Cluster(initialize_head=True, head_node_args=head), 2

    def add(self, **options):
        self.count += 1
        return self.cluster.add_node(node_ip_address=f"127.0.0.{self.count}", **{"num_cpus": 1, **self.few, **options})

    def kill(self, *nodes) -> None:
        for node in nodes:
            self.cluster.remove_node(node, allow_graceful=False)
        time.sleep(3)  # its actors live on until they notice

    def workers(self) -> set[str]:
        return {"ray::Agent", "runner"} & names(below(os.getpid()))


@pytest.fixture(scope="module")
def nodes():
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)  # where a cluster's address is noted, in a folder that must be there
        (Path(folder) / "ray").mkdir()
        made = Nodes(folder)  # sockets have short paths
        patch.setenv("RAY_ADDRESS", made.cluster.address)
        yield made
        ray.shutdown()
        made.cluster.shutdown()


@pytest.fixture
def two(nodes):
    """The cluster with two nodes that judge, whatever became of those of the test before."""
    while len(nodes.cluster.worker_nodes) < 2:
        nodes.add()
    return list(nodes.cluster.worker_nodes)


@pytest.fixture
def spread(checking) -> WorkerConfig:
    return msgspec.structs.replace(checking, executor="ray")


def candidates(count: int, word: str) -> list[Candidate]:
    return [Candidate(f"{NAIVE}// {word} {i}", Problem(64, 64, 64 * (1 + i % 4))) for i in range(count)]


def used(pool: Pool) -> set[str]:
    return {slot.name for slot in pool._executors}


def test_no_verdict_is_lost_or_doubled_where_nodes_die_and_join(nodes, two, spread, caplog) -> None:
    here = Worker(msgspec.structs.replace(spread, executor="processes")).environment
    wanted, seen = candidates(24, "one"), []

    def progress(candidate, verdict) -> None:
        seen.append(candidate)
        if len(seen) == 5:
            nodes.kill(two[1])

    with Pool(spread) as pool, Pool(msgspec.structs.replace(spread, run_seconds=11)) as second:
        assert pool.environment() == here and pool.width == 2
        verdicts = pool.evaluate([*wanted, wanted[0]], progress)
        assert all(verdict.ok and verdict.environment == here for verdict in verdicts)
        assert [verdict.problem for verdict in verdicts[:-1]] == [candidate.problem for candidate in wanted]
        assert sorted(seen, key=wanted.index) == wanted
        assert caplog.text.count("is lost") == 1 and len(used(pool)) == 1
        assert all(second.evaluate(candidates(2, "two"))), "a second pool shares the first one's device"
        before, added = used(pool), nodes.add()
        assert all(pool.evaluate(candidates(8, "three")))
        assert used(pool) - before == {f"Ray node {added.node_ip_address}"}
        for remote in pool._executors.values():
            remote.agent.end.remote()  # their worker processes
        assert all(pool.evaluate(candidates(4, "four")))

        def kill_all(*_) -> None:
            nodes.kill(*set(nodes.cluster.worker_nodes))

        known: list = []
        with pytest.raises(HarnessFault, match="no node of the Ray cluster"):
            pool.evaluate(candidates(20, "five"), lambda *one: (known.append(one), len(known) == 3 and kill_all()))
        assert 3 <= len(known) < 20 and all(verdict.ok for _, verdict in known)
    assert wait_for(lambda: not nodes.workers(), 10)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_a_node_that_differs_is_left_out_and_named(nodes, two, spread, caplog) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        other = nodes.add()
    finally:
        os.sched_setaffinity(0, cores)
    with Pool(msgspec.structs.replace(spread, threads=0)) as pool:
        for word in ("one", "two"):
            assert all(pool.evaluate(candidates(4, word)))
        assert used(pool) == {f"Ray node {node.node_ip_address}" for node in two}
    nodes.kill(other)
    [warning] = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert other.node_ip_address in warning and f"threads: 1, here {len(cores)}" in warning


JUDGE = """
    import sys
    from cudal2 import interrupt
    from cudal2.config import WorkerConfig
    from cudal2.problem import Problem
    from cudal2.records import Candidate
    from cudal2.worker.pool.pool import Pool
    interrupt.install()
    config = WorkerConfig(executor="ray", cache=sys.argv[1], run_seconds=600, protocols=(), threads=1)
    with Pool(config) as pool:
        pool.evaluate([Candidate(open(sys.argv[2]).read(), Problem(64, 64, 64))])
"""


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGKILL], 2))
def test_whoever_leaves_takes_its_actors_along(nodes, two, tmp_path, number) -> None:
    """Ray has a handler of its own for SIGTERM, which must not stay."""
    script = [sys.executable, "-c", textwrap.dedent(JUDGE), str(tmp_path), str(KERNELS / "loops_forever.cpp")]
    driver = subprocess.Popen(["env", "--default-signal=INT", *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert wait_for(lambda: "runner" in nodes.workers() or driver.poll() is not None)
        assert driver.poll() is None, driver.stderr.read()
        driver.send_signal(number)
        said = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert wait_for(lambda: not nodes.workers(), 60), nodes.workers()
    assert said[0] == b"" and (number == signal.SIGKILL or said[1].strip().endswith(b"KeyboardInterrupt"))


def test_what_is_wrong_with_a_cluster_is_said_in_one_line(nodes, two, spread, monkeypatch) -> None:
    import ray

    def said(target: str = "cpu") -> str:
        with pytest.raises(HarnessFault) as fault, Pool(spread, target) as pool:
            pool.environment()
        assert "\n" not in str(fault.value)
        return str(fault.value)

    assert "has a GPU to give" in said("sm_90a")
    with monkeypatch.context() as patch:
        patch.setattr("cudal2.worker.pool.cluster.harness", lambda: "0.0.9+else")
        assert "0.0.9+else" in said() and "install the same" in said()
    ray.shutdown()
    with monkeypatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.2:9")
        assert "127.0.0.2:9" in said()
    with monkeypatch.context() as patch:
        patch.setattr(ray, "__version__", "2.0.0")
        assert "2.0.0" in said() and "same versions" in said()
    check(spread, "cpu")
