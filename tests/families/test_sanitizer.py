"""compute-sanitizer has nothing to say about a sample of every family: of each type, epilogue and layout, on any rows.

Takes minutes and a GPU: `pytest -m "gpu and slow" tests/families/test_sanitizer.py`. Without one, what is drawn is
looked at, and the program that launches it is given memory of the host's.
"""

import functools
import random
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
from families.contract import ON_GPUS
from toolkit import needs_toolkit

from cudal2 import corpus, dtype, operators
from cudal2.config import WorkerConfig
from cudal2.corpus import Family
from cudal2.corpus.family import form as family_form
from cudal2.problem import Problem
from cudal2.records import Status, digest
from cudal2.target import Target, targets
from cudal2.worker.build import compiler
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, toolchain
from cudal2.worker.sandbox import jail

SHAPE = {"memcheck": (264, 200, 328), "racecheck": (136, 136, 200)}
"""No tile divides them, and racecheck, which follows every access to shared memory, is through in seconds."""
ROWS = (1, 2, 3, 7, 17, 100)
"""Instead of its M, for the sources that are for any number of rows; of each half of them."""
CALLS = 2
NORMALS = 1 << 16
LAUNCH = Path(__file__).with_name("launch.cu")


class Drawn(NamedTuple):
    """A source, and the problem that stands for those that it is for."""

    form: Problem
    source: str
    rows: tuple[int, ...]

    def problems(self, tool: str) -> list[Problem]:
        """What it is launched on."""
        m, n, k = SHAPE[tool]
        return [msgspec.structs.replace(self.form, m=rows, n=n, k=k) for rows in self.rows or (m,)]


def drawn(family: Family) -> list[Drawn]:
    """A random setting of every form that the family has."""
    rng, found = random.Random(f"sanitizer {family.name}"), []
    for number, form in enumerate(corpus.forms(family)):
        if knobs := corpus.allowed(family, form, "f16", rng):
            rows = ROWS[number % 2 :: 2] if form.m % 8 else ()
            found.append(Drawn(form, corpus.render(family, knobs, form), rows))
    return found


def arguments(problem: Problem, normals: Path) -> list[str]:
    """What launch.cu is told of it, behind the object."""
    given = [str(2 * operand.elements) for operand in operators.operands(problem)]
    return [str(normals), str(problem.m), str(problem.n), str(problem.k), str(CALLS), *given]


def written(folder: Path) -> dict[str, Path]:
    """A file of normals of each type."""
    made = {}
    for name, one in dtype.DTYPES.items():
        made[name] = folder / name
        numbers = torch.randn(NORMALS).to(getattr(torch, one.torch))
        made[name].write_bytes(numbers.view(torch.int16).numpy().tobytes())
    return made


FAMILIES = {family.name: family for one in targets().values() if one.kind == "cuda" for family in corpus.families(one)}


@pytest.mark.parametrize("name", ON_GPUS)
def test_every_form_is_drawn_on_every_number_of_rows(name: str) -> None:
    family, forms = FAMILIES[name], drawn(FAMILIES[name])
    assert [one.form for one in forms] == list(corpus.forms(family))
    assert {rows for one in forms for rows in one.rows} == set(ROWS)
    for tool in SHAPE:
        problems = {problem for one in forms for problem in one.problems(tool)}
        assert {(one.dtype, one.epilogue) for one in problems} >= {("fp16", "none"), ("bf16", "none")}
        assert all(family_form(problem) == one.form for one in forms for problem in one.problems(tool))


HOST = """
#include <cuda_runtime.h>
#include <cstdlib>
#include <cstring>
extern "C" {
cudaError_t cudaMalloc(void** at, size_t bytes) { return *at = malloc(bytes), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* of, size_t n, cudaMemcpyKind) { return memcpy(to, of, n), cudaSuccess; }
cudaError_t cudaMemset(void* to, int value, size_t n) { return memset(to, value, n), cudaSuccess; }
cudaError_t cudaStreamCreate(cudaStream_t*) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
}
"""
KERNEL = """
#include <cstdio>
#include <cstring>
extern "C" size_t hgemm_workspace(int, int, int) { return 20000; }
extern "C" int hgemm(GIVEN void* C, int M, int N, int K, void* workspace, void*) {
    const void* all[] = {NAMES C};
    const int head = ((char*)workspace)[0] || ((char*)workspace)[16383];
    unsigned sum = 0;
    for (auto one : all) {
        unsigned short bits;
        memcpy(&bits, one, 2);
        sum += bits;
    }
    printf("%d %d %d %d %u\\n", M, N, K, head, sum);
    return 0;
}
"""


@pytest.mark.parametrize("more", [0, 1, 2])
def test_any_number_of_operands_is_handed_over_in_order(tmp_path: Path, more: int) -> None:
    """With all of them full of what is in the file, and a workspace that begins with zeros."""
    needs_toolkit()
    (tmp_path / "host.cpp").write_text(HOST)
    names = [f"x{number}" for number in range(2 + more)]
    source = KERNEL.replace("GIVEN", " ".join(f"const void* {name}," for name in names))
    (tmp_path / "kernel.cpp").write_text(source.replace("NAMES", "".join(f"{name}, " for name in names)))
    include = f"-I{toolchain.find().root / 'include'}"
    host = ["-x", "c++", str(LAUNCH), str(tmp_path / "host.cpp"), "-o", str(tmp_path / "launch"), "-ldl"]
    subprocess.run([compiler(), "-std=c++17", "-Wall", "-Werror", include, *host], check=True)
    shared = [str(tmp_path / "kernel.cpp"), "-o", str(tmp_path / "kernel.so")]
    subprocess.run([compiler(), "-shared", "-fPIC", *shared], check=True)
    files = written(tmp_path)
    given = [*arguments(Problem(7, 16, 24, dtype="bf16"), files["bf16"]), *["100"] * more]
    done = subprocess.run([tmp_path / "launch", tmp_path / "kernel.so", *given], capture_output=True, text=True)
    first = int.from_bytes(files["bf16"].read_bytes()[:2], "little")
    assert done.stdout.splitlines() == [f"7 16 24 0 {first * (3 + more)}"] * CALLS, done.stderr
    none = subprocess.run([tmp_path / "launch", tmp_path / "kernel.so", *given, *["8"] * 6], capture_output=True)
    assert none.returncode == 1 and not none.stdout, "more operands than can be called"


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("compute-sanitizer"):
        pytest.skip("needs compute-sanitizer of the CUDA toolkit")
    program = tmp_path_factory.mktemp("launch") / "launch"
    subprocess.run(["nvcc", "-std=c++17", "-O2", str(LAUNCH), "-o", str(program), "-ldl"], check=True)
    return program


@pytest.fixture(scope="module")
def normals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return written(tmp_path_factory.mktemp("normals"))


Libraries = Callable[[str], list[tuple[Drawn, Path]]]


@pytest.fixture(scope="module")
def libraries(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """Built objects of a family by its name, side by side when they are asked for first; none for another GPU's."""
    folder = tmp_path_factory.mktemp("objects")
    cache, kind = Cache(folder), jail.choose(WorkerConfig().jail)
    of_target = {family.name: family for family in corpus.families(target)}

    def make(one: Drawn) -> Path:
        made = build.build(one.source, target, cache, kind, seconds=300, problem=one.form)
        assert made.status is Status.OK, made.log
        path = folder / f"{digest(one.source)}.so"
        path.write_bytes(made.library)
        return path

    @functools.cache
    def built(name: str) -> list[tuple[Drawn, Path]]:
        of_family = drawn(of_target[name]) if name in of_target else []
        with ThreadPoolExecutor() as threads:
            return list(zip(of_family, threads.map(make, of_family)))

    return built


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("tool", SHAPE)
@pytest.mark.parametrize("name", ON_GPUS)
def test_nothing_to_report(launch: Path, normals: dict[str, Path], libraries: Libraries, name: str, tool: str) -> None:
    built = libraries(name)
    if not built:
        pytest.skip(f"{name} is not for this GPU")
    watch = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", str(launch)]

    def run(path: Path, problem: Problem) -> str:
        told = [*watch, str(path), *arguments(problem, normals[problem.dtype])]
        done = subprocess.run(told, capture_output=True, text=True, timeout=300)
        what = f"{path.name} on {problem.name}: {done.stdout[-3000:]}{done.stderr}"
        return "" if done.returncode == 0 else what

    with ThreadPoolExecutor(8) as threads:
        runs = [(path, problem) for one, path in built for problem in one.problems(tool)]
        reports = "".join(threads.map(run, *zip(*runs)))
    if reports:
        pytest.fail(reports, pytrace=False)  # whole: an assertion would shorten it
