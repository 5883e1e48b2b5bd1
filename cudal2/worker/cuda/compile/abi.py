"""Judge a kernel published as a torch extension without changing its text.

CUDA-L2 (https://github.com/deepreinforce-ai/CUDA-L2) publishes one `.cu` file per shape with a function
`void f(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c)` that launches on the default
stream. The headers in `shim/` stand in for torch's, so that such a file compiles as it is, in seconds, and a wrapper
appended to it puts the function behind the kernel contract. What the shim makes of the CUDA runtime calls that a
recorded call must not make is written in `shim/cudal2/recording.h`.
"""

import re
from pathlib import Path
from typing import Literal

import msgspec

from cudal2.contract import CUDA_CONTRACT, sizer_declaration
from cudal2.problem import Layout, Problem

SHIM = Path(__file__).parent / "shim"
"""Folder that holds the stand-ins for torch's headers."""

FLAGS = (
    # Ahead of the source's own includes, so that CUTLASS's allocations and waits meet the shim too.
    *("-include", "cudal2/torch.h"),
    # Launches that name no stream then go to one that can be captured.
    *("-default-stream", "per-thread"),
    # What the kernels were published with (their tools/utils.py) beyond the worker's own flags.
    *("--use_fast_math", "--expt-extended-lambda", "-diag-suppress=177"),
    *CUDA_CONTRACT.numbers(),
)

MEMORY = 32 << 30
"""Address space of each of the compiler's processes. Of 22 sources of CUDA-L2 five wanted more than 8 GiB; of 360 six
wrote a file of more than 256 MiB, where this allows 1 GiB."""

STANDARD = frozenset(
    "atomic cfloat cstdio cuda_bf16.h cuda_fp8.h float.h functional iostream memory mutex new".split()
    + "stdexcept stdio.h string".split()
)

_TENSOR = r"(?:const\s+)?(?:torch|at)\s*::\s*Tensor\s*(?:const\s*)?&{0,2}\s*(\w+)\s*"
_ENTRY = re.compile(rf"\b(\w+)\s*\(\s*{_TENSOR},\s*{_TENSOR},\s*{_TENSOR},\s*{_TENSOR}\)\s*\{{")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\r?\n|[^\n])*)", re.MULTILINE)
_NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_ALLOCATES = {
    "cudaMalloc": re.compile(r"\bcudaMalloc(?:Async)?\s*\(|\bdevice_memory\b|\bDeviceAllocation\b"),
    "torch::empty": re.compile(r"\b(?:torch|at)\s*::\s*(?:empty|zeros)(?:_like)?\s*\("),
}
"""How a source may take memory of its own, and what shows it."""
_TILE = re.compile(r"\b(BM|BN|BK)\s*=\s*Int<(\d+)>")


class Adapted(msgspec.Struct, frozen=True):
    """A published source behind the kernel contract, and what its build and its recording need.

    `source` starts with the published text, byte for byte. `flags` follow the worker's own; `includes` are folders of
    headers. `stream` is the stream the planner must capture (`cudaStreamPerThread`), and `rehearsed` whether it makes a
    call before that is not recorded. `notes` say, for the record, where the recorded call differs from the published.
    """

    source: str
    flags: tuple[str, ...]
    includes: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    stream: Literal["per-thread"] = "per-thread"
    rehearsed: bool = False


class _Definition(msgspec.Struct, frozen=True):
    """Its names for both forms of B, and its text, with that of the macros which it uses."""

    b: str
    b_col_major: str
    body: str


class _Entry(msgspec.Struct, frozen=True):
    """The function, of which a source may hold several definitions, one for each way of compiling it."""

    name: str
    definitions: tuple[_Definition, ...]


def adapt(source: str, problem: Problem) -> Adapted:
    """The published source with a wrapper `hgemm` for that problem appended.

    Only the B of the problem's layout exists: `b` for nn, `b_col_major` for tn; the other is a null pointer, so that a
    kernel which reads it fails (`layout_of` says beforehand which one a source reads). ValueError where the source
    has no function of four tensors, or several, or for a problem that is not the product alone in fp16.
    """
    if (problem.dtype, problem.epilogue) != ("fp16", "none"):
        raise ValueError(f"published kernels multiply fp16 and nothing more, not {problem.name}")
    entry = _entry(source)
    memory = [what for what, how in _ALLOCATES.items() if how.search(source)]
    return Adapted(
        source=source + _wrapper(entry.name, problem.layout, bool(memory)),
        flags=FLAGS,
        includes=(SHIM,),
        notes=tuple(_notes(source, problem, memory)),
        rehearsed=_times_itself(source),
    )


def layout_of(source: str) -> Layout:
    """Which B the published function reads: "nn" its `b` (K×N), "tn" its `b_col_major` (stored N×K).

    Read off the text: whose `data_ptr` is taken and used, or which tensor is passed on whole. ValueError where that is
    both or neither, or where there is no such function.
    """
    entry = _entry(source)
    reads = tuple(
        any(_reads(one.body, getattr(one, form), entry.name) for one in entry.definitions)
        for form in ("b", "b_col_major")
    )
    if reads == (True, False):
        return "nn"
    if reads == (False, True):
        return "tn"
    b, b_col_major = entry.definitions[0].b, entry.definitions[0].b_col_major
    what = f"both {b} and {b_col_major}" if all(reads) else f"neither {b} nor {b_col_major}"
    raise ValueError(f"{entry.name} reads {what}; a kernel is judged with one stored form of B")


def headers() -> frozenset[str]:
    """What published sources include beside the contract's headers: the shim's names, and standard ones."""
    shim = {str(path.relative_to(SHIM)) for path in SHIM.rglob("*.h") if path.parent.name != "cudal2"}
    return STANDARD | shim


def _wrapper(name: str, layout: Layout, allocates: bool) -> str:
    # Prefixed names: the published text above may define M, N, K, BM or stream as macros.
    names = [f"cudal2_{name.lower()}" for _, name in CUDA_CONTRACT.parameters()]
    a, b, c, m, n, k, workspace, _ = names
    size = f"""
{sizer_declaration((m, n, k))} {{
  return cudal2::workspace_bytes({m}, {n});
}}
"""
    return f"""

// Appended by cudal2: the function above behind the kernel contract.
{CUDA_CONTRACT.declaration(names=names)} {{
  return cudal2::call(
      [](at::Tensor cudal2_ta, at::Tensor cudal2_tb, at::Tensor cudal2_tt, at::Tensor cudal2_tc) {{
        {name}(cudal2_ta, cudal2_tb, cudal2_tt, cudal2_tc);
      }},
      {a}, {b}, {c}, {m}, {n}, {k}, {"true" if layout == "tn" else "false"}, {workspace});
}}
{size if allocates else ""}"""


def _notes(source: str, problem: Problem, memory: list[str]):
    tiles = {name: int(size) for name, size in _TILE.findall(source)}
    if len(tiles) == 3:  # their benchmark pads the matrices exactly then
        for name, axis, size in (("BM", "M", problem.m), ("BN", "N", problem.n), ("BK", "K", problem.k)):
            if tiles[name] and size % tiles[name]:
                yield f"published for {axis} padded to a multiple of {tiles[name]}; here {axis}={size} is not padded"
    for what in memory:
        yield f"its {what} is served from the workspace"
    if re.search(r"\bcuda(?:Device|Stream)Synchronize\s*\(", source):
        yield "its synchronisation is left out while it is recorded"
    if _times_itself(source):
        yield "it chooses among kernels by timing them on its first call, which is made before the recorded ones"
    if "cudaStreamCreate" in source:
        yield "its own streams are the recorded one"


def _times_itself(source: str) -> bool:
    return "cudaEventElapsedTime" in source


def _entry(source: str) -> _Entry:
    text = _NOISE.sub(lambda match: " " * len(match.group()), source)  # comments and strings out, offsets kept
    found: dict[str, list[re.Match[str]]] = {}
    for match in _ENTRY.finditer(text):
        found.setdefault(match.group(1), []).append(match)
    preferred = {name: matches for name, matches in found.items() if name.startswith("cuda_l2")}
    choice = preferred or found
    if not choice:
        raise ValueError("no function of four torch::Tensor parameters (a, b, b_col_major, c) in the source")
    if len(choice) > 1:
        raise ValueError(f"several functions take four tensors: {', '.join(choice)}")
    ((name, matches),) = choice.items()
    return _Entry(name, tuple(_definition(text, match) for match in matches))


def _definition(text: str, match: re.Match[str]) -> _Definition:
    body = _block(text, match.end() - 1)
    macros = [_of_macro(rest) for macro, rest in _MACRO.findall(text) if re.search(rf"\b{macro}\b", body)]
    return _Definition(match.group(3), match.group(4), ";\n".join([body, *macros]))


def _of_macro(rest: str) -> str:
    """What a macro stands for, in one line; its own parameters, whatever they are called, taken out."""
    rest = rest.replace("\\\n", " ")
    own, body = found.groups() if (found := re.match(r"\(([^)]*)\)(.*)", rest, re.DOTALL)) else ("", rest)
    names = re.findall(r"\w+", own)
    return re.sub(rf"\b(?:{'|'.join(names)})\b", "", body) if names else body


def _block(text: str, start: int) -> str:
    """The text from the brace at `start` to the one that closes it (to the end where none does)."""
    depth = 0
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.end()]
    return text[start:]


def _reads(body: str, tensor: str, own: str) -> bool:
    """Whether the text of the function `own` uses the tensor's memory, not only its description."""
    for match in re.finditer(rf"(?<![\w.>:]){tensor}\b\s*(?:\.\s*(\w+))?", body):
        member = match.group(1)
        before = re.split(r"[;{}]", body[: match.start()])[-1]
        if re.search(r"[\w>]\s*[&*]+\s*$|(?<!\breturn)(?<=\w)\s+$", before):
            continue  # something else of that name is declared, a lambda's parameter
        if member is None:
            # Passed on whole, unless to a check: those are macros and look at the description only. What the function
            # does when it calls itself says the rest of it.
            calls = _calls_around(before)
            if calls and calls[-1] != own and not any(name.isupper() for name in calls):
                return True
        elif member.endswith("data_ptr") or member == "unsafeGetTensorImpl":
            variable = re.search(r"(\w+)\s*=(?!=)", before)
            if variable is None or len(re.findall(rf"\b{variable.group(1)}\b", body)) > 1:
                return True
    return False


def _calls_around(before: str) -> list[str]:
    """Names of the calls still open at the end of the text, outermost first."""
    names: list[str] = []
    for mark in re.finditer(r"(\w*)\s*\(|\)", before):
        if mark.group() != ")":
            names.append(mark.group(1))
        elif names:
            names.pop()
    return names
