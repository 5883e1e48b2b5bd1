"""Runs a CUDA source of the sm_90a families on a processor: its inline PTX becomes calls into `hopper.h`.

Slow and small, for shapes of a few tiles; what it covers is said at the top of the header.
"""

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from families import numbers

from cudal2.problem import Problem

HEADER = Path(__file__).with_name("hopper.h")

INSTRUCTIONS = [
    (r"mbarrier\.init\.shared::cta\.b64 \[%(\d+)\], %(\d+)", "mbarrier_init"),
    (r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%(\d+)\], %(\d+)", "mbarrier_expect"),
    (r"mbarrier\.arrive\.shared::cta\.b64 _, \[%(\d+)\]", "mbarrier_arrive"),
    (r"mapa\.shared::cluster\.u32 there, %(\d+), %(\d+);\s*mbarrier\.arrive\.shared::cluster\.b64"
     r" _, \[there\]", "mbarrier_arrive_remote"),
    (r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, \[%(1)\], %(2);\s*selp\.u32 %(0), 1, 0, p", "mbarrier_try_wait"),
    (r"barrier\.cluster\.arrive\.relaxed;\s*barrier\.cluster\.wait;", "cluster_both"),
    (r"barrier\.cluster\.arrive\.\w+;", "cluster_arrive"),
    (r"barrier\.cluster\.wait\.acquire;", "cluster_wait"),
    (r"bar\.sync (%?\d+), (%?\d+)", "bar_sync"),
    (r"bar\.arrive (%?\d+), (%?\d+)", "bar_arrive"),
    (r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes\.multicast::cluster"
     r"(?:\.L2::cache_hint)? \[%(\d+)\], \[%(\d+), \{ %(\d+), %(\d+)\}\], \[%(\d+)\], %(\d+)", "load"),
    (r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes"
     r"(?:\.L2::cache_hint)? \[%(\d+)\], \[%(\d+), \{ %(\d+), %(\d+)\}\], \[%(\d+)\](?:, policy)?;", "load_own"),
    (r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.tile\.bulk_group(?:\.L2::cache_hint)?"
     r" \[%(\d+), \{ %(\d+), %(\d+)\}\], \[%(\d+)\]", "store"),
    (r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes\.multicast::cluster"
     r" \[%(\d+)\], \[%(\d+)\], %(\d+), \[%(\d+)\], %(\d+)", "bulk"),
    (r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
     r" \[%(\d+)\], \[%(\d+)\], %(\d+), \[%(\d+)\];", "bulk_own"),
    (r"cp\.async\.bulk\.commit_group", "store_commit"),
    (r"cp\.async\.bulk\.wait_group\.read (\d+)", "store_wait"),
    (r"wgmma\.commit_group", "wgmma_commit"),
    (r"wgmma\.wait_group\.sync\.aligned %(\d+)", "wgmma_wait"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \[%(\d+)\], \{ %(\d+), %(\d+), %(\d+), %(\d+)\}", "stmatrix"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 \[%(\d+)\], \{ %(\d+), %(\d+), %(\d+), %(\d+)\}",
     "stmatrix_trans"),
    (r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16 %(\d+), %(\d+)", "movmatrix"),
    # Sums to another block of the cluster, whose barrier counts their bytes; to the block itself by an ordinary store.
    (r"setp\.ne\.b32 mine, %(3), 0;\s*mapa\.shared::cluster\.u32 there, %(0), %(2);"
     r"\s*mapa\.shared::cluster\.u32 bar, %(1), %2;\s*@mine st\.shared\.v4\.f32 \[%0\], \{ %4, %5, %6, %7\};"
     r"\s*@!mine st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes\.v4\.f32"
     r" \[there\], \{ %(4), %(5), %(6), %(7)\}, \[bar\]", "st_async"),
    (r"ld\.shared\.v4\.f32 \{ %(\d+), %(\d+), %(\d+), %(\d+)\}, \[%(\d+)\]", "ld4"),
    (r"ld\.shared\.v4\.b32 \{ %(\d+), %(\d+), %(\d+), %(\d+)\}, \[%(\d+)\]", "ld4_words"),
    (r"st\.shared\.v4\.f32 \[%(\d+)\], \{ %(\d+), %(\d+), %(\d+), %(\d+)\}", "st4"),
    (r"cp\.async\.c[ag]\.shared\.global(?:\.L2::\w+)* \[%(\d+)\], \[%(\d+)\], 16, %(\d+)", "copy16"),
    # Sixteen bytes straight into registers, which keep what they have where a predicate says so.
    (r"setp\.ne\.b32 p, %(5), 0;\s*@p ld\.global[\w.:]*\.v4\.b32 \{ %(0), %(1), %(2), %(3)\}, \[%(4)\]", "ld16_if"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.b?f16\.b?f16\.f32 \{ %(0), %(1), %(2), %(3)\},"
     r" \{ %(4), %(5), %(6), %(7)\}, \{ %(8), %(9)\}", "mma"),
    (r"cp\.async\.commit_group", "copy_commit"),
    (r"cp\.async\.wait_group (%?\d+)", "copy_wait"),
    (r"red\.release\.gpu\.global\.add\.s32 \[%(\d+)\], (\d+)", "add_release"),
    (r"ld\.acquire\.gpu\.global\.b32 %(\d+), \[%(\d+)\]", "load_acquire"),
    (r"st\.release\.gpu\.global\.b32 \[%(\d+)\], (\d+)", "store_release"),
    (r"fence\.proxy\.async\.shared::cta", "proxy_fence"),
    (r"wgmma\.fence|fence\.mbarrier_init|setmaxnreg|prefetch\.(?:tensormap|global)|createpolicy|^$", "nothing"),
]  # fmt: skip
"""What each PTX statement calls; groups are operands, or numbers where they have no %."""

ORDER = {"mbarrier_try_wait": (2, 0, 1), "st_async": (1, 3, 2, 0, 4, 5, 6, 7)}
"""Groups that the text has in another order than the call."""

WGMMA = re.compile(r"m64n(\d+)k16\.\w+\.b?f16\.b?f16 \{(.*?)\}, %(\d+), %(\d+), p, 1, 1, 0, ([01]);", re.DOTALL)

COOPERATIVE = re.compile(
    r"void\* arguments\[\] = \{(.*?)\};\s*return cudaLaunchCooperativeKernel\("
    r"\s*\(const void\*\)(\w+), (.*?), (\w+), arguments, (\w+), stream\);",
    re.DOTALL,
)


def translate(source: str) -> str:
    """The source as C++ over `hopper.h`; ValueError for a PTX statement that it does not know."""
    source = re.sub(r"#include <(cuda|cuda_fp16|cuda_bf16|cuda_runtime)\.h>\n", "", source)
    source = re.sub(r"//.*", "", source)
    source = re.sub(r"#pragma unroll.*", "", source)
    clusters = re.search(r"__cluster_dims__\((.+?), 1, 1\)", source)
    source = re.sub(r"__cluster_dims__\(.*?\) ", "", source)
    source = source.replace("extern __shared__ uint8_t raw[];", "uint8_t* raw = (uint8_t*)emu::dynamic_shared();")
    source = re.sub(r"__shared__ (\w+) (\w+);", r"\1& \2 = emu::static_shared<\1>(__LINE__);", source)
    launch = f"emu::launch((\\2), \\3, \\4, {clusters.group(1) if clusters else 1}, [=] {{ \\1(\\5); }});"
    source = re.sub(r"(\w+)<<<(.*?), (\w+), (\w+), stream>>>\((.*?)\);", launch, source, flags=re.DOTALL)
    source = COOPERATIVE.sub(_launch_together, source)
    pieces, rest = [], source
    while (at := rest.find("asm volatile(")) >= 0:
        end = _closing(rest, at + len("asm volatile"))
        pieces += [rest[:at], _call(rest[at + len("asm volatile(") : end])]
        rest = rest[end + 1 :]
    kind = "static const bool said = emu::bfloat = true;\n" if "__nv_bfloat16" in source else ""
    return f'#include "{HEADER.name}"\n{kind}' + "".join(pieces) + rest


def _launch_together(found: re.Match[str]) -> str:
    pointers, kernel, grid, threads, shared = found.groups()
    arguments = ", ".join(pointer.strip().removeprefix("(void*)").removeprefix("&") for pointer in pointers.split(","))
    return f"return emu::launch_together({grid}, {threads}, {shared}, [=] {{ {kernel}({arguments}); }});"


FLAGS = ["-std=c++17", "-O1", "-march=native", "-w", "-fPIC"]
_KEPT = tempfile.TemporaryDirectory(prefix="cudal2-hopper-")


@cache
def _precompiled() -> tuple[Path, Path]:
    """A folder with the header and what it declares as an object, both compiled once: most of every build's time."""
    header, definitions = HEADER.name, HEADER.with_suffix(".cpp")
    folder = Path(shutil.copy(HEADER, _KEPT.name)).parent
    (folder / "simt").mkdir()
    shutil.copy(HEADER.parent / "simt" / "cuda_bf16.h", folder / "simt")
    emulator = folder / "hopper.o"
    for flags in (
        ["-x", "c++-header", folder / header, "-o", folder / f"{header}.gch"],
        ["-O2", "-c", definitions, "-o", emulator],
    ):
        subprocess.run(["g++", *FLAGS, *flags], check=True)
    return folder, emulator


@cache
def build(source: str) -> ctypes.CDLL:
    """The translated source as a library with `hgemm`, built once."""
    path = Path(tempfile.mkdtemp(dir=_KEPT.name)) / "emulated.cpp"
    path.write_text(translate(source))
    headers, emulator = _precompiled()
    command = ["g++", *FLAGS, "-shared", "-I", headers, path, emulator, "-o", path.with_suffix(".so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    library = ctypes.CDLL(str(path.with_suffix(".so")))
    library.emulator_report.restype = ctypes.c_char_p
    return library


def run(library: ctypes.CDLL, problem: Problem, seed: int, processors: int) -> str:
    """What is wrong with the library's answer to a problem of small integers; empty where nothing is.

    C and the workspace start as NaN, C has guard bands, the workspace's head must be zero again.
    """
    rng = np.random.default_rng(seed)
    values, given = numbers.integers(problem, rng, 2), []
    for value in values:
        given.append(_aligned(tuple(value.shape), np.uint16))
        given[-1][:] = numbers.bits(value, problem)
    guard = 4096
    c = _aligned((problem.m * problem.n + 2 * guard,), np.uint16)
    c[:] = problem.type.nan
    size = 1 << 14
    if hasattr(library, "hgemm_workspace"):
        library.hgemm_workspace.restype = ctypes.c_size_t
        library.emulator_reset(seed, processors)
        size = max(size, library.hgemm_workspace(problem.m, problem.n, problem.k))
    workspace = _aligned((size // 4 + 64,), np.float32)
    workspace[:] = np.nan
    workspace[:4096] = 0
    inside = c[guard:-guard]
    library.emulator_reset(seed, processors)
    *pointers, scratch = (ctypes.c_void_p(array.ctypes.data) for array in (*given, inside, workspace))
    error = library.hgemm(*pointers, problem.m, problem.n, problem.k, scratch, None)
    if error or library.emulator_report():
        return f"error {error}: {library.emulator_report().decode()}"
    if said := numbers.wrong(inside, values, problem):
        return said
    if (c[:guard] != problem.type.nan).any() or (c[-guard:] != problem.type.nan).any():
        return "written outside C"
    if workspace[:4096].view(np.int32).any():
        return "the workspace's head is not zero"
    if not np.isnan(workspace[size // 4 :]).all():
        return "written beyond the workspace"
    return ""


def _aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 256, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size].view(dtype).reshape(shape)


def _closing(text: str, opening: int) -> int:
    depth, quoted, at = 0, False, opening
    while True:
        if text[at] == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            if depth == 0:
                return at
        at += 1


def _call(statement: str) -> str:
    strings = re.match(r'\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', statement)
    assert strings is not None, statement
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', strings.group(1))).replace("\\n", "\n")
    operands, rest = [], statement[strings.end() :]
    while found := re.search(r'"[+=]?[rlfhn]"\s*\(', rest):
        end = _closing(rest, found.end() - 1)
        operands.append(rest[found.end() : end])
        rest = rest[end + 1 :]
    if "wgmma.mma_async" in text:
        shape = WGMMA.search(text)
        assert shape is not None, text
        n, sums, a, b, transposed = shape.groups()
        add = re.search(r"setp\.ne\.b32 p, %(\d+), 0", text)
        assert add is not None
        chosen = [operands[int(i)] for i in (a, b, add.group(1), *re.findall(r"%(\d+)", sums))]
        return f"emu::wgmma({n}, {transposed}, {', '.join(chosen)})"
    for pattern, name in INSTRUCTIONS:
        if found := re.search(pattern, text):
            groups = found.groups()
            marked = [text[found.start(i + 1) - 1] == "%" for i in range(len(groups))]
            values = [operands[int(g.lstrip("%"))] if m or g.startswith("%") else g for g, m in zip(groups, marked)]
            return f"emu::{name}({', '.join(values[i] for i in ORDER.get(name, range(len(values))))})"
    raise ValueError(f"no emulation of {text!r}")
