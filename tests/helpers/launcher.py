"""The launcher of exported kernels over a driver without a GPU (libcuda.cpp), in one library; and kernels for it."""

import ctypes
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from toolkit import needs_toolkit

from cudal2 import operators
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.records import digest
from cudal2.worker.build import artefact, compiler, compiler_name, trusted
from cudal2.worker.cuda import launcher, recipe
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.cuda.plan import KernelLaunch, Memset, Plan
from cudal2.worker.cuda.recipe import Recipe, Relocation

DRIVER = Path(__file__).with_name("libcuda.cpp")
ROOM = 1 << 22
ALIGNMENT = 64
"""Of memory that is the host's: torch gives it no better."""


class Four(NamedTuple):
    """A place of a problem without further operands, each address by its name."""

    A: int
    B: int
    C: int
    workspace: int


@cache
def fake() -> bytes:
    """The library's bytes; skips where there is no CUDA toolkit."""
    needs_toolkit()
    usual, wanted = (f"CUDAL2_ALIGNMENT {one} " for one in (CUDA_CONTRACT.alignment, ALIGNMENT))
    header = launcher.sources()["include/cudal2.h"].replace(usual, wanted)
    texts = launcher.sources() | {"include/cudal2.h": header} | {"src/libcuda.cpp": DRIVER.read_text()}
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-fvisibility-inlines-hidden", "-Wl,-Bsymbolic"]

    def make(folder: Path) -> None:
        launcher.lay_out(folder)
        (folder / "include/cudal2.h").write_text(header)
        headers = [f"-I{folder / 'include'}", f"-I{toolchain.find().root / 'include'}"]
        files = [str(folder / "src/hgemm.cpp"), str(DRIVER)]
        trusted([compiler(), *flags, *headers, *files, "-o", str(folder / "fake.so")])

    return (artefact(f"fake-{digest(compiler_name(), *flags, *texts.values())[:16]}", make) / "fake.so").read_bytes()


def launched(library: ctypes.CDLL) -> Plan:
    """What was launched since the last time; the offset of a memset is its address."""
    out = ctypes.create_string_buffer(ROOM)
    library.launched.restype = ctypes.c_long
    size = library.launched(out, ctypes.c_long(ROOM))
    assert size >= 0
    return msgspec.json.decode(out.raw[:size], type=Plan)


def cubin_of(plan: Plan) -> bytes:
    """Text that the driver takes for a cubin with the plan's kernels."""
    kernels = [node for node in plan if isinstance(node, KernelLaunch)]
    lines = {f"{one.name} {' '.join(str(len(text) // 2) for text in one.parameters)}\n" for one in kernels}
    return "".join(sorted(lines)).encode() + b"\0"


def multiplier(problem: Problem, workspace: int | None = 20000, fails: int = 0, pause: int = 0) -> tuple[bytes, bytes]:
    """(cubin, packed recipe) of a kernel that multiplies on the host. `pause` in microseconds. A `workspace` of None is
    one that it is not told of."""
    places = range(4 if workspace is not None else 3)
    workspace = workspace or 0
    data = struct.pack("<4Q6i", 0, 0, 0, 0, problem.m, problem.n, problem.k, workspace, pause, fails)
    kernel = KernelLaunch("on_the_host", (1, 1, 1), (1, 1, 1), (0, 0, 0), 0, False, 0, -1, (data.hex(),))
    nodes: Plan = (kernel,)
    made = Recipe(workspace, nodes, tuple(Relocation(0, 0, 8 * of, of) for of in places))
    return cubin_of(nodes), recipe.pack(made)


def many_rows(problem: Problem, first: int, last: int) -> tuple[bytes, bytes]:
    """(cubin, packed recipe) of a kernel that multiplies on the host for these numbers of rows, in the problem's type,
    and adds a bias where the problem asks for one. Its workspace is told."""
    names = [*(operand.name for operand in operators.operands(problem)), "workspace"]
    at = {"A": 0, "B": 8, "C": 16, "workspace": 24, "bias": 56}  # bytes into the parameter
    relocations = tuple(Relocation(0, 0, at[name], of) for of, name in enumerate(names))
    launches = {}
    for m in range(first, last + 1):
        sizes = m, problem.n, problem.k, 20000, 0, 0
        data = struct.pack("<4Q6iQ2i", 0, 0, 0, 0, *sizes, 0, problem.dtype == "bf16", 0)
        kernel = KernelLaunch("on_the_host", (1, 1, 1), (1, 1, 1), (0, 0, 0), 0, False, 0, -1, (data.hex(),))
        launches[m] = Recipe(20000, (kernel,), relocations)
    return cubin_of(launches[first].nodes), recipe.pack_rows(launches, len(names) - 1)


def at_place(plan: Plan, workspace: int) -> Plan:
    """The plan as `launched` tells of it, for a workspace at that address."""
    return tuple(
        msgspec.structs.replace(node, offset=workspace + node.offset) if isinstance(node, Memset) else node
        for node in plan
    )
