"""Every kernel in `kernels/` gets the verdict its first line expects, and leaves the worker fit for the next.

The first lines of a kernel say what it is and what must come of it:

    // expect: status [status…]   what the verdict may be
    // reason: words              which the reason must hold
    // problem: name [name…]      other problems than PROBLEM, on each of which that must come of it
    // target: sm_90a             the one target it compiles for; any CUDA target otherwise
    // stage: source|build|gate   found out before anything is launched; the source, the compiler or the gate tells
    // below: 1                   where the verdict is ok, the greatest speedup it may claim
    // protocols: device offline server   timed on the host's clock too

Without a GPU every kernel is taken as far as one need not be there: to the verdict of those with a stage, and through
the gate all others, so that a run on a GPU is not spent on kernels that do not compile.

On a GPU a kernel takes about a second, one that runs into a limit several. So `-m "gpu and not slow"` judges those that
are found out on the device alone, and of those that never end one of each kind; `-m gpu` judges all. `--durations=20`
says what takes long.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache as memoise
from pathlib import Path

import pytest
from heading import directive
from thorough import some
from toolkit import needs_toolkit

from cudal2.completion import SourceRejected, check_source
from cudal2.config import WorkerConfig
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Status
from cudal2.target import find
from cudal2.worker.build import LOG_BYTES
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, gate
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

KERNELS = sorted((Path(__file__).parent / "kernels").glob("*.cu"))
PROBLEM = "264_200_328_tn_f32"
"""No size is a multiple of a tile's, so that every edge is there."""
TARGET = "sm_90a"
COMPILE_SECONDS = 20.0
RUN_SECONDS = 4.0
"""What every process that runs a candidate may take: a context is made in one, beside compilers in two."""
ENDLESS = ("deadlock", "loops_forever", "loops_in_launcher")
"""Of the kernels that run into that limit, one for each process that must be ended, and one that blocks the device."""
DEVICE, ALL = ("device",), ("device", "offline", "server")


def expected(text: str) -> list[Status]:
    return [Status(word) for word in directive(text, "expect").split()]


def problems_of(text: str) -> list[Problem]:
    return [parse(name) for name in directive(text, "problem", PROBLEM).split()]


def cases(paths: list[Path], marks: Callable[[Path], tuple[pytest.MarkDecorator, ...]]) -> list[object]:
    """Every kernel on each of its problems, which is named where there are several."""
    found = []
    for path in paths:
        problems = problems_of(path.read_text())
        for problem in problems:
            name = path.stem if len(problems) == 1 else f"{path.stem}-{problem.name}"
            found.append(pytest.param(path, problem, id=name, marks=marks(path)))
    return found


def protocols_of(text: str) -> tuple[str, ...]:
    return ALL if directive(text, "protocols") else DEVICE


def early(text: str, problem: Problem, cache: Cache, kind: jail.Kind) -> tuple[Status | None, str, str]:
    """The verdict before anything is launched, with its reason and log; no status where the kernel may be launched."""
    target = find(TARGET)
    try:
        check_source(text, target)
    except SourceRejected as rejected:
        return Status.REJECTED, str(rejected), ""
    endless = Status.COMPILE_TIMEOUT in expected(text)
    seconds = 3.0 if endless else COMPILE_SECONDS
    built = build.build(text, target, cache, kind, seconds, problem=problem)
    if built.status is not Status.OK:
        return built.status, built.log, built.log
    fatal = [finding for finding in gate.inspect(built, problem, cache, kind) if finding.fatal]
    if fatal:
        return fatal[0].status, f"{fatal[0].name}: {fatal[0].detail}", built.log
    return None, "", built.log


def _may_be_slow(path: Path) -> tuple[pytest.MarkDecorator, ...]:
    """A second or two for each kernel adds up; those that reach the GPU and those that run into the limit are slow."""
    text = path.read_text()
    quick = directive(text, "stage") and Status.COMPILE_TIMEOUT not in expected(text)
    return () if quick or path.stem == "naive" else (pytest.mark.slow,)


def _tried(paths: list[Path]) -> list[Path]:
    """Without a GPU little is seen of those that reach one, but that nothing speaks against them: one of sixteen."""
    slow = [path for path in paths if _may_be_slow(path)]
    left_out = set(slow) - set(some(slow, 16))
    return [path for path in paths if path not in left_out or Status.COMPILE_TIMEOUT in expected(path.read_text())]


def _may_be_slow_on_a_gpu(path: Path) -> tuple[pytest.MarkDecorator, ...]:
    """What another test finds out without a GPU, and what waits for a limit, is slow there."""
    text = path.read_text()
    waits = Status.TIMEOUT in expected(text) and path.stem not in ENDLESS
    return (pytest.mark.slow,) if directive(text, "stage") or waits else ()


def _order(path: Path) -> tuple[bool, bool]:
    """Kernels that are timed on the host's clock come last, when nothing is compiled any more."""
    text = path.read_text()
    return protocols_of(text) == ALL, bool(directive(text, "stage"))


@pytest.fixture(scope="module")
def kind() -> jail.Kind:
    needs_toolkit()
    return jail.choose("auto")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_directives_are_understood(path: Path) -> None:
    text = path.read_text()
    assert expected(text) and problems_of(text)
    assert directive(text, "stage", "gate") in ("source", "build", "gate")
    assert directive(text, "target", TARGET) == TARGET
    assert tuple(directive(text, "protocols", "device").split()) == protocols_of(text)
    assert Status.OK not in expected(text) or "Control" in text or directive(text, "below")


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("path", "problem"), cases(_tried(KERNELS), _may_be_slow))
def test_before_any_launch(path: Path, problem: Problem, cache: Cache, kind: jail.Kind) -> None:
    text = path.read_text()
    status, reason, log = early(text, problem, cache, kind)
    if stage := directive(text, "stage"):
        assert status in expected(text), (status, reason)
        assert stage != "source" or not log, "the compiler was asked"
        assert directive(text, "reason") in reason
    else:
        assert status is None, (status, reason)
    assert len(log) <= LOG_BYTES
    assert "root:" not in log + reason


@pytest.fixture(scope="module")
def device_target(kind: jail.Kind) -> str:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from cudal2.target import for_capability

    return for_capability(*torch.cuda.get_device_capability()).name


@pytest.fixture(scope="module")
def worker_of(device_target: str, tmp_path_factory, request):
    """The worker of some protocols, made when it is first asked for. The first begins to build all that will be judged,
    on all cores; they share what is built, and the baselines' times."""
    with ExitStack() as stack:
        cache = str(tmp_path_factory.mktemp("verdicts"))

        @memoise
        def made(protocols: tuple[str, ...]) -> Worker:
            config = WorkerConfig(
                cache=cache,
                compile_seconds=COMPILE_SECONDS,
                run_seconds=RUN_SECONDS,
                timing_seconds=0.2,
                min_pairs=3,
                disturbed=1e3,
                protocols=protocols,  # type: ignore[arg-type]
                host_calls=20,
            )
            return stack.enter_context(Worker(config, target=device_target))

        judged = [item.callspec.params for item in request.session.items if _judges(item)]
        texts = [(given["path"].read_text(), given["problem"]) for given in judged]
        ours = [(text, on) for text, on in texts if directive(text, "target", device_target) == device_target]
        made(DEVICE).begin_building([Candidate(text, on, device_target) for text, on in ours])
        yield made


def _judges(item: pytest.Item) -> bool:
    return getattr(item, "originalname", "") == test_verdict.__name__


@pytest.mark.gpu
@pytest.mark.parametrize(("path", "problem"), cases(sorted(KERNELS, key=_order), _may_be_slow_on_a_gpu))
def test_verdict(worker_of: Callable[..., Worker], device_target: str, path: Path, problem: Problem) -> None:
    text = path.read_text()
    if directive(text, "target", device_target) != device_target:
        pytest.skip(f"written for {directive(text, 'target')}, the device is {device_target}")
    verdict = worker_of(protocols_of(text)).evaluate(Candidate(text, problem, device_target))
    assert verdict.status in expected(text), (verdict.reason, verdict.log)
    assert directive(text, "reason") in verdict.reason
    assert bool(verdict.timings) == verdict.ok
    assert not verdict.ok or {timing.protocol for timing in verdict.timings} == set(protocols_of(text))
    if verdict.ok and (below := directive(text, "below")):
        # Far below in truth: what bounds it is a lie about time or work, not noise.
        assert verdict.speedup < float(below)
    assert len(verdict.log) <= LOG_BYTES
    assert "root:" not in verdict.log + verdict.reason


@pytest.mark.gpu
@pytest.mark.parametrize("protocols", [DEVICE, ALL], ids=len)
def test_worker_is_fit_afterwards(worker_of: Callable[..., Worker], device_target: str, protocols) -> None:
    """Judged last: whatever came before, an honest kernel is still right."""
    text = (Path(__file__).parent / "kernels" / "mma.cu").read_text()
    verdict = worker_of(protocols).evaluate(Candidate(text + "// once more\n", parse(PROBLEM), device_target))
    assert verdict.ok, verdict.reason


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ahead_in_output", "ahead_in_workspace"])
def test_work_done_ahead_shows_in_long_f16_sums_too(worker_of: Callable[..., Worker], device_target: str, name) -> None:
    """There the bounds of single elements are wider than what a changed element moves."""
    text = (Path(__file__).parent / "kernels" / f"{name}.cu").read_text()
    verdict = worker_of(DEVICE).evaluate(Candidate(text, parse("64_64_8192_tn_f16"), device_target))
    assert verdict.status in expected(text), verdict.reason
