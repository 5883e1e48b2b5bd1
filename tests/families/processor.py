"""Calls a processor's kernel in this process and compares it with torch, without a judge: hundreds in a minute."""

import ctypes
import subprocess
from pathlib import Path

import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.target import CPU

GUARD = 64
"""Elements before and behind C that must stay as they are."""


def build(source: str, folder: Path, march: str = "native", optimise: str = "-O1") -> ctypes.CDLL:
    """The source as a library; CalledProcessError with the compiler's words where it does not compile."""
    path = folder / f"{abs(hash((source, march)))}.cpp"
    path.write_text(source)
    flags = [optimise, f"-march={march}"] + [flag for flag in CPU.flags if flag not in ("-O3", "-march=native")]
    command = ["g++", *flags, "-w", "-shared", "-fPIC", path, "-o", path.with_suffix(".so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(path.with_suffix(".so")))


def wrong(library: ctypes.CDLL, problem: Problem, seed: int = 0) -> str:
    """What is wrong with its answer to random numbers; empty where nothing is. C and the workspace start as NaN."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, problem.type.torch)
    operator = operators.find(problem.epilogue)
    given = [torch.randn(one.shape, generator=generator).to(dtype) for one in operators.inputs(problem)]
    a, b, *more = (tensor.double() for tensor in given)
    exact = operator.finish(a @ (b if problem.layout == "nn" else b.T), more)
    size = problem.m * problem.n
    around = torch.full((size + 2 * GUARD,), torch.nan, dtype=dtype)
    needed = 0
    if hasattr(library, "hgemm_workspace"):
        library.hgemm_workspace.restype = ctypes.c_size_t
        needed = library.hgemm_workspace(problem.m, problem.n, problem.k)
    workspace = torch.full((needed // 4 + GUARD,), torch.nan)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in given]
    pointers.append(ctypes.c_void_p(around.data_ptr() + 2 * GUARD))
    if library.hgemm(*pointers, problem.m, problem.n, problem.k, ctypes.c_void_p(workspace.data_ptr())):
        return "refused"
    result, outside = around[GUARD:-GUARD].reshape(problem.m, problem.n).double(), [around[:GUARD], around[-GUARD:]]
    if not all(part.isnan().all() for part in outside) or not workspace[needed // 4 :].isnan().all():
        return "written outside its memory"
    bound = 1.001 * problem.type.unit * exact.abs() + 2.0**-22 * problem.k + problem.type.smallest_step
    beyond = ~((result - exact).abs() <= bound)
    if beyond.any():
        row, column = (int(x) for x in beyond.nonzero()[0])
        at = f"C[{row}, {column}] = {result[row, column]}, not {exact[row, column]}"
        return f"{int(beyond.sum())} of {size} wrong, first {at}"
    return ""


def rows_of_nan(library: ctypes.CDLL, problem: Problem, pattern: int) -> list[bool]:
    """Which rows of C are no numbers, where one element of the second row of A has these bits; each row is all one or
    the other."""
    a, b = (torch.ones(one.shape, dtype=torch.bfloat16) for one in operators.inputs(problem))
    a.view(torch.int16)[1, 5] = pattern - (1 << 16 if pattern >> 15 else 0)
    c = torch.zeros(problem.m, problem.n, dtype=torch.bfloat16)
    workspace = torch.zeros(1 << 22)
    addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
    library.hgemm(*addresses, problem.m, problem.n, problem.k, ctypes.c_void_p(workspace.data_ptr()))
    assert all(row.all() or not row.any() for row in c.isnan())
    return [bool(row.any()) for row in c.isnan()]
