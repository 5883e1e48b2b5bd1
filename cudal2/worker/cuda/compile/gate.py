"""Read a built candidate before anything of it runs: what its instructions and its symbols give away.

A gate names a fault early and cheaply. It is never the only defence: what a kernel computes is measured by
`verify`, what its host code does is confined by the jail. One thing it cannot see: the accumulator of tcgen05's
UTCHMMA (sm_100a), and whether it multiplies fp16 or bf16, stand in a descriptor made at run time, so there only the
measured error tells. Nor is arithmetic of 16 bits outside of matrix instructions refused, be it HFMA2 or HFMA2.BF16: a
finish may use it, and sums that are kept so are measured.

Instruction names: CUDA Binary Utilities, "Instruction Set Reference", and samples of each kind of `mma`, `wgmma` and
`tcgen05.mma` compiled for each target. Sections and symbols of a cubin are ELF's.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from cudal2.contract import CUDA_CONTRACT, ENTRY, SIZER
from cudal2.problem import Problem
from cudal2.records import CLOCKED, Status, digest
from cudal2.worker import apart
from cudal2.worker.build import Unfinished
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import cubin, parameters, registers, sass, toolchain
from cudal2.worker.cuda.compile.build import CudaBuild
from cudal2.worker.cuda.compile.cubin import elf_symbols, open_elf
from cudal2.worker.cuda.compile.sass import Sass
from cudal2.worker.sandbox import jail

SECONDS = 30.0
"""Wall time the disassembler may take, and CPU time whoever reads what it prints; a CuTe kernel takes a second."""
ENTRY_POINTS = frozenset({ENTRY, SIZER})
_RESERVED = ".nv.reservedSmem."
"""How the assembler calls the shared memory that is the system's; no name in PTX begins so."""
_NARROW = frozenset({"E4M3", "E5M2", "E2M1", "E2M3", "E3M2"})
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

    Of the problem only `accumulate` and `dtype` matter, and which disassembler there is. What a clock decided is found
    again each time. Raises HarnessFault where there is no disassembler or no jail.
    """
    modules = (cubin, sass, parameters, registers)
    rules = [Path(file).read_text() for file in (__file__, *(str(module.__file__) for module in modules))]
    seen = *built.imports, "", *built.parameters, "", *built.special, "", *built.unwritten
    asked = toolchain.disassembler(), problem.accumulate, problem.dtype
    key = digest("gate", *rules, built.cubin.hex(), built.library.hex(), *seen, *asked)
    with cache.lock("gates", key):
        stored = cache.read("gates", key)
        if stored is not None:
            return msgspec.msgpack.decode(stored, type=tuple[Finding, ...])
        try:
            with sass.listing(built.cubin, kind, seconds) as lines:
                findings = apart.read(_findings, built, problem, Path(lines.name), seconds=seconds)
        except (Unfinished, apart.Slow) as error:
            findings = (Finding("unreadable", str(error), status=Status.COMPILE_TIMEOUT),)
        except ValueError as error:
            findings = (Finding("unreadable", str(error)),)
        found = tuple(sorted(findings, key=lambda finding: not finding.fatal))
        if CLOCKED.isdisjoint(finding.status for finding in found):
            cache.write("gates", key, msgspec.msgpack.encode(found))
        return found


def _findings(built: CudaBuild, problem: Problem, listing: Path) -> tuple[Finding, ...]:
    with listing.open("rb") as lines:
        code = sass.summarise(lines)
    found = [*_instructions(code, problem), *_cubin(built.cubin, code)]
    found += [Finding("special_register", f"{fault}; {registers.SPECIAL_REMEDY}") for fault in built.special]
    found += [Finding("unwritten_register", f"{one}; {registers.UNWRITTEN_REMEDY}") for one in built.unwritten]
    found += [Finding("parameters", f"{fault}; {parameters.REMEDY}") for fault in built.parameters]
    if built.library:  # what was exported has no host code left
        found += _host(built.library, built.imports)
    return tuple(found)


def _instructions(code: Sass, problem: Problem) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for operation in sorted(code.operations):
        if name := _suspicion(operation, problem):
            seen.setdefault(name, operation)
    for name, operation in seen.items():
        status = Status.IMPRECISE if name == "fp16_accumulate" else Status.REJECTED
        yield Finding(name, f"{_MEANING[name]}: {operation}", status=status)
    if read := sorted(code.special - sass.SPECIAL):
        yield Finding("special_register", f"the kernel reads {_some(read)}; {registers.SPECIAL_REMEDY}")


_MEANING = {
    "fp16_accumulate": "a matrix instruction accumulates in f16 where the problem asks for f32",
    "integer_mma": "a matrix instruction multiplies integers",
    "fp8_mma": "values are narrowed to eight bits or fewer",
    "bf16_mma": "a matrix instruction multiplies bf16, which has fewer digits than f16",
    "fp16_mma": "a matrix instruction multiplies f16, which has a narrower range than bf16",
}


def _suspicion(instruction: str, problem: Problem) -> str | None:
    """The name in `_MEANING` of what an instruction does wrong: `HMMA.16816.F16`."""
    operation, *modifiers = instruction.split(".")
    if re.fullmatch(r"(?:UTC)?[IB]G?MMA(?:A)?", operation):
        return "integer_mma"
    if re.fullmatch(r"(?:UTC)?(?:MX)?[QO]G?MMA", operation) or _NARROW.intersection(modifiers):
        return "fp8_mma"
    if operation in ("HMMA", "HGMMA"):
        type_ = "bf16" if "BF16" in modifiers else "tf32" if "TF32" in modifiers else "fp16"
        if type_ not in (problem.dtype, "tf32"):
            return f"{type_}_mma"
        if "F16" in modifiers and problem.accumulate == "f32":
            return "fp16_accumulate"
    return None


def _cubin(cubin: bytes, code: Sass) -> Iterator[Finding]:
    """Kernels, what they read of their parameters, state that outlives a launch, and functions that the device's
    runtime would have to supply.

    Raises ValueError where the cubin is no ELF file.
    """
    table = elf_symbols(cubin, ".symtab")
    with open_elf(cubin) as file:
        sections = [(section.name, section["sh_size"]) for section in file.iter_sections()]
        used, code_read = _used(file, code.slots)
    yield from _constants(code, dict(sections))
    if not any(name.startswith(".text.") and size for name, size in sections):
        yield Finding("no_kernel", "the source defines no __global__ function that is instantiated")
    globals_ = {index for index, (name, size) in enumerate(sections) if name.startswith(".nv.global") and size}
    tables = {index for index, (name, _) in enumerate(sections) if name.startswith(".nv.constant3")}
    if names := [s.name for s in table if s["st_shndx"] in globals_ and s.name in used]:
        yield Finding(
            "writable_globals",
            f"{_some(names)} live in writable memory between launches; keep state in the workspace, "
            "tables in __constant__ memory",
        )
    if constants := [s.name for s in table if s["st_shndx"] in tables and s.name in used]:
        yield Finding(
            "constant_memory",
            f"the address of {_some(constants)} is kept; read __constant__ tables by their names, with an index",
        )
    if code_read:
        yield Finding(
            "code_address", f"the address of {_some(code_read)} is read: code may be called, and nothing else"
        )
    missing = [s.name for s in table if s["st_shndx"] == "SHN_UNDEF" and s.name and not s.name.startswith(_RESERVED)]
    if missing:
        yield Finding("unresolved_symbols", f"device code calls {_some(missing)}, which the contract does not allow")


def _constants(code: Sass, sizes: dict[str, int]) -> Iterator[Finding]:
    """What is read of constant banks that is not the kernel's own; one finding of each kind for each kernel."""
    known = sass.words(code.architecture) if code.reads else None
    wrong = {(sass.fault(read, known, sizes), read.code): read for read in code.reads} if known else {}
    for (fault, kernel), read in sorted((item for item in wrong.items() if item[0][0]), key=lambda item: item[0]):
        kernel, place = _some([kernel]), f"c[{read.bank:#x}][{'…+' if read.computed else ''}{read.offset:#x}]"
        if fault in ("beyond", "computed"):
            how = "beyond its end" if fault == "beyond" else "at a place that is computed"
            yield Finding("parameters", f"{kernel} reads its parameters {how}; {parameters.REMEDY}")
        elif fault == "driver":
            yield Finding("driver_word", f"{kernel} reads {place}, which is the driver's; {registers.SPECIAL_REMEDY}")
        else:
            yield Finding("constant_memory", f"{kernel} reads {place}, where it has no constants")


def _used(file: ELFFile, slots: frozenset[int] | None) -> tuple[set[str], list[str]]:
    """Names whose address something uses; and kernels and functions whose address stands in memory that instructions
    read.

    Kernels read addresses from constant bank 4, which has a slot for every global. Headers of CuTe and of the C++
    library leave empty objects there that no instruction reads: those hold no state.
    """
    names, code = set(), set()
    for section in file.iter_sections():
        if not isinstance(section, RelocationSection) or ".debug" in section.name:
            continue
        symbols_ = cast(SymbolTableSection, file.get_section(section["sh_link"]))
        bank4, data = section.name.endswith(".nv.constant4"), re.search(r"\.nv\.(?:constant|global)", section.name)
        for entry in section.iter_relocations():
            if bank4 and slots is not None and entry["r_offset"] & ~7 not in slots:
                continue
            symbol = symbols_.get_symbol(entry["r_info_sym"])
            names.add(symbol.name)
            place = symbol["st_shndx"]  # a number where the symbol is defined here
            if data and isinstance(place, int) and file.get_section(place).name.startswith(".text"):
                code.add(symbol.name or "a function")
    return names, sorted(code)


def _host(library: bytes, imports: tuple[str, ...]) -> Iterator[Finding]:
    """What the shared object offers and what its own host code asks of others; ValueError where it is no ELF file."""
    exported = {s.name for s in elf_symbols(library, ".dynsym") if s["st_shndx"] != "SHN_UNDEF"}
    if ENTRY not in exported:
        yield Finding("no_entry", f"nothing defines {CUDA_CONTRACT.declaration()}")
    if posing := sorted(name for name in exported - ENTRY_POINTS if _VENDOR.match(name)):
        yield Finding("extra_symbols", f"host code defines {_some(posing)}, names of the vendor's libraries")
    if unusual := sorted(name for name in imports if _UNUSUAL.fullmatch(name)):
        yield Finding("extra_symbols", f"host code uses {_some(unusual)}; it should only enqueue kernels", fatal=False)


def _some(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:4]) + (" and others" if len(names) > 4 else "")
