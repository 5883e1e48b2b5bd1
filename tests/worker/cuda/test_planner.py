"""From a launcher to what a user launches, over a driver without a GPU: recorded, fitted, launched by the library."""

import ctypes
import random
import subprocess
import tempfile
from pathlib import Path

import pytest
from launcher import DRIVER, at_place, cubin_of, fake, launched
from toolkit import needs_toolkit

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker.cuda import plan, recipe, session
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.gpu.buffers import buffer_layout, draw_base, scattered
from tests.worker.cuda.test_launcher import launch, loaded

PROBLEM = Problem(264, 200, 328)
LAUNCHER = """
#include <cuda.h>
#include <stdint.h>
struct Operands { uint64_t shape, a, b; char tail[4]; };
struct Padded { char first; uint64_t c; };
__attribute__((noinline)) static void leave_on_the_stack(const char* address) {
    volatile uint64_t many[512];
    for (int i = 0; i < 512; ++i) many[i] = (uint64_t)address << 8;
}
static CUmodule module() {
    CUmodule made;
    cuModuleLoadData(&made, "multiply 28 8 8\\nround 8 16 4\\n");
    return made;
}
extern "C" size_t hgemm_workspace(int M, int N, int K) { return 16384 + 4 * M * N; }
static void multiply_and_round(
    CUmodule code, const char* A, const char* B, char* C, int M, int N, int K, char* workspace, CUstream stream) {
    CUfunction multiply, round;
    cuModuleGetFunction(&multiply, code, "multiply");
    cuModuleGetFunction(&round, code, "round");
    CUlaunchAttribute cluster = {};
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {2, 1, 1};
    CUlaunchConfig config = {(unsigned)M / 8, 2, 1, 128, 1, 1, 70000, stream, &cluster, 1};
    uint64_t sums = (uint64_t)workspace + 16384, end = (uint64_t)C + 2 * M * N;
    Padded padded;  // seven bytes of it are left unset
    padded.first = 7, padded.c = (uint64_t)C;
    Operands operands = {(uint64_t)M << 32 | N, (uint64_t)A, (uint64_t)B - 64, {1, 2, 3, 4}};
    void *first[] = {&operands, &sums, &end}, *second[] = {&sums, &padded, &K};
    cuMemsetD32Async((CUdeviceptr)sums, 0, M * N, stream);
    cuLaunchKernelEx(&config, multiply, first, nullptr);
    config.numAttrs = 0;
    cuLaunchKernelEx(&config, round, second, nullptr);
}
extern "C" int hgemm(const char* A, const char* B, char* C, int M, int N, int K, char* workspace, CUstream stream) {
    static CUmodule code = module();
    multiply_and_round(code, A, B, C, M, N, K, workspace, stream);
    leave_on_the_stack(C);
    return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The planner and a candidate's shared object."""
    needs_toolkit()
    folder = tmp_path_factory.mktemp("planner")
    (folder / "kernel.cpp").write_text(LAUNCHER)
    include, source = (
        f"-I{toolchain.find().root / 'include'}",
        Path(session.__file__).parent / "programs" / "planner.cpp",
    )
    flags = ["-std=c++17", "-O0", include, "-Wno-narrowing"]
    planner = [*flags, *CUDA_CONTRACT.defines(), "-rdynamic", source, DRIVER, "-ldl", "-o", folder / "planner"]
    kernel = [*flags, "-shared", "-fPIC", folder / "kernel.cpp", "-o", folder / "kernel.so"]
    for words in (planner, kernel):
        subprocess.run(["g++", *words], check=True)
    return folder


@pytest.fixture
def record(folder, monkeypatch):
    """plan.record with the planner of this folder, and no jail."""

    class Started(subprocess.Popen):
        def __init__(self, kind, command, readable, fd) -> None:
            super().__init__(command, pass_fds=(fd,))

        def kill(self) -> None:
            super().kill()
            self.wait()

    monkeypatch.setattr(session, "programs", lambda: folder)
    monkeypatch.setattr(session, "start", Started)
    monkeypatch.setattr(plan.jail, "job_folder", lambda: Path(tempfile.mkdtemp(dir=folder)))
    usual = (folder / "kernel.so").read_bytes()

    def record(places: list[tuple[int, ...]], base: int, library: bytes = usual, **how) -> plan.Recording:
        text = plan.record(library, PROBLEM, places, base, "off", 20, **how)
        return plan.decode(text, len(places), CUDA_CONTRACT.workspace_limit, base)

    return record


def test_a_recipe_launches_what_the_launcher_would_have(record, folder, tmp_path) -> None:
    rng = random.Random(0)
    base, other = draw_base(), draw_base()
    places = scattered(PROBLEM, 8, rng, base)
    found = record(places, base)
    made = recipe.fit(found.plans, places, found.workspace)
    assert len(made.relocations) == 6 and made.workspace == 16384 + 4 * PROBLEM.m * PROBLEM.n
    (tmp_path / "library.so").write_bytes(fake())
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    kernel = loaded(library, made)
    for at in (scattered(PROBLEM, 100, rng, other), buffer_layout(PROBLEM).places(other)[:50]):
        fresh = record(at, other)
        recipe.check(made, fresh.plans, at)
        for recorded, place in zip(fresh.plans, at):
            assert recipe.applied(made, place) == recorded
            assert launch(library, kernel, place) == 0
            assert launched(library) == at_place(recorded, place[-1])
    assert cubin_of(made.nodes) == b"multiply 28 8 8\nround 8 16 4\n\0"


ENDS = {
    'throw std::runtime_error("no room");': "the launcher threw an exception: no room",
    "throw 1;": "the launcher threw an exception",
    "[]() noexcept { throw 1; }();": "std::terminate was called",
    "abort();": "abort was called",
}


@pytest.mark.parametrize("code", ENDS, ids=range(len(ENDS)))
def test_a_launcher_that_gives_up_says_how(folder, record, tmp_path, code) -> None:
    head, body = "#include <cstdlib>\n#include <stdexcept>\n", LAUNCHER.replace("leave_on_the_stack(C);", code)
    (tmp_path / "kernel.cpp").write_text(head + body)
    flags = ["-std=c++17", f"-I{toolchain.find().root / 'include'}", "-Wno-narrowing", "-w", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, tmp_path / "kernel.cpp", "-o", tmp_path / "kernel.so"], check=True)
    with pytest.raises(plan.PlanError, match=ENDS[code]):
        base = draw_base()
        record(buffer_layout(PROBLEM).places(base)[:1], base, library=(tmp_path / "kernel.so").read_bytes())


def test_the_sets_of_a_problem_are_recorded_as_they_lie(record) -> None:
    """Also with a call before them that is not recorded."""
    base = draw_base()
    places = buffer_layout(PROBLEM).places(base)[:5]
    assert record(places, base, rehearsed=True) == record(places, base, stream="per-thread")
