"""Every kernel in `kernels/` gets the verdict its first line expects, and leaves the worker fit for the next.

Where that may be ok, `below` is the greatest speedup it may claim, of a worker that refuses to time on a busy machine,
where the library may take a hundred times as long.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from heading import directive
from thorough import some

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.worker.measurement import Disturbed
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

KERNELS = sorted((Path(__file__).parent / "kernels").glob("*.cpp"))
PROBLEM = "128_96_160_tn_f32"
JAILS = ("bubblewrap", "landlock")
BUILDING = {"rejected", "compile_error", "compile_timeout"}


@contextmanager
def _worker(kind: str, cache: Path, builds: Path | None = None, disturbed: float = 1e3) -> Iterator[Worker]:
    if builds:
        (cache / "builds").symlink_to(builds)
    config = WorkerConfig(
        cache=str(cache),
        jail=kind,
        compile_seconds=4,
        run_seconds=2,
        memory_mib=1024,
        timing_seconds=0.1,
        batch_ms=8,  # so that a batch has many calls on a busy machine too: some lie between the calls of one batch
        min_pairs=10,  # whoever cheats in some batches only is met in one; a user's worker looks for longer
        disturbed=disturbed,
    )
    with Worker(config) as worker:
        yield worker


@pytest.fixture(scope="module")
def builds(tmp_path_factory) -> Path:
    """What is built behind one jail and runs behind the other, too."""
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="module", params=JAILS)
def worker_of(request, tmp_path_factory, builds) -> Iterator[Callable[[Path], Worker]]:
    """The worker for a kernel. One that is to end while it is built is built behind this jail; all others are built
    once for both."""
    if not jail.works(request.param):
        pytest.skip(f"{request.param} does not work on this machine")
    first, second = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("cache")
    with _worker(request.param, first) as building, _worker(request.param, second, builds) as running:
        yield lambda path: building if BUILDING & set(directive(path.read_text(), "expect", "").split()) else running


@pytest.fixture(scope="module")
def timing_worker(tmp_path_factory):
    """Behind the first jail that works: what is seen of timed calls has nothing to do with the jail."""
    with _worker(next(filter(jail.works, JAILS)), tmp_path_factory.mktemp("cache")) as worker:
        yield worker


@pytest.fixture(scope="module")
def wary_worker(tmp_path_factory):
    """Like it, for those whose figures are looked at."""
    with _worker(next(filter(jail.works, JAILS)), tmp_path_factory.mktemp("cache"), disturbed=1.6) as worker:
        yield worker


def _timed(path: Path) -> bool:
    """Whether its timed calls are to be seen: it has all processors. Most are found out by a first call."""
    text = path.read_text()
    return "ok" in directive(text, "expect", "") or "timed" in directive(text, "reason", "")


TIMED = [path for path in KERNELS if _timed(path)]
MODEST = [path for path in TIMED if directive(path.read_text(), "below", "")]


def kernels(paths: Sequence[Path]) -> pytest.MarkDecorator:
    """Those that say `// slow: WHY` are judged with the slow tests."""
    slow = {path: [pytest.mark.slow] if directive(path.read_text(), "slow", "") else [] for path in paths}
    return pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=slow[path]) for path in paths])


@pytest.mark.sampled(8)
@kernels([path for path in KERNELS if path not in TIMED])
def test_verdict(worker_of: Callable[[Path], Worker], path: Path) -> None:
    check(worker_of(path), path)


@pytest.mark.sampled(5)
@pytest.mark.alone
@kernels([path for path in TIMED if path not in MODEST])
def test_verdict_on_timed_calls(timing_worker: Worker, path: Path) -> None:
    check(timing_worker, path)


@pytest.mark.alone
@kernels(MODEST)
def test_who_may_be_right_claims_no_speed(wary_worker: Worker, path: Path) -> None:
    try:
        check(wary_worker, path)
    except Disturbed as disturbed:
        pytest.skip(str(disturbed))


@pytest.mark.slow
@pytest.mark.alone
@kernels(some(TIMED, 8))
def test_verdict_on_timed_calls_in_either_jail(worker_of: Callable[[Path], Worker], path: Path) -> None:
    """A sample: what is seen of them has nothing to do with the jail."""
    check(worker_of(path), path)


def check(worker: Worker, path: Path) -> None:
    text = path.read_text()
    verdict = worker.evaluate(Candidate(text, parse(directive(text, "problem", PROBLEM))))
    assert verdict.status in directive(text, "expect", "").split(), (verdict.reason, verdict.log)
    assert verdict.ok or directive(text, "reason", "") in verdict.reason
    if worker.config.disturbed < 10:
        assert not verdict.ok or verdict.speedup < float(directive(text, "below", "inf"))
    assert bool(verdict.timings) == verdict.ok
    assert len(verdict.log) <= 4000
    assert "root:" not in verdict.log + verdict.reason


@pytest.mark.alone
def test_worker_is_fit_afterwards(timing_worker: Worker) -> None:
    """Judged last: whatever came before, an honest kernel is still right."""
    text = (Path(__file__).parent / "kernels" / "openmp.cpp").read_text()
    verdict = timing_worker.evaluate(Candidate(text + "// once more\n", parse(PROBLEM)))
    assert verdict.ok, verdict.reason
