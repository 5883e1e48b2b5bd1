"""Compile a CUDA candidate in the jail, once: a shared object for its host code, a cubin for its kernels.

Both come out of one device compilation. The cubin is the file that ptxas wrote, not what the shared object
carries: host code can put bytes of its own choice into the sections of a shared object.
"""

import math
import re
import stat
import time
from pathlib import Path

import msgspec

from cudal2.contract import PLAIN
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status, digest
from cudal2.target import Target
from cudal2.worker import apart, diagnostics
from cudal2.worker.build import MIDNIGHT, check_space, job, once, readable, write_source
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import messages, parameters, ptx, registers, toolchain
from cudal2.worker.cuda.compile.cubin import elf_symbols
from cudal2.worker.cuda.compile.messages import Resources
from cudal2.worker.cuda.compile.toolchain import Toolchain
from cudal2.worker.sandbox import jail, seccomp

FLAGS = (
    *("-shared", "-cudart", "static", "--no-device-link", "-Xptxas", "-v", "--keep", "--keep-dir", "."),
    *("-Xcompiler", "-fPIC,-fmax-errors=5,-fdiagnostics-color=never,-fno-diagnostics-show-caret"),
    # Without the second the runtime's own symbols would hide which names the candidate defines.
    *("-Xlinker", "--no-undefined", "-Xlinker", "--exclude-libs,ALL"),
)
CUBIN_BYTES = 16 << 20
"""Largest cubin accepted; a CUTLASS kernel has 100 KB."""
LIBRARY_BYTES = 16 << 20
"""Of a shared object, an object file, or PTX; what is accepted is kept, and nobody throws it away."""
IMPORT_BYTES = 64 << 10
"""Of all names that the host code does not define; CUTLASS's have 2 KB."""
FAULT_BYTES = 300
"""Of what is said of one kernel."""
MEMORY = 8 << 30
"""Address space of each of the compiler's processes; CuTe takes up to 3.1 GB of memory."""
FILES = 32
"""A file of the compiler's may have this part of its memory: 256 MiB where that is 8 GiB."""
READERS = (messages, parameters, ptx, registers, diagnostics)
"""What has a say in what a build is, beside this module."""
STARTED = "started"
"""The file that the jail's first step makes, before anything reads the source: so a source cannot say that the jail did
not start."""
CANNOT_RUN = (126, 127)
"""What a shell, or a jail that cannot start another process, answers with."""
MESSAGE_BYTES = 4 << 20
"""How far the compiler's output is read in search of what ptxas says about each kernel."""

_DIRECTIVE = re.compile(r"^[^\S\n]*(?:#(?! \d+ \"|pragma )|%:|\?\?=).*", re.MULTILINE)
"""A directive in a preprocessed source that no preprocessor left: the compiler behind it would obey."""


class CudaBuild(msgspec.Struct, frozen=True):
    """What the compiler made of a source; `library` and `cubin` are empty unless `status` is ok.

    `imports` are the names that the candidate's own host code leaves to other libraries, `headers` the files it
    included, by path, with the SHA-256 of their contents. `parameters` says what its PTX does with its kernels'
    parameters that it must not, `special` which special registers it must not read,
    `unwritten` which registers it reads that nothing writes. `reason` is empty where the log's first error is why it
    failed.
    """

    status: Status
    library: bytes = b""
    cubin: bytes = b""
    log: str = ""
    resources: tuple[Resources, ...] = ()
    imports: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    seconds: float = 0.0
    headers: dict[str, str] = {}
    reason: str = ""


def build(
    source: str,
    target: Target,
    cache: Cache,
    kind: jail.Kind,
    seconds: float = 60.0,
    includes: tuple[Path, ...] = (),
    extra_flags: tuple[str, ...] = (),
    memory: int = MEMORY,
    problem: Problem = PLAIN,
) -> CudaBuild:
    """Compile `source` for `target` in a jail of that kind, `seconds` of CPU time for each process, or recall it.

    Of the problem only its types and operands matter. `includes` are further folders of headers; `memory` is the
    address space, in bytes, of each compiler process. A recalled build counts only while every header it included is
    unchanged. A source that fails to compile is a CudaBuild with its status; HarnessFault is for a missing compiler, a
    jail that does not start or a full disk.
    """
    tools = toolchain.find()
    folders = tuple(toolchain.reachable(folder.resolve()) for folder in includes)
    flags = (*FLAGS, *target.flags, *extra_flags)
    key = digest(
        *("cuda", source, diagnostics.contract_header(target.contract, problem=problem), " ".join(flags)),
        *(tools.version, tools.host_version, target.name),
        *(Path(file).read_text() for file in (__file__, *(str(module.__file__) for module in READERS))),
        *map(str, (*folders, *tools.cutlass)),
        # A header that appears can change a build that never read it.
        *(str(file) for folder in folders for file in sorted(folder.rglob("*"))),
    )
    return once(
        cache,
        key,
        CudaBuild,
        lambda: diagnostics.checked_declarations(
            target.contract,
            lambda *beside: _compile(source, target, tools, flags, folders, kind, seconds, memory, *beside),
            problem,
        ),
        current=lambda known: toolchain.unchanged_headers(known.headers),
    )


def _compile(
    source: str,
    target: Target,
    tools: Toolchain,
    flags: tuple[str, ...],
    includes: tuple[Path, ...],
    kind: jail.Kind,
    seconds: float,
    memory: int,
    appended: str,
    header: str,
) -> CudaBuild:
    """The source with a text appended, beside the contract's header."""
    started = time.perf_counter()
    folders = (*includes, *tools.cutlass)
    with job("build") as folder:
        write_source(folder / f"kernel{target.suffix}", source + appended)
        write_source(folder / diagnostics.HEADER, header)
        with (folder / "log").open("w+b") as stderr:
            code = jail.run(
                kind,
                [
                    *("/bin/sh", "-c", ': > "$0" && exec "$@"', STARTED),
                    *tools.command,
                    *flags,
                    *(word for place in folders for word in ("-isystem", str(place))),
                    *(f"kernel{target.suffix}", "-o", "kernel.so"),
                ],
                apart.PATIENCE * seconds,
                readable=[*tools.readable, *includes],
                writable=[folder],
                limits=jail.Limits(address_space=memory, file_size=memory // FILES, cpu_seconds=math.ceil(seconds)),
                environment={"TMPDIR": str(folder), **MIDNIGHT},
                filter_program=seccomp.toolchain(),
                stderr=stderr.fileno(),
            )
            stderr.seek(0)
            text = stderr.read(MESSAGE_BYTES).decode(errors="replace")
        elapsed = time.perf_counter() - started
        if not (folder / STARTED).exists():
            raise HarnessFault(f"the jail did not start the compiler: {text[:300].strip()}", jail.remedy(kind))
        if code in CANNOT_RUN:
            raise HarnessFault(f"the compiler could not be run ({code}): {text[:200]}", "Try again; see doctor")
        if code != 0:
            check_space(folder)
        places = (tools.root, Path("/usr"), *folders)
        try:
            made = apart.read(_read, folder, text, code, elapsed >= seconds, memory, places, seconds=seconds)
        except apart.Slow as error:
            made = CudaBuild(Status.COMPILE_TIMEOUT, log=str(error), reason=str(error))
        except ValueError as error:
            made = _refused(f"what the compiler made: {error}")
        return msgspec.structs.replace(made, seconds=elapsed)


def _refused(reason: str, log: str = "") -> CudaBuild:
    return CudaBuild(Status.REJECTED, log=f"{reason}\n{log}".strip(), reason=reason)


def _read(folder: Path, text: str, code: int | None, long: bool, memory: int, places: tuple[Path, ...]) -> CudaBuild:
    """What the compiler left in its folder, said, and ended with. `long`: it had no time left."""
    log = readable(messages.uncommon(text), folder)
    sources = [_output(file, memory // FILES) for file in sorted(folder.glob("*.ii"))]
    made = CudaBuild(Status.OK, log=log, headers=toolchain.entered_headers(sources, places))
    if left := next((found for one in sources if (found := _DIRECTIVE.search(one.decode(errors="replace")))), None):
        return _refused(f"a directive is made by a macro: {' '.join(left[0].split())[:80]}", log)
    if code == 0:
        return _finished(made, folder, text)
    if code is None or messages.ended_early(text, long):
        return msgspec.structs.replace(made, status=Status.COMPILE_TIMEOUT)
    reason, log = "", made.log or f"the compiler ended with {code}"
    if messages.out_of_room(text):
        room = f"{memory >> 20} MiB of memory and {memory // FILES >> 20} MiB a file"
        reason = f"the compiler failed within its limits of {room}"
        log = f"{reason}\n{log}"
    return msgspec.structs.replace(made, status=Status.COMPILE_ERROR, log=log, reason=reason)


def _finished(made: CudaBuild, folder: Path, text: str) -> CudaBuild:
    try:
        library = _output(folder / "kernel.so", LIBRARY_BYTES)
        cubin = _output(folder / "kernel.cubin", CUBIN_BYTES)
        objects = elf_symbols(_output(folder / "kernel.o", LIBRARY_BYTES), ".symtab")
        code = _output(folder / "kernel.ptx", LIBRARY_BYTES).decode(errors="replace")
    except ValueError as error:
        return msgspec.structs.replace(made, status=Status.COMPILE_ERROR, log=f"{error}\n{made.log}", reason=str(error))
    found = faults(code)
    imports = tuple(sorted({symbol.name for symbol in objects if symbol["st_shndx"] == "SHN_UNDEF"}))
    if sum(map(len, imports)) > IMPORT_BYTES:
        return _refused(
            f"the host code leaves names of more than {IMPORT_BYTES >> 10} KiB to other libraries", made.log
        )
    return msgspec.structs.replace(
        made,
        library=library,
        cubin=cubin,
        resources=messages.resources(text),
        imports=imports,
        parameters=found[0],
        special=found[1],
        unwritten=found[2],
    )


def faults(code: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What speaks against a PTX file: what it does with parameters, special registers, and registers not written."""
    try:
        bodies = tuple(ptx.bodies(code))
    except ValueError as error:
        return (str(error)[:FAULT_BYTES],), (), ()
    return (
        _cut(parameters.faults(bodies)),
        _cut(registers.special_faults(bodies)),
        _cut(registers.unwritten_faults(bodies)),
    )


def _cut(faults: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fault[:FAULT_BYTES] for fault in faults)


def _output(file: Path, most: int) -> bytes:
    """A file the compiler wrote. ValueError where it is missing or too large."""
    if not file.exists() or not stat.S_ISREG(file.lstat().st_mode):
        raise ValueError(f"the compiler made no {file.name}")
    if file.stat().st_size > most:
        raise ValueError(f"{file.name} has {file.stat().st_size} bytes; at most {most} are accepted")
    return file.read_bytes()
