"""Whatever a pool's worker is doing when the pool's process is killed, nothing outlives it."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from naive import ENDLESS, NAIVE
from processes import below, names, wait_for

from cudal2.worker.pool.lifetime import children
from cudal2.worker.sandbox import jail

BUSY_COMPILER = (
    """
template <int I> constexpr long sum() {
    long s = 0;
    for (int i = 0; i < 50; ++i)
        for (int j = 0; j < 100000; ++j) s += i ^ j ^ I;
    return s;
}
"""
    + "".join(f"constexpr long s{i} = sum<{i}>();\n" for i in range(200))
    + NAIVE
)
PARENT = """
    import sys
    from cudal2.config import WorkerConfig
    from cudal2.problem import parse
    from cudal2.records import Candidate
    from cudal2.worker.pool.pool import Pool
    if __name__ == "__main__":
        limits = dict(compile_seconds=300, run_seconds=300, timing_seconds=0.1, batch_ms=2, min_pairs=3, disturbed=1e3)
        pool = Pool(WorkerConfig(cache=sys.argv[1], jail=sys.argv[2], threads=1, **limits))
        for source in sys.argv[3:]:
            print(pool.evaluate([Candidate(source, parse("64_64_64"))])[0].status, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request) -> str:
    if not jail.works(request.param):
        pytest.skip(f"{request.param} does not work on this machine")
    return request.param


@pytest.fixture
def start(tmp_path, kind):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    started = []

    def parent(*sources: str) -> subprocess.Popen:
        command = [sys.executable, script, tmp_path / "cache", kind, *sources]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
        return started[-1]

    yield parent
    for process in started:
        process.kill()
        process.communicate()


def all_gone(parent: subprocess.Popen, pids: list[int]) -> bool:
    parent.kill()
    parent.wait()
    return wait_for(lambda: not names(pids), 5) and parent.stdout.read() == ""  # and nobody holds the pipe


@pytest.mark.sampled(2)
def test_nothing_outlives_a_killed_parent_that_was_idle(start) -> None:
    """The vendor's process is stopped then, as always between batches."""
    parent = start(NAIVE)
    assert parent.stdout.readline() == "ok\n"
    pids = below(parent.pid)
    assert len(pids) >= 2  # the pool's process and the baselines'
    assert all_gone(parent, pids)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("source", "program"), [(BUSY_COMPILER, "cc1plus"), (ENDLESS, "runner")])
def test_nothing_outlives_a_killed_parent_in_the_middle(start, source, program) -> None:
    parent = start(source)
    assert wait_for(lambda: program in names(below(parent.pid)))
    assert all_gone(parent, below(parent.pid))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", [ENDLESS, pytest.param(BUSY_COMPILER, marks=pytest.mark.slow)])
def test_a_worker_that_is_told_to_leave_takes_all_with_it_and_caches_no_verdict(start, tmp_path, source) -> None:
    parent = start(source)
    program = "runner" if source is ENDLESS else "cc1plus"
    assert wait_for(lambda: program in names(below(parent.pid)))
    worker = next(pid for pid in children(parent.pid) if children(pid))
    pids = below(worker)
    parent.send_signal(signal.SIGSTOP)  # so that it starts no other
    os.kill(worker, signal.SIGTERM)
    assert wait_for(lambda: not names([worker, *pids]), 5)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not [path for path in kept if b'"status"' in path.read_bytes()]
    assert (source is ENDLESS) == any(path.parts[-3] == "builds" for path in kept)
