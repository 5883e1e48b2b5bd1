"""Read a built candidate before anything of it runs: what its instructions and its symbols give away.

A gate names a fault early and cheaply. It is never the only defence: what a kernel computes is measured by
`verify`, what its host code does is confined by the jail. One thing it cannot see: the accumulator of tcgen05's
UTCHMMA (sm_100a) stands in a descriptor made at run time, so there only the measured error tells f16 from f32.

Instruction names: CUDA Binary Utilities, "Instruction Set Reference", and samples of each kind of `mma`, `wgmma` and
`tcgen05.mma` compiled for each target. Sections and symbols of a cubin are ELF's.
"""

import io
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from elftools.elf.elffile import ELFFile

from cudal2.problem import Accumulate, Problem
from cudal2.records import HarnessFault, Status, digest
from cudal2.worker import jail, seccomp
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import toolchain
from cudal2.worker.cuda.build import CudaBuild, symbols

SECONDS = 30.0
"""Wall time the disassembler may take; a CuTe kernel takes under a second."""
SASS_BYTES = 512 << 20

ENTRY_POINTS = frozenset({"hgemm", "hgemm_workspace"})
_NARROW = frozenset({"E4M3", "E5M2", "E2M1", "E2M3", "E3M2"})
_INSTRUCTION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_CLOCK = re.compile(rb"\bSR_(?:CLOCK|GLOBALTIMER)\w*")
_VENDOR = re.compile(r"(?:cu|nv)(?:[A-Z]|blas|da|dnn|fft|rand|solver|sparse|rtc|JitLink)|__cuda|__nv")
_UNUSUAL = re.compile(
    r"dl(?:m?open|v?sym|close|addr|_iterate_phdr)|v?fork|clone|exec[vl]p?e?|posix_spawnp?|system|popen|pthread_\w+"
    r"|socket|connect|bind|sendto|ptrace|syscall|kill|f?open(?:at)?(?:64)?|mmap(?:64)?|mprotect|signal|sigaction|set?jmp"
    r"|cuda(?:Malloc|Free|HostAlloc|Memcpy|StreamCreate|EventCreate|LaunchHostFunc|StreamAddCallback|Graph|Module"
    r"|Library|DeviceSynchronize|StreamSynchronize|DeviceReset|SetDevice)\w*"
)


class Finding(msgspec.Struct, frozen=True):
    """One thing found: `fatal` ends the judgement with `status`, anything else is a hint for a reader."""

    name: str
    detail: str
    fatal: bool = True
    status: Status = Status.REJECTED


def inspect(
    built: CudaBuild, problem: Problem, cache: Cache, kind: jail.Kind, seconds: float = SECONDS
) -> tuple[Finding, ...]:
    """What speaks against a build that is ok, fatal findings first; recalled where it was found before.

    Of the problem only `accumulate` matters. Raises HarnessFault where there is no disassembler or no jail.
    """
    rules = digest(Path(__file__).read_text())
    key = digest("gate", rules, built.cubin.hex(), built.library.hex(), *built.imports, problem.accumulate)
    with cache.lock("gates", key):
        stored = cache.read("gates", key)
        if stored is not None:
            return msgspec.msgpack.decode(stored, type=tuple[Finding, ...])
        found = (
            *_instructions(built.cubin, problem.accumulate, kind, seconds),
            *_cubin(built.cubin),
            *_host(built.library, built.imports),
        )
        found = tuple(sorted(found, key=lambda finding: not finding.fatal))
        cache.write("gates", key, msgspec.msgpack.encode(found))
        return found


def _instructions(cubin: bytes, accumulate: Accumulate, kind: jail.Kind, seconds: float) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    try:
        for instruction in sorted(_disassemble(cubin, kind, seconds)):
            if name := _suspicion(instruction, accumulate):
                seen.setdefault(name, instruction)
    except ValueError as error:
        yield Finding("unreadable", str(error))
    for name, instruction in seen.items():
        status = Status.IMPRECISE if name == "fp16_accumulate" else Status.REJECTED
        yield Finding(name, f"{_MEANING[name]}: {instruction}", status=status)


_MEANING = {
    "fp16_accumulate": "a matrix instruction accumulates in f16 where the problem asks for f32",
    "integer_mma": "a matrix instruction multiplies integers",
    "fp8_mma": "values are narrowed to eight bits or fewer",
    "bf16_mma": "a matrix instruction multiplies bf16, which has fewer digits than f16",
    "clock_read": "the kernel reads a clock",
}


def _suspicion(instruction: str, accumulate: Accumulate) -> str | None:
    """The name in `_MEANING` of what an instruction does wrong: `HMMA.16816.F16`, `CS2R SR_CLOCKLO`."""
    if "SR_" in instruction:
        return "clock_read"
    operation, *modifiers = instruction.split(".")
    if re.fullmatch(r"(?:UTC)?[IB]G?MMA(?:A)?", operation):
        return "integer_mma"
    if re.fullmatch(r"(?:UTC)?(?:MX)?[QO]G?MMA", operation) or _NARROW.intersection(modifiers):
        return "fp8_mma"
    if operation in ("HMMA", "HGMMA"):
        if "BF16" in modifiers:
            return "bf16_mma"
        if "F16" in modifiers and accumulate == "f32":
            return "fp16_accumulate"
    return None


def _disassemble(cubin: bytes, kind: jail.Kind, seconds: float) -> set[str]:
    """Every different operation of a cubin, with its modifiers; reads of a clock with their source.

    nvdisasm parses bytes that a stranger chose, so it runs in the jail. ValueError where it cannot read them.
    """
    program = toolchain.nvdisasm()
    if program is None:
        raise HarnessFault("nvdisasm, the CUDA disassembler, is not installed", toolchain.REMEDY)
    folder = jail.job_folder()
    try:
        (folder / "kernel.cubin").write_bytes(cubin)
        jailed = jail.start(
            kind,
            # The jail has no standard output; the shell gives it a file.
            ["/bin/sh", "-c", 'exec "$0" -c -ndf kernel.cubin > sass', str(program)],
            readable=[] if program.is_relative_to("/usr") else [program.parent],
            writable=[folder],
            limits=jail.Limits(file_size=SASS_BYTES, cpu_seconds=int(seconds) + 1),
            filter_program=seccomp.toolchain(),
        )
        try:
            code = jailed.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            jailed.kill()
        sass = folder / "sass"
        if code != 0 or sass.is_symlink() or not sass.is_file():
            ended = f"did not end within {seconds:g} s" if code is None else f"ended with {code}"
            raise ValueError(f"the disassembler {ended}")
        with sass.open("rb") as lines:
            return _operations(lines)
    except OSError as error:
        raise HarnessFault(
            f"cannot read a cubin in {folder}: {error}", "Make room, or point TMPDIR elsewhere"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _operations(lines: Iterable[bytes]) -> set[str]:
    found: set[str] = set()
    for line in lines:
        if hit := _INSTRUCTION.match(line):
            clock = _CLOCK.search(hit.group(2))
            found.add((hit.group(1) + (b" " + clock.group() if clock else b"")).decode())
    return found


def _cubin(cubin: bytes) -> Iterator[Finding]:
    """Kernels, state that outlives a launch, and functions that the device's runtime would have to supply."""
    try:
        table = symbols(cubin, ".symtab")
        sections = [(section.name, section["sh_size"]) for section in ELFFile(io.BytesIO(cubin)).iter_sections()]
    except ValueError as error:
        yield Finding("unreadable", f"cubin: {error}")
        return
    if not any(name.startswith(".text.") and size for name, size in sections):
        yield Finding("no_kernel", "the source defines no __global__ function that is instantiated")
    globals_ = {index for index, (name, size) in enumerate(sections) if name.startswith(".nv.global") and size}
    if globals_:
        names = [s.name for s in table if s["st_shndx"] in globals_ and s["st_info"]["type"] == "STT_OBJECT"]
        yield Finding(
            "writable_globals",
            f"{_some(names)} live in writable memory between launches; keep state in the workspace, "
            "tables in __constant__ memory",
        )
    missing = [s.name for s in table if s["st_shndx"] == "SHN_UNDEF" and s["st_info"]["bind"] == "STB_GLOBAL"]
    if missing:
        yield Finding("unresolved_symbols", f"device code calls {_some(missing)}, which the contract does not allow")


def _host(library: bytes, imports: tuple[str, ...]) -> Iterator[Finding]:
    """What the shared object offers and what its own host code asks of others."""
    try:
        exported = {s.name for s in symbols(library, ".dynsym") if s["st_shndx"] != "SHN_UNDEF"}
    except ValueError as error:
        yield Finding("unreadable", f"shared object: {error}")
        return
    if "hgemm" not in exported:
        yield Finding("no_entry", 'the source defines no extern "C" function hgemm')
    if posing := sorted(name for name in exported - ENTRY_POINTS if _VENDOR.match(name)):
        yield Finding("extra_symbols", f"host code defines {_some(posing)}, names of the vendor's libraries")
    if unusual := sorted(name for name in imports if _UNUSUAL.fullmatch(name)):
        yield Finding("extra_symbols", f"host code uses {_some(unusual)}; it should only enqueue kernels", fatal=False)


def _some(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:4]) + (" and others" if len(names) > 4 else "")
