"""A folder of exported kernels, built with the plain compiler, for tests of the dispatcher."""

import hashlib
import importlib.util
import itertools
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import pytest
import torch
from launcher import ALIGNMENT, fake
from specimens import HERE, timing

from cudal2.contract import CPU_CONTRACT, CUDA_CONTRACT
from cudal2.exported import processor
from cudal2.problem import Problem
from cudal2.records import Environment
from cudal2.runtime import manifest as manifests
from cudal2.runtime import op
from cudal2.runtime.op import PACKAGE
from cudal2.worker.cuda import launcher
from cudal2.worker.cuda.recipe import seal

NAIVE = """
#include <cstddef>
extern "C" size_t hgemm_workspace(int M, int N, int K) { return 4 * size_t(N); }
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    float* row = static_cast<float*>(workspace);
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j) row[j] = 0;
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < N; ++j) row[j] += float(A[i * K + k]) * float(B[INDEX]);
        for (int j = 0; j < N; ++j) C[i * N + j] = row[j];
    }
    return 0;
}
"""
PLAIN = """
#include <cstdint>
#include <cstring>
using Element = ELEMENT;
static float wide(Element x) { WIDE }
static Element narrow(float x) { NARROW }
extern "C" int hgemm(const Element* A, const Element* B, GIVEN Element* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = ADDED;
            for (int k = 0; k < K; ++k) sum += wide(A[i * K + k]) * wide(B[INDEX]);
            C[i * N + j] = narrow(sum);
        }
    return 0;
}
"""
BITS = {
    "fp16": ("return x;", "return x;"),
    "bf16": (
        "uint32_t bits = uint32_t(x) << 16; float y; memcpy(&y, &bits, 4); return y;",
        "uint32_t bits; memcpy(&bits, &x, 4); return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;",
    ),
}
TN, NN = NAIVE.replace("INDEX", "j * K + k"), NAIVE.replace("INDEX", "k * N + j")
NUMBERS = itertools.count()
REFUSES = 'extern "C" int hgemm(const void*, const void*, void*, int, int, int, void*) { return 1; }\n'


def plain(problem: Problem) -> str:
    """A kernel in plain loops for any number of rows, in the problem's type, with a bias where it asks for one."""
    wide, narrow = BITS[problem.dtype]
    given, added = ("const Element* bias,", "wide(bias[j])") if problem.epilogue == "bias" else ("", "0")
    words = {"ELEMENT": problem.type.cpu, "WIDE": wide, "NARROW": narrow, "GIVEN": given, "ADDED": added}
    words["INDEX"] = "j * K + k" if problem.layout == "tn" else "k * N + j"
    source = PLAIN
    for name, text in words.items():
        source = source.replace(name, text)
    return source


def write(
    folder: Path,
    kernels: dict[Problem, tuple[str, float]],
    rows: dict[Problem, tuple[int, int]] | None = None,
    **changes,
) -> Path:
    """An export of problem → (source, speedup), as if measured on this machine with torch's present threads; `rows` are
    numbers of rows that a kernel serves beside its own."""
    (folder / "libraries").mkdir(parents=True)
    entries = []
    for problem, (source, speedup) in kernels.items():
        path = folder / "libraries" / f"{hashlib.sha256(source.encode()).hexdigest()[:8]}.so"
        if not path.exists():
            command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
            subprocess.run(command, input=source.encode(), check=True)
        more = {"rows": (rows or {}).get(problem)}
        entries.append(entry(problem, speedup, described(folder, f"libraries/{path.name}"), **more))
    here = msgspec.structs.replace(HERE, device=processor.name(), threads=torch.get_num_threads())
    fields = {"target": "cpu", "environment": here, "instructions": tuple(processor.instructions()), **changes}
    contract = manifests.Layout(CPU_CONTRACT.alignment, CPU_CONTRACT.semaphores)
    manifests.write(folder, manifests.Manifest(kernels=tuple(entries), contract=contract, op=lay_op(folder), **fields))
    return folder


def lay_op(folder: Path) -> manifests.File:
    """The library behind torch.ops.cudal2 and the Python package, as an export lays them out."""
    for path, text in op.sources().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "lib").mkdir(exist_ok=True)
    (folder / op.LIBRARY).write_bytes(op.library())
    return described(folder, op.LIBRARY)


def wheel(folder: Path, out: Path) -> Path:
    """The wheel that the folder makes of itself, in another."""
    spec = importlib.util.spec_from_file_location("wheel", folder / "wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return out / module.build_wheel(str(out))


def imported(folder):
    """The folder's package, imported anew, and what it warned of."""
    name = f"{PACKAGE}_{next(NUMBERS)}"
    spec = importlib.util.spec_from_file_location(
        name, folder / PACKAGE / "__init__.py", submodule_search_locations=[str(folder / PACKAGE)]
    )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with pytest.warns() as told:
        spec.loader.exec_module(module)
        warnings.warn("the last", stacklevel=1)
    return module, [str(one.message) for one in told][:-1]


def write_launched(
    folder: Path,
    kernels: dict[Problem, tuple[bytes, bytes]],
    environment: Environment,
    rows: dict[Problem, tuple[int, int]] | None = None,
) -> Path:
    """An export of problem → (cubin, packed recipe) for sm_90a, all faster, with a launcher that needs no GPU; `rows`
    are numbers of rows that a recipe is for beside the problem's own."""
    for name in ("cubins", "recipes", "lib"):
        (folder / name).mkdir(parents=True)
    (folder / launcher.LIBRARY).write_bytes(fake())
    entries = []
    for problem, (cubin, packed) in kernels.items():
        code, recipe = f"cubins/{problem.name}.cubin", f"recipes/{problem.name}.recipe"
        (folder / code).write_bytes(cubin)
        (folder / recipe).write_bytes(seal(packed, cubin, f"{problem.name}.cubin"))
        more = {"recipe": described(folder, recipe), "rows": (rows or {}).get(problem)}
        entries.append(entry(problem, 1.5, described(folder, code), **more))
    manifest = manifests.Manifest(
        target="sm_90a",
        environment=environment,
        instructions=(),
        contract=manifests.Layout(ALIGNMENT, CUDA_CONTRACT.semaphores),
        launcher=described(folder, launcher.LIBRARY),
        op=lay_op(folder),
        kernels=tuple(entries),
    )
    manifests.write(folder, manifest)
    return folder


def entry(problem: Problem, speedup: float, code: manifests.File, **more) -> manifests.Kernel:
    measured = timing(speedup)
    return manifests.Kernel(problem=problem, source="", code=code, timing=measured, dispatch=measured.low > 1, **more)


def described(folder: Path, path: str) -> manifests.File:
    return manifests.File(path, hashlib.sha256((folder / path).read_bytes()).hexdigest())


def change(folder: Path, place: Path | None = None, **changes) -> Path:
    """Write the folder's manifest anew, there or elsewhere, with these fields of its kernels changed."""
    manifest = manifests.read(folder)
    kernels = tuple(msgspec.structs.replace(kernel, **changes) for kernel in manifest.kernels)
    manifests.write(place or folder, msgspec.structs.replace(manifest, kernels=kernels))
    return place or folder
