"""From a source and an edit of it to a verdict, with the GPU's parts replaced by those of test_bench; and on a GPU."""

import fcntl
import hashlib
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import fake_gpu
import msgspec
import pytest
import torch
from fake_gpu import PROBLEM
from heading import directive
from launcher import Four
from toolkit import needs_toolkit

from cudal2.config import WorkerConfig
from cudal2.problem import Problem, parse
from cudal2.records import Binary, Candidate, Edit, HarnessFault, Shift, Status, to_json
from cudal2.target import find
from cudal2.worker.worker import Worker

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda import backend, plan, recipe, unsealing
from cudal2.worker.cuda.compile import build, cubin
from cudal2.worker.gpu.buffers import BASES, draw_base, scattered
from cudal2.worker.sandbox import jail
from tests.worker.cuda.test_bench import KERNEL, RECORDING, RightAtFirst, Runner, judge  # noqa: F401

MASK = (1 << 64) - 1
SOURCE = (Path(__file__).parent / "kernels" / "mma.cu").read_text()


@pytest.fixture
def worker(judge, monkeypatch, tmp_path):  # noqa: F811
    """A worker that builds and inspects in earnest; what a launcher would launch, and the GPU, are made up."""
    needs_toolkit()
    gpu = SimpleNamespace(target=find("sm_90a"), floor=lambda *_: 1e-7, name="a GPU", uuid="fake", multiprocessors=132)
    monkeypatch.setattr(backend.device, "find", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(backend, "CudaBench", lambda *_: judge)
    monkeypatch.setattr(type(judge.vendor), "versions", lambda self: "none", raising=False)
    libraries = []
    monkeypatch.setattr(
        backend.plan, "record", lambda library, *_: libraries.append(library) or to_json(RECORDING).encode()
    )
    loaded, load = [], Runner.load
    monkeypatch.setattr(Runner, "load", lambda self, packed, *to: loaded.append(packed) or load(self, packed, *to))
    with Worker(WorkerConfig(cache=str(tmp_path / "cache")), "sm_90a") as worker:
        worker.loaded, worker.libraries = loaded, libraries  # type: ignore[attr-defined]
        yield worker


def of(worker: Worker, problem: Problem, *moves) -> Candidate:
    """SOURCE with an edit that makes these moves."""
    plain = Candidate(SOURCE, problem, worker.target.name)
    made = worker.backend._build(plain, None)
    edit = cubin.made_for(made.cubin, made.resources[0].kernel, *moves)
    return msgspec.structs.replace(plain, edit=edit)


def test_an_edit_without_moves_is_judged_as_its_source(worker) -> None:
    edited = of(worker, PROBLEM)
    source, same = worker.evaluate(msgspec.structs.replace(edited, edit=None)), worker.evaluate(edited)
    assert not same.cached and source.key != same.key
    assert worker.loaded[0] == worker.loaded[1] and len(worker.libraries) == 1, "what is the same is recorded once"
    assert source.status is same.status is Status.OK, same.reason
    assert same.log == source.log and same.rho == pytest.approx(source.rho, rel=0.1)
    assert same.speedup == pytest.approx(source.speedup, rel=0.02)
    assert worker.evaluate(edited).cached


def test_a_launcher_is_asked_once_for_each_problem(worker) -> None:
    """However often it is judged, by whichever worker; but again where its record is lost."""
    candidate = Candidate(SOURCE, PROBLEM, worker.target.name)
    found = [worker.build(candidate).launchable.recording for _ in range(2)]
    with Worker(worker.config, worker.target.name) as other:
        found.append(other.build(candidate).launchable.recording)
    assert found == 3 * [msgspec.structs.replace(RECORDING, base=found[0].base)] and len(worker.libraries) == 1
    assert found[0].base in BASES
    for stored in Path(worker.config.cache, backend.PLANS).rglob("*"):
        if stored.is_file():
            stored.write_bytes(b"x" * 40)
    again = worker.build(candidate).launchable.recording
    assert again.plans == RECORDING.plans and again.base != found[0].base and len(worker.libraries) == 2


def launching(worker, monkeypatch, parameters) -> None:
    """Have every launcher of the worker record one kernel with these parameters, words of 8 bytes, at each place."""
    shutil.rmtree(Path(worker.config.cache, backend.PLANS), ignore_errors=True)

    def record(library, problem, places, base, *_):
        plans = tuple((msgspec.structs.replace(KERNEL, parameters=parameters(Four(*place))),) for place in places)
        return to_json(plan.Recording(4096, plans)).encode()

    monkeypatch.setattr(backend.plan, "record", record)


def judged(place) -> bool:
    """Whether it is one of the sets' places: those are close together."""
    return place.A < place.workspace < place.A + (1 << 30)


def pointers(*addresses: int) -> tuple[str, ...]:
    return tuple((address & MASK).to_bytes(8, "little").hex() for address in addresses)


def test_what_runs_and_what_is_exported_is_the_edited_cubin(worker, monkeypatch) -> None:
    """With a recipe of its launches; there is none for a launcher that uses addresses otherwise, or that did there."""
    edited = of(worker, PROBLEM, Shift(5, 6))
    plain = worker.build(msgspec.structs.replace(edited, edit=None)).launchable
    launchable = worker.build(edited).launchable
    assert launchable.cubin == cubin.apply(plain.cubin, edited.edit) != plain.cubin
    assert worker.evaluate(edited).ok
    assert launchable.cubin in worker.loaded[-1] and plain.cubin not in worker.loaded[-1]
    assert launchable.cubin in launchable.library and plain.cubin not in launchable.library
    assert worker.libraries[-1] == launchable.library
    launching(worker, monkeypatch, lambda at: pointers(at.A, at.B + 64, at.workspace))
    portable = worker.portable(edited)
    assert portable.code == launchable.cubin
    assert portable.recipe[:12] == (4096).to_bytes(8, "little") + (3).to_bytes(4, "little")
    hosts = msgspec.structs.replace(worker.backend.config, protocols=("device", "offline"))
    monkeypatch.setattr(worker.backend, "config", hosts)
    timed = worker.build(edited).launchable
    assert timed.recipe.endswith(portable.recipe) and not launchable.recipe
    worker.measure(msgspec.structs.replace(timed, recording=RECORDING), PROBLEM)
    assert timed.recipe in worker.loaded[-1]
    for hostile in (lambda at: pointers(at.A >> 8), lambda at: pointers(at.A if judged(at) else at.B)):
        launching(worker, monkeypatch, hostile)
        with pytest.raises(ValueError, match="parameter 0, byte"):
            worker.portable(edited)
        assert not worker.build(edited).launchable.recipe and "host-timed as recorded" in worker.build(edited).log
    with pytest.raises(HarnessFault, match="no longer compiles"):
        worker.portable(msgspec.structs.replace(edited, source="int hgemm(;"))


def exported(worker: Worker, candidate: Candidate, folder: Path) -> Candidate:
    """The candidate with the files that an export of it holds."""
    portable = worker.portable(candidate)
    sealed = recipe.seal(portable.recipe, portable.code, "x.cubin")
    files = []
    for name, content in (("x.cubin", portable.code), ("x.recipe", sealed)):
        (folder / name).write_bytes(content)
        files.append((str(folder / name), hashlib.sha256(content).hexdigest()))
    return msgspec.structs.replace(candidate, binary=Binary(*files))


def test_what_was_exported_is_judged_without_compiler_or_planner(worker, monkeypatch, tmp_path) -> None:
    """Its edited cubin, launched at every set as its launcher would have; the gate looks at it all the same."""
    edited = of(worker, PROBLEM, Shift(5, 6))
    for module in (backend, unsealing):
        monkeypatch.setattr(module, "draw_base", lambda: BASES[99])
    launching(worker, monkeypatch, lambda at: pointers(at.A, at.B + 64, at.workspace))
    built, premade = worker.build(edited), exported(worker, edited, tmp_path)

    def refuse(*_):
        pytest.fail("nothing is to be built or recorded")

    monkeypatch.setattr(backend.build, "build", refuse)
    monkeypatch.setattr(backend.plan, "record", refuse)
    found = worker.build(premade).launchable
    assert (found.cubin, found.recording) == (built.launchable.cubin, built.launchable.recording)
    verdict = worker.evaluate(premade)
    assert verdict.ok and verdict.key != worker.key(edited) and "plan" not in verdict.seconds
    assert found.cubin in worker.loaded[-1] and found.recipe == (tmp_path / "x.recipe").read_bytes()
    fatal = (backend.gate.Finding("clock_read", "it would tell the time"),)
    monkeypatch.setattr(backend.gate, "inspect", lambda *_: fatal)
    assert worker.build(premade).status is Status.REJECTED
    (tmp_path / "x.cubin").write_bytes(b"something else")
    with pytest.raises(HarnessFault, match=r"x\.cubin is damaged"):
        worker.build(premade)
    (tmp_path / "x.cubin").unlink()
    with pytest.raises(HarnessFault, match=r"x\.cubin cannot be read"):
        worker.build(premade)


def test_an_edit_that_does_not_fit_is_rejected_before_anything_runs(worker) -> None:
    fitting = of(worker, PROBLEM)
    for edit, said in (
        (Edit(fitting.edit.kernel, "0" * 64), "another cubin"),
        (msgspec.structs.replace(fitting.edit, moves=(Shift(0, 10**6),)), "outside"),
        (Edit("nobody", fitting.edit.sha256), "nobody"),
    ):
        verdict = worker.evaluate(msgspec.structs.replace(fitting, edit=edit))
        assert (verdict.status, verdict.timings) == (Status.REJECTED, ()) and said in verdict.reason
        assert said in verdict.log
    assert not worker.loaded and not worker.libraries


def test_the_gate_is_asked_again_about_what_an_edit_made(worker, monkeypatch) -> None:
    inspected, edited = [], of(worker, PROBLEM, Shift(5, 6))
    honest = backend.gate.inspect

    def refuse(built, *rest):
        inspected.append(built.cubin)
        found = honest(built, *rest)
        return (backend.gate.Finding("clock_read", "as if the edit had made one"), *found)

    monkeypatch.setattr(backend.gate, "inspect", refuse)
    verdict = worker.evaluate(edited)
    assert verdict.status is Status.REJECTED and "clock_read" in verdict.reason
    assert inspected == [cubin.apply(worker.backend._build(edited, None).cubin, edited.edit)]


class Rounded(fake_gpu.Candidate):
    """Every result off by some units of its last place, as if part of the sum had fewer digits."""

    def multiply(self, number):
        return super().multiply(number) * 1.0005


PUBLISHED = """
void cuda_l2_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  go(a.data_ptr(), b_col_major.data_ptr(), c.data_ptr());
}
"""


def test_how_imprecise_a_published_kernel_is_by_its_instructions_is_measured(worker, monkeypatch) -> None:
    """It stays imprecise whatever is measured, and is not timed. One that is written to the contract ends at the gate.

    What a measurement finds beside that is its verdict.
    """
    gate = (backend.gate.Finding("fp16_accumulate", "HMMA.F16", status=Status.IMPRECISE),)
    monkeypatch.setattr(backend.gate, "inspect", lambda *_: gate)
    monkeypatch.setattr(worker.backend, "_build", lambda *_: build.CudaBuild(Status.OK, b"library", b"cubin"))
    published = Candidate(PUBLISHED, PROBLEM, "sm_90a", "cuda-l2")
    kinds = {Rounded: Status.IMPRECISE, fake_gpu.Candidate: Status.IMPRECISE, RightAtFirst: Status.WRONG}
    for kind, status in kinds.items():
        monkeypatch.setattr(Runner, "kind", kind)
        source = f"{PUBLISHED}// {kind.__name__}"
        verdict = worker.evaluate(msgspec.structs.replace(published, source=source))
        assert (verdict.status, verdict.timings) == (status, ()) and "fp16_accumulate" in verdict.reason
        assert (verdict.rho > 1.05) == (kind is Rounded) and verdict.machine
        assert verdict.repeatable is (True if status is Status.WRONG else None)
    plain = worker.evaluate(Candidate(SOURCE, PROBLEM, "sm_90a"))
    assert (plain.status, plain.rho) == (Status.IMPRECISE, None) and len(worker.loaded) == len(kinds)
    with pytest.raises(HarnessFault, match="no longer compiles"):
        worker.portable(published)


def test_the_compiler_has_more_memory_for_a_published_kernel(worker, monkeypatch) -> None:
    """Some hold many kernels to choose among: of 22 of CUDA-L2's that were tried five wanted more than 8 GiB."""
    allowed: list[int] = []

    def fails(*_, limits, writable, **__) -> int:
        (writable[0] / build.STARTED).touch()
        allowed.append(limits.address_space)
        return 1

    monkeypatch.setattr(build.jail, "run", fails)
    for source, abi in ((SOURCE, "contract"), (PUBLISHED, "cuda-l2")):
        assert worker.evaluate(Candidate(source, PROBLEM, "sm_90a", abi)).status is Status.COMPILE_ERROR
    assert allowed[0] == build.MEMORY < allowed[1]


def test_a_published_kernel_that_times_itself_does_so_alone_on_the_gpu(worker, monkeypatch) -> None:
    """Its first call chooses a kernel by what it measures, while others are measured on the same GPU."""
    monkeypatch.setattr(worker.backend, "_build", lambda *_: build.CudaBuild(Status.OK, b"library", b"cubin"))
    monkeypatch.setattr(backend.gate, "inspect", lambda *_: ())
    alone: list[bool] = []

    def record(*_) -> bytes:
        with (jail.scratch() / f"{worker.backend.lock}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone.append(False)
            except BlockingIOError:
                alone.append(True)
        return to_json(RECORDING).encode()

    monkeypatch.setattr(backend.plan, "record", record)
    for source in (PUBLISHED, PUBLISHED.replace("{", "{ cudaEventElapsedTime(&ms, start, stop);")):
        assert worker.build(Candidate(source, PROBLEM, "sm_90a", "cuda-l2")).status is Status.OK
    assert alone == [False, True]


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from cudal2.target import for_capability

    target = for_capability(*torch.cuda.get_device_capability()).name
    config = WorkerConfig(cache=str(tmp_path_factory.mktemp("cache")), run_seconds=6)
    with Worker(config, target) as worker:
        yield worker


LARGE = Problem(512, 512, 512)


@pytest.mark.gpu
def test_on_a_gpu_an_edit_without_moves_is_as_fast_as_its_source(on_gpu) -> None:
    edited = of(on_gpu, LARGE)
    source, same = on_gpu.evaluate(msgspec.structs.replace(edited, edit=None)), on_gpu.evaluate(edited)
    assert source.ok and same.ok, same.reason
    assert same.speedup == pytest.approx(source.speedup, rel=0.03)


@pytest.mark.gpu
def test_on_a_gpu_an_exported_kernel_is_as_right_and_as_fast_as_its_source(on_gpu, tmp_path) -> None:
    plain = msgspec.structs.replace(of(on_gpu, LARGE), edit=None)
    source, premade = on_gpu.evaluate(plain), on_gpu.evaluate(exported(on_gpu, plain, tmp_path))
    assert source.ok and premade.ok, premade.reason
    assert premade.speedup == pytest.approx(source.speedup, rel=0.03)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["flipped", "truncated", "empty", "zeros"])
def test_on_a_gpu_a_damaged_cubin_is_a_verdict_and_the_worker_goes_on(on_gpu, kind: str) -> None:
    candidate, rng = of(on_gpu, LARGE), random.Random(0)
    whole = on_gpu.build(candidate).launchable
    start, size = cubin.code_of(whole.cubin, candidate.edit.kernel)
    bad = {"truncated": whole.cubin[: start + size // 2], "empty": b"", "zeros": bytes(len(whole.cubin))}
    for number in range(6 if kind == "flipped" else 1):
        code = bytearray(whole.cubin)
        for _ in range(8 << number):
            code[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
        outcome = on_gpu.measure(msgspec.structs.replace(whole, cubin=bad.get(kind, bytes(code))), LARGE)
        assert outcome.status is not Status.OK or number < 2, "hundreds of flipped bits do not matter"
        assert bool(outcome.timings) == (outcome.status is Status.OK)
    assert on_gpu.measure(whole, LARGE).status is Status.OK


PORTABLE = sorted(
    path.name
    for path in (Path(__file__).parent / "kernels").glob("*.cu")
    if path.read_text().startswith("// expect: ok\n") and "// below: " not in path.read_text()
)
STATEFUL = "slow_in_first_sets.cu", "fetches_ahead.cu"
"""Right wherever they are recorded, but what they launch depends on the calls before."""


@pytest.fixture(scope="module")
def portable(on_gpu) -> dict[str, Candidate]:
    """The portable kernels for this GPU by their files, built on all cores."""
    found = {}
    for name in PORTABLE:
        source = (Path(__file__).parent / "kernels" / name).read_text()
        problem = parse(directive(source, "problem", "264_200_328").split()[0])
        if directive(source, "target", on_gpu.target.name) == on_gpu.target.name:
            found[name] = Candidate(source, problem, on_gpu.target.name)
    on_gpu.begin_building(list(found.values()))
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("name", PORTABLE)
def test_on_a_gpu_a_recipe_gives_what_a_fresh_process_records_anywhere(on_gpu, portable, name: str) -> None:
    """At 128 random places, byte for byte."""
    if name not in portable:
        pytest.skip("it compiles for another GPU")
    candidate = portable[name]
    problem, launchable = candidate.problem, on_gpu.build(candidate).launchable
    rng = random.Random(0)

    def recorded(count: int):
        base = draw_base()
        places = scattered(problem, count, rng, base)
        text = plan.record(launchable.library, problem, places, base, on_gpu.backend.kind, 60)
        return plan.decode(text, count, on_gpu.target.contract.workspace_limit, base), places

    first, places = recorded(8)
    made = recipe.fit(first.plans, places, first.workspace)
    again, elsewhere = recorded(128)
    for expected, place in zip(again.plans, elsewhere, strict=True):
        assert recipe.applied(made, place) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", STATEFUL)
def test_on_a_gpu_a_launcher_with_a_memory_is_refused_by_name(on_gpu, name: str) -> None:
    source = (Path(__file__).parent / "kernels" / name).read_text()
    with pytest.raises(ValueError, match=r"multiply.*parameter 6, byte"):
        on_gpu.portable(Candidate(source, Problem(264, 200, 328), on_gpu.target.name))
