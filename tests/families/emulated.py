"""Runs a kernel of the mma.sync families without a GPU: compiled for the CPU, its PTX instructions calls of `simt/`.

Slow and small, but exact about what goes wrong in such kernels: which element lies where, barriers, the order of
asynchronous copies, semaphores between blocks, memory beyond the matrices.
"""

import ctypes
import json
import mmap
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from families import numbers

from cudal2 import operators
from cudal2.problem import Problem, parse

SIMT = Path(__file__).parent / "simt"
HEADER = "cuda_runtime.h"
FLAGS = ["-std=c++17", "-O1", "-march=native", "-w", "-fPIC", "-fno-strict-aliasing"]
HEAD = 16384
SECONDS = 300
"""For one judgement."""
_KEPT = tempfile.TemporaryDirectory(prefix="cudal2-emulated-")
INSTRUCTIONS = {
    r"cp\.async\.cg": "copy",
    r"cp\.async\.commit_group": "commit",
    r"cp\.async\.wait_group": "wait",
    r"ldmatrix\S*\.trans": "ldmatrix<true>",
    r"ldmatrix": "ldmatrix<false>",
    r"mma\.sync\S*\.bf16\.bf16": "mma<true>",
    r"mma\.sync": "mma<false>",
    r"ld\.acquire": "load_acquire",
    r".*ld\.global\S*\.(v\d\.)?b32": "load_words",
}
TAIL = """
extern "C" void simt_set(int eager, int multiprocessors, long shared_limit) {
    simt::eager = eager;
    simt::multiprocessors = multiprocessors;
    simt::shared_limit = shared_limit;
}
extern "C" long simt_conflicts() { return simt::conflicts; }
"""


def translate(source: str) -> str:
    """The source with launches, shared arrays and inline PTX turned into calls of `simt/cuda_runtime.h`."""
    source = re.sub(
        r"(\w+)<<<([^,]+), ([^,]+), ([^,]+), \w+>>>\(([^;]*)\);", r"simt::launch(\2, \3, \4, [=] { \1(\5); });", source
    )
    source = re.sub(r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];", r"\1* \2 = (\1*)simt::shared;", source)
    parts, last = [], 0
    for found in re.finditer(r"\basm(?: volatile)?\(", source):
        inside, end = _parenthesised(source, found.end())
        parts += [source[last : found.start()], _call(inside)]
        last = end
    return "".join([*parts, source[last:], TAIL])


def _call(asm: str) -> str:
    text = re.match(r'(?:\s*"[^"]*")+', asm)
    assert text is not None
    opcode = text.group().replace('"', "").strip()
    name = next(name for pattern, name in INSTRUCTIONS.items() if re.match(pattern, opcode))
    rest = asm[text.end() :]
    operands = [_parenthesised(rest, found.end())[0] for found in re.finditer(r'"[=+]?[a-z]+"\s*\(', rest)]
    return f"simt::{name}({', '.join(operands)})"


def _parenthesised(text: str, start: int) -> tuple[str, int]:
    depth, end = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[start : end - 1], end


@cache
def _headers() -> Path:
    """The headers, the one that takes time precompiled."""
    folder = Path(shutil.copytree(SIMT, Path(_KEPT.name) / "simt"))
    header = folder / HEADER
    subprocess.run(["g++", *FLAGS, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return folder


@cache
def build(source: str) -> Path:
    """A shared library of the emulated kernel, built once; CalledProcessError where it does not compile."""
    folder = Path(tempfile.mkdtemp(dir=_KEPT.name))
    path, library = folder / "kernel.cpp", folder / "kernel.so"
    path.write_text(translate(source))
    command = ["g++", *FLAGS, "-shared", "-I", _headers(), "-include", HEADER, path, "-o", library]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


class Run(NamedTuple):
    """One call of an emulated kernel: the problem, whether asynchronous copies arrive at once instead of when they are
    waited for, and the device's multiprocessors."""

    problem: Problem
    eager: bool
    multiprocessors: int = 5


def fenced(size: int) -> tuple[np.ndarray, mmap.mmap]:
    """`size` bytes that end where a page begins that must not be touched."""
    page = mmap.PAGESIZE
    whole = -(-size // page) * page
    memory = mmap.mmap(-1, whole + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address + whole), page, 0)
    return np.frombuffer(memory, np.uint8, size, whole - size), memory


def multiply(library: Path, run: Run, shared_limit: int) -> str:
    """Runs the kernel twice on small integers, where every result is exact; what is wrong, or empty.

    A kernel that writes outside its buffers or waits for ever ends the process: use `judge`.
    """
    kernel, problem = ctypes.CDLL(str(library)), run.problem
    kernel.simt_set(int(run.eager), run.multiprocessors, ctypes.c_long(shared_limit))
    kernel.simt_conflicts.restype = ctypes.c_long
    bytes_needed = 0
    if hasattr(kernel, "hgemm_workspace"):
        kernel.hgemm_workspace.restype = ctypes.c_size_t
        bytes_needed = kernel.hgemm_workspace(problem.m, problem.n, problem.k)
        if not HEAD <= bytes_needed <= 256 << 20:
            return f"asks for {bytes_needed} bytes of workspace"
    rng = np.random.default_rng(0)
    sizes = [2 * operand.elements for operand in operators.operands(problem)]
    buffers = [fenced(size) for size in (*sizes, -(-bytes_needed // 256) * 256)]
    *given, c = (buffer.view(np.uint16) for buffer, _ in buffers[:-1])
    workspace = buffers[-1][0]
    *addresses, scratch = (ctypes.c_void_p(buffer.ctypes.data) for buffer, _ in buffers)
    for attempt in range(2):
        values = numbers.integers(problem, rng, 3)
        for buffer, value in zip(given, values, strict=True):
            buffer[:] = numbers.bits(value, problem).ravel()
        c[:] = problem.type.nan
        workspace[:HEAD], workspace[HEAD:] = 0, 0xFF
        error = kernel.hgemm(*addresses, problem.m, problem.n, problem.k, scratch, None)
        if error:
            return f"hgemm returned {error}"
        if said := numbers.wrong(c, values, problem):
            return f"run {attempt}: {said}"
        if workspace[:HEAD].any():
            return "leaves the head of the workspace non-zero"
    conflicts = kernel.simt_conflicts()
    return f"{conflicts} bank conflicts of ldmatrix" if conflicts else ""


def judge(library: Path, runs: list[Run], shared_limit: int = 227 << 10) -> str:
    """`multiply` of one run after the other, in a process of their own; what is wrong with the first that is, or empty.

    A process that did not end well is said to have ended with its exit code.
    """
    said = [(run.problem.name, run.eager, run.multiprocessors) for run in runs]
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps((str(library), shared_limit, said)), file=server.stdin, flush=True)
    return json.loads(server.stdout.readline())


@cache
def _server() -> subprocess.Popen:
    """Forks a process for each judgement: a new one would take longer to load Python and numpy than to judge."""
    here = Path(__file__)
    environment = {**os.environ, "PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here.parents[2]}"}
    command = [sys.executable, "-m", "families.emulated"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def main() -> None:
    """Answers one judgement a line, until its input ends with the tests' process."""
    for line in sys.stdin:
        print(json.dumps(_apart(*json.loads(line))), flush=True)


def _apart(*asked: object) -> str:
    with tempfile.TemporaryFile("w+") as found, tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = multiprocessing.get_context("fork").Process(target=_find, args=(found, errors, *asked))
        process.start()
        process.join(SECONDS)
        process.kill()
        process.join()
        code = process.exitcode
        said = found if code == 0 else errors
        said.seek(0)
        return said.read() if code == 0 else f"ended with {code}: {said.read()[-500:]}"


def _find(found: TextIO, errors: TextIO, library: str, shared_limit: int, runs: list[tuple[str, bool, int]]) -> None:
    for stream in (1, 2):
        os.dup2(errors.fileno(), stream)
    for name, eager, multiprocessors in runs:
        if wrong := multiply(Path(library), Run(parse(name), eager, multiprocessors), shared_limit):
            print(f"{name}: {wrong}", end="", file=found, flush=True)
            return


if __name__ == "__main__":
    main()
