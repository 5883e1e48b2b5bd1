import ctypes
import hashlib
import io
from pathlib import Path

import msgspec
import pytest
import torch
from exported import NN
from fakes import Says
from launcher import fake, multiplier
from rich.console import Console
from specimens import ELSEWHERE, HERE, candidate, edited, evaluation, timing, verdict

from cudal2 import export, files
from cudal2.archive import Archive
from cudal2.config import WorkerConfig
from cudal2.evaluation import folders
from cudal2.evaluation import run as evaluate
from cudal2.evaluation.records import Results
from cudal2.evaluation.results import load as load_results
from cudal2.evaluation.results import save
from cudal2.exported import held, processor
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, edit_from_json
from cudal2.runtime import load, manifest
from cudal2.target import CPU, find
from cudal2.worker.backend import NotPortable, Portable
from cudal2.worker.cuda import launcher
from cudal2.worker.worker import Worker

FAST, SLOW = Problem(24, 40, 32, "nn"), Problem(64, 40, 32, "nn")
FEW = Problem(3, 40, 32, "nn")
OPENMP = NN.replace(
    "    float* row", "    int n = 0;\n#pragma omp parallel reduction(+ : n)\n    n += 1;\n    float* row"
)


@pytest.fixture
def archive(tmp_path):
    with Archive(tmp_path / "run" / "archive.sqlite") as archive:
        yield archive


def assess(tmp_path, archive, speedups, environment=HERE):
    """Archive and evaluate one kernel for each problem, as a worker that finds these speedups would."""

    pool = Says(lambda candidate: verdict(candidate, speedups[candidate.problem][1], environment), environment)
    for problem, (source, speedup) in speedups.items():
        entry = Candidate(source, problem)
        archive.add(verdict(entry, speedup, environment), entry, None)
    config = evaluation(tmp_path / "run", list(speedups), neighbours=0)
    evaluate.run(config, archive, pool, pool, console=Console(file=io.StringIO()))


def built(candidate):
    return Portable(b"ELF of " + candidate.source.encode())


def test_writes_sources_libraries_and_a_manifest_that_agree(tmp_path, archive):
    sources = {FAST: (candidate("a").source, 2.5), SLOW: (candidate("a").source, 0.5)}
    assess(tmp_path, archive, sources)
    written = export.run(tmp_path / "run", archive, built, HERE)
    folder = tmp_path / "run" / "export"
    assert manifest.read(folder) == written
    assert [kernel.dispatch for kernel in written.kernels] == [True, False]
    assert len(list((folder / "libraries").iterdir())) == 1  # one kernel, two problems
    for kernel in written.kernels:
        source = (folder / kernel.source).read_text()
        assert source == sources[kernel.problem][0]
        assert (folder / kernel.code.path).read_bytes() == built(Candidate(source, kernel.problem)).code
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name[0] == ".") == []


def test_an_edited_kernel_is_exported_with_its_edit(tmp_path, archive):
    """Beside its source, which another problem uses as it compiles."""
    changed, plain = edited("a", FAST), candidate("a", SLOW)
    for one in (changed, plain):
        archive.add(verdict(one, 2.5), one, None)
    pool = Says(lambda candidate: verdict(candidate, 2.5), HERE)
    config = evaluation(tmp_path / "run", [FAST, SLOW], neighbours=0)
    evaluate.run(config, archive, pool, pool, console=Console(file=io.StringIO()))
    asked = []

    def build(one):
        asked.append(one)
        return Portable(one.key.encode())

    written = export.run(tmp_path / "run", archive, build, HERE)
    assert set(asked) == {changed, plain}
    by_problem = {kernel.problem: kernel for kernel in written.kernels}
    folder = tmp_path / "run" / "export"
    assert edit_from_json((folder / by_problem[FAST].edit).read_text()) == changed.edit
    assert by_problem[SLOW].edit == "" and by_problem[SLOW].code != by_problem[FAST].code
    assert (folder / by_problem[FAST].source).read_text() == changed.source
    assert (folder / by_problem[FAST].code.path).read_bytes() == changed.key.encode()


def test_a_gain_that_the_dispatcher_would_eat_is_left_to_torch():
    """Ten microseconds against eleven are a sure win of the kernel, but none for the user."""
    assert [export._worthwhile(timing(speedup), CPU) for speedup in (1.1, 1.25, 1.5)] == [False, False, True]
    assert not export._worthwhile(timing(4.0, spread=0.3), CPU)


def test_each_kernel_that_is_not_dispatched_is_counted_by_a_reason(tmp_path, archive):
    speeds = [2.5, 0.5, 0.9, 1.1]
    kernels = {msgspec.structs.replace(FAST, m=m): (candidate(str(m)).source, one) for m, one in enumerate(speeds, 1)}
    assess(tmp_path, archive, kernels)
    written = export.run(tmp_path / "run", archive, built, HERE)
    assert sorted(export.left_to_torch(written).values()) == [1, 2]
    first, *others = written.kernels
    rough = msgspec.structs.replace(first, timing=timing(4.0, spread=0.3), dispatch=False)
    reasons = export.left_to_torch(msgspec.structs.replace(written, kernels=(rough, *others)))
    assert sorted(reasons.values()) == [1, 1, 2] and all(reasons)


@pytest.mark.parametrize("confidence", [0.0, 0.7])
def test_only_a_strict_interval_is_dispatched(confidence):
    """Neither a quick one, nor one of an earlier version, which had looked after every pair."""
    loose = msgspec.structs.replace(timing(2.0), confidence=confidence)
    assert export._worthwhile(timing(2.0), CPU) and not export._worthwhile(loose, CPU)


def test_on_a_gpu_what_is_surely_faster_is_worth_a_call_however_short():
    short, long = timing(1.1), msgspec.structs.replace(timing(1.02, spread=0.005), candidate_us=196.0, baseline_us=200)
    for one in (short, long):
        assert export._worthwhile(one, find("sm_90a"))
        assert not export._worthwhile(msgspec.structs.replace(one, low=0.99), find("sm_90a"))


def assess_for_a_gpu(tmp_path, archive):
    """One source archived and evaluated for two problems."""
    for problem in (FAST, SLOW):
        entry = Candidate(candidate("a").source, problem, "sm_90a")
        archive.add(verdict(entry, 2.5), entry, None)
    pool = Says(lambda candidate: verdict(candidate, 2.5), HERE)
    config = evaluation(tmp_path / "run", [FAST, SLOW], target="sm_90a", neighbours=0)
    evaluate.run(config, archive, pool, pool, console=Console(file=io.StringIO()))


def test_an_export_for_a_gpu_holds_all_that_a_c_program_needs(tmp_path, archive, monkeypatch):
    """And asks nothing of the processor. The one entry of its library finds each kernel by its problem."""
    monkeypatch.setattr(launcher, "library", fake)
    assess_for_a_gpu(tmp_path, archive)

    def portable(one):
        return Portable(*multiplier(one.problem))

    cubins = {multiplier(problem)[0] for problem in (FAST, SLOW)}
    assert len(cubins) == 1
    written = export.run(tmp_path / "run", archive, portable, HERE, target="sm_90a")
    folder = (tmp_path / "run" / "export").rename(tmp_path / "elsewhere")
    assert manifest.read(folder) == written
    assert written.target == "sm_90a" and written.instructions == () and written.refused == ()
    for kernel in written.kernels:
        assert kernel.source.endswith(".cu") and (folder / kernel.source).exists()
        assert [
            hashlib.sha256((folder / file.path).read_bytes()).hexdigest() for file in (kernel.code, kernel.recipe)
        ] == [kernel.code.sha256, kernel.recipe.sha256]
    assert len(list((folder / "cubins").iterdir())) == 1
    assert all((folder / path).read_text() == text for path, text in launcher.sources().items())
    library = ctypes.CDLL(str(folder / written.launcher.path))
    a, b, c, workspace = (torch.zeros(1 << 16, dtype=torch.uint8) for _ in range(4))
    for problem in (FAST, SLOW):
        place = [-(-one.data_ptr() // 256) * 256 for one in (a, b, c, workspace)]
        sizes = (problem.m, problem.n, problem.k, int(problem.layout == "tn"), 0)
        a.fill_(0x3C), b.fill_(0x3C)  # fp16 1.0586
        addresses = [ctypes.c_void_p(one) for one in place]
        assert library.cudal2_hgemm(*addresses[:3], *sizes, addresses[3], ctypes.c_size_t(20000), None) == 0
        size = problem.m * problem.n
        found = torch.frombuffer((ctypes.c_char * (2 * size)).from_address(place[2]), dtype=torch.float16)
        one = torch.full((1,), 0x3C3C, dtype=torch.int16).view(torch.float16).double()
        assert torch.equal(found, (problem.k * one * one).half().expand(size))


def test_a_kernel_that_needs_its_host_code_is_left_out_by_name(tmp_path, archive, monkeypatch):
    monkeypatch.setattr(launcher, "library", lambda: b"library")
    assess_for_a_gpu(tmp_path, archive)

    def portable(one):
        if one.problem == SLOW or everything:
            raise NotPortable("gemm, parameter 3, byte 8 is neither")
        return Portable(b"cubin", b"recipe")

    everything = False
    written = export.run(tmp_path / "run", archive, portable, HERE, target="sm_90a")
    assert [kernel.problem for kernel in written.kernels] == [FAST]
    assert written.refused == (manifest.Refused(problem=SLOW, reason="gemm, parameter 3, byte 8 is neither"),)
    everything = True
    with pytest.raises(ValueError, match="parameter 3, byte 8"):
        export.run(tmp_path / "run", archive, portable, HERE, target="sm_90a")
    assert manifest.read(tmp_path / "run" / "export") == written, "the former export stays"


def test_a_published_kernel_is_left_out_by_name(tmp_path, archive):
    """The archive does not hold it: behind the contract it would not compile."""
    assess(tmp_path, archive, {FAST: (candidate("a").source, 2.5)})
    (row,) = load_results(tmp_path / "run").rows
    published = msgspec.structs.replace(row, problem=SLOW, kernel="ab" * 32, abi="cuda-l2")
    save(tmp_path / "run", Results({}, (row, published)))
    written = export.run(tmp_path / "run", archive, built, HERE)
    assert [kernel.problem for kernel in written.kernels] == [FAST]
    assert [one.problem for one in written.refused] == [SLOW] and "entry point" in written.refused[0].reason


def test_what_was_not_evaluated_here_is_not_exported(tmp_path, archive):
    with pytest.raises(ValueError, match="cudal2 eval"):
        export.run(tmp_path / "run", archive, built, HERE)
    assess(tmp_path, archive, {FAST: (candidate("a").source, 1.5)}, ELSEWHERE)
    with pytest.raises(ValueError, match="this machine"):
        export.run(tmp_path / "run", archive, built, HERE)


def test_a_run_evaluated_for_another_target_says_which(tmp_path, archive):
    """Also on the machine where it was evaluated: its GPU's environment is not its processor's."""
    assess_for_a_gpu(tmp_path, archive)
    processor_here = msgspec.structs.replace(HERE, device="its processor")
    with pytest.raises(ValueError, match="target=sm_90a") as told:
        export.run(tmp_path / "run", archive, built, processor_here)
    assert "this machine" not in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(ValueError, match="this machine"):
        export.run(tmp_path / "run", archive, built, processor_here, target="sm_90a")


def test_a_failed_export_leaves_the_former_one(tmp_path, archive):
    assess(tmp_path, archive, {FAST: (candidate("a").source, 1.5)})
    former = export.run(tmp_path / "run", archive, built, HERE)
    assess(tmp_path, archive, {SLOW: (candidate("b").source, 1.5)})

    def build(one):
        if one.problem == SLOW:
            raise HarnessFault("it no longer compiles", "Evaluate again")
        return built(one)

    with pytest.raises(HarnessFault, match="compiles"):
        export.run(tmp_path / "run", archive, build, HERE)
    assert manifest.read(tmp_path / "run" / "export") == former


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_new_export_takes_the_place_of_the_former_one(tmp_path, archive, monkeypatch, exchanges):
    """At once, where the file system can: there is no moment without an export."""
    assess(tmp_path, archive, {FAST: (candidate("a").source, 1.5)})
    export.run(tmp_path / "run", archive, built, HERE)
    assess(tmp_path, archive, {SLOW: (candidate("b").source, 1.5)})
    if exchanges:
        (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
        if not files._exchanged(tmp_path / "a", tmp_path / "b"):
            pytest.skip("this file system exchanges no folders")
        monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("for a moment there is none"))
    else:
        monkeypatch.setattr(files, "_exchanged", lambda *_: False)
    now = export.run(tmp_path / "run", archive, built, HERE)
    assert manifest.read(tmp_path / "run" / "export") == now and len(now.kernels) == 2
    assert [path for path in (tmp_path / "run").iterdir() if path.name[0] == "."] == []


def test_a_place_that_cannot_be_written_is_a_fault(tmp_path, archive):
    assess(tmp_path, archive, {FAST: (candidate("a").source, 1.5)})
    (tmp_path / "run" / "export").write_text("in the way")
    with pytest.raises(HarnessFault, match="cannot export"):
        export.run(tmp_path / "run", archive, built, HERE)
    assert (tmp_path / "run" / "export").read_text() == "in the way"


def test_kernels_built_by_the_worker_run_and_share_torchs_threads(tmp_path, archive):
    """The whole way: evaluated, built in the jail, copied, loaded, called."""
    here = msgspec.structs.replace(HERE, device=processor.name(), threads=torch.get_num_threads())
    assess(tmp_path, archive, {FAST: (OPENMP, 2.5)}, here)
    with Worker(WorkerConfig(cache=str(tmp_path / "cache"), disturbed=1e3, protocols=())) as worker:
        export.run(tmp_path / "run", archive, worker.portable, here)
        (again,) = folders.exported(tmp_path / "run" / "export", "cpu").find([FAST])[FAST]
        # What cannot be compiled is judged all the same, as it was built.
        assert worker.evaluate(msgspec.structs.replace(again, source="int hgemm(;")).ok
    lib = load((tmp_path / "run" / "export").rename(tmp_path / "copy"))
    a, b = torch.randn(24, 32).half(), torch.randn(32, 40).half()
    assert torch.allclose(lib.matmul(a, b).double(), a.double() @ b.double(), 2e-3, 2e-2)
    assert lib.calls == {"kernel": 1}
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert len({line.split()[-1] for line in maps if "libgomp" in line}) == 1


@pytest.mark.parametrize(
    ("m", "last", "wanted"),
    [
        *(
            (8, 0, (1, 8)),
            (9, 0, (9, 16)),
            (32, 0, (17, 32)),
            (33, 0, (33, 64)),
            (65, 0, (65, 65)),
            (128, 0, (128, 128)),
        ),
        *((1, 0, (1, 8)), (24, 64, (1, 64)), (72, 64, (72, 72)), (24, 1, (24, 24))),
    ],
)
def test_a_kernel_is_tried_for_the_rows_of_its_bucket(m, last, wanted):
    found = export.rows(m, last)
    assert (found[0], found[-1]) == wanted and m in found


def test_a_kernel_is_exported_for_the_rows_at_which_it_is_right(tmp_path, archive):
    """Each is checked as for a verdict; the first that fails ends the range."""
    here = msgspec.structs.replace(HERE, device=processor.name(), threads=torch.get_num_threads())
    odd = NN.replace("C[i * N + j] = row[j]", "C[i * N + j] = row[j] + (M == 20)")
    assess(tmp_path, archive, {FAST: (odd, 2.5)}, here)
    with Worker(WorkerConfig(cache=str(tmp_path / "cache"), disturbed=1e3, protocols=())) as worker:
        written = export.run(tmp_path / "run", archive, export.builder(worker.portable), here)
    assert [one.rows for one in written.kernels] == [(21, 32)]
    lib = load(tmp_path / "run" / "export")
    weight = torch.randint(-3, 4, (32, 40)).half()
    for m in range(18, 35):
        x = torch.randint(-3, 4, (m, 32)).half()
        before = lib.calls["kernel"]
        assert torch.equal(lib.matmul(x, weight), (x.float() @ weight.float()).half())
        assert lib.calls["kernel"] - before == (21 <= m <= 32)


@pytest.mark.parametrize(("slow", "dispatched"), [((), (1, 4)), ((1,), (3, 4)), ((4,), (1, 3)), ((1, 4), (3, 3))])
def test_a_kernel_is_dispatched_as_far_as_it_was_faster_at_the_ends_of_its_rows(tmp_path, archive, slow, dispatched):
    """The manifest says which were timed, and the dispatcher serves no others; one that cannot be timed is slow."""
    here = msgspec.structs.replace(HERE, device=processor.name(), threads=torch.get_num_threads())
    assess(tmp_path, archive, {FEW: (NN, 2.5)}, here)
    asked, fault = [], slow == (1, 4)

    def judge(one):
        asked.append(one)
        if fault and one.problem.m == 4:
            raise HarnessFault("the machine is too busy", "Wait")
        return verdict(one, 0.9 if one.problem.m in slow else 2.5, here)

    with Worker(WorkerConfig(cache=str(tmp_path / "cache"), disturbed=1e3, protocols=())) as worker:
        build = export.builder(worker.portable, 4)
        (kernel,) = export.run(tmp_path / "run", archive, build, here, judge=judge).kernels
    assert [one.problem for one in asked] == [msgspec.structs.replace(FEW, m=m) for m in (1, 4)]
    assert (kernel.rows, kernel.dispatch, kernel.dispatch_rows) == ((1, 4), True, dispatched)
    assert [(one.m, one.timing.speedup) for one in kernel.timed] == [
        (m, 0.9 if m in slow else 2.5) for m in (1, 4) if not (fault and m == 4)
    ]
    folder = tmp_path / "run" / "export"
    assert manifest.read(folder).kernels == (kernel,)
    lib, weight = load(folder), torch.randint(-3, 4, (32, 40)).half()
    for m in range(1, 7):
        lib.matmul(torch.randint(-3, 4, (m, 32)).half(), weight)
    assert lib.calls["kernel"] == dispatched[1] - dispatched[0] + 1
    assert held.read(folder, every=True).kernels[0].rows == (1, 4), "whoever measures may call them all"


def test_only_what_is_dispatched_for_several_rows_is_timed_again(tmp_path, archive):
    """On a processor a real worker does."""
    here = msgspec.structs.replace(HERE, device=processor.name(), threads=torch.get_num_threads())
    assess(tmp_path, archive, {FEW: (NN, 2.5), msgspec.structs.replace(FEW, m=4): (NN, 0.5)}, here)
    config = WorkerConfig(cache=str(tmp_path / "cache"), disturbed=1e3, timing_seconds=0.05, min_pairs=3, max_pairs=5)
    with Worker(config) as worker:
        whole = export.run(tmp_path / "run", archive, export.builder(worker.portable, 4), here, judge=worker.evaluate)
        alone = export.run(tmp_path / "run", archive, worker.portable, here, judge=worker.evaluate)
    assert [[one.m for one in kernel.timed] for kernel in whole.kernels] == [[1, 4], []]
    assert whole.kernels[1].dispatch_rows is None and all(not kernel.timed for kernel in alone.kernels)
