"""The CPU target's half of the worker, which compiles a candidate in the jail, once: source + flags + compiler decide
the key.
"""

import hashlib
import os
import platform
import re
import time
from collections.abc import Mapping
from functools import cache as memoise
from pathlib import Path

import msgspec

from cudal2.config import WorkerConfig
from cudal2.contract import CPU_CONTRACT, PLAIN
from cudal2.dtype import DType
from cudal2.exported import processor
from cudal2.problem import Problem
from cudal2.records import CLOCKED, Candidate, Environment, Status, Timing, digest
from cudal2.target import Target
from cudal2.worker import diagnostics
from cudal2.worker.backend import Launchable, Portable, Prepared, Uncountable, read_binary, row_range
from cudal2.worker.build import (
    LOG_BYTES,
    MIDNIGHT,
    Unfinished,
    artefact,
    check_space,
    compiler,
    compiler_name,
    job,
    once,
    readable,
    trusted,
    write_source,
)
from cudal2.worker.cache import Cache, harness
from cudal2.worker.cpu import baselines, elf, gate
from cudal2.worker.cpu.bench import CpuBench
from cudal2.worker.diagnostics import first_error
from cudal2.worker.outcome import Outcome
from cudal2.worker.sandbox import jail, seccomp
from cudal2.worker.timing import ReadFloor

LIBRARY_BYTES = 4 << 20
"""What is accepted is kept, and nobody throws it away."""
FLAGS = ("-shared", "-fPIC", "-Wl,--no-undefined", "-fmax-errors=5", "-fdiagnostics-color=never")
_STOPPED = re.compile(
    r"^g\+\+: .*(?:(?:Killed|CPU time limit exceeded) signal terminated program|Resource temporarily unavailable)",
    re.MULTILINE,
)
"""The compiler was ended or hindered from outside: by a limit on its time, for want of memory or processes."""


class Build(msgspec.Struct, frozen=True):
    """What the compiler made of a source: the shared object's bytes where `status` is ok.

    `reason` is empty where the log's first error is why it failed.
    """

    status: Status
    library: bytes = b""
    log: str = ""
    seconds: float = 0.0
    reason: str = ""


def build(
    source: str, target: Target, cache: Cache, kind: jail.Kind, seconds: float = 30.0, problem: Problem = PLAIN
) -> Build:
    """Compile `source` for `target` in a jail of that kind within `seconds` of wall time, or recall it.

    Of the problem, its type and operands decide what the source has to define and may compute with.
    A source that fails to compile is a Build with its status; HarnessFault is for a missing compiler, a jail
    that does not start or a full disk.
    """
    rules = [Path(str(module.__file__)).read_text() for module in (gate, elf, diagnostics)]
    flags = " ".join((*FLAGS, *target.flags))
    declared = diagnostics.contract_header(target.contract, problem=problem)
    key = digest(source, declared, problem.dtype, flags, compiler_name(), platform.machine(), *rules)

    def compiled(*beside: str) -> Build:
        return _compile(source, target, kind, seconds, problem.type, *beside)

    return once(
        cache,
        key,
        Build,
        lambda: diagnostics.checked_declarations(target.contract, compiled, problem),
        current=lambda known: known.status not in CLOCKED,  # an earlier version kept them
    )


def _compile(
    source: str, target: Target, kind: jail.Kind, seconds: float, dtype: DType, appended: str, header: str
) -> Build:
    """The source with a text appended, beside the contract's header."""
    started = time.perf_counter()
    headers = precompiled_headers(target)
    with job("build") as folder:
        file, output, messages = (folder / name for name in ("kernel" + target.suffix, "kernel.so", "log"))
        write_source(file, source + appended)
        write_source(folder / diagnostics.HEADER, header)
        with messages.open("w+b") as stderr:
            code = jail.run(
                kind,
                [compiler(), *FLAGS, *target.flags, f"-I{headers}", file.name, "-o", output.name],
                seconds,
                readable=[headers],
                writable=[folder],
                limits=jail.Limits(cpu_seconds=int(seconds) + 1),
                environment={"TMPDIR": str(folder), **MIDNIGHT},
                filter_program=seccomp.toolchain(),
                stderr=stderr.fileno(),
            )
            stderr.seek(0)
            text = readable(stderr.read(2 * LOG_BYTES).decode(errors="replace"), folder)
        elapsed = time.perf_counter() - started
        if code == 0 and output.is_file() and not output.is_symlink():
            if said := _too_large(output.stat().st_size):
                reason = f"the shared object: {said}"
                return Build(Status.COMPILE_ERROR, log=f"{reason}\n{text}"[:LOG_BYTES], seconds=elapsed, reason=reason)
            return inspected(Build(Status.OK, output.read_bytes(), text, elapsed), kind, seconds, dtype)
        check_space(folder)
        if code is None or _STOPPED.search(text):
            return Build(Status.COMPILE_TIMEOUT, log=text, seconds=elapsed)
        return Build(Status.COMPILE_ERROR, log=text or f"the compiler ended with {code}", seconds=elapsed)


def _too_large(size: int) -> str:
    """Why a shared object of so many bytes is not read; empty where it is."""
    return f"it has {size} bytes; at most {LIBRARY_BYTES} are accepted" if size > LIBRARY_BYTES else ""


def inspected(built: Build, kind: jail.Kind, seconds: float, dtype: DType) -> Build:
    """The build, or its refusal where loading may run code of it, or it multiplies other numbers than it is given."""
    try:
        if reason := _too_large(len(built.library)):
            raise ValueError(reason)
        elf.check_loading(built.library)
        found = gate.narrow(built.library, kind, seconds, dtype)
    except Unfinished as error:
        return Build(Status.COMPILE_TIMEOUT, log=str(error), seconds=built.seconds, reason=str(error))
    except ValueError as error:
        said = f"the shared object: {error}"
        return Build(Status.REJECTED, log=said, seconds=built.seconds, reason=said)
    if not found:
        return built
    said = f"narrow_multiplication: integers or others are multiplied in place of {dtype.name}: {', '.join(found)}"
    return Build(Status.REJECTED, log=f"{said}\n{built.log}"[:LOG_BYTES], seconds=built.seconds, reason=said)


@memoise
def precompiled_headers(target: Target) -> Path:
    """A folder whose `immintrin.h` is precompiled for the target's flags.

    GCC takes it where it is a source's first include, which cuts a build from 0.35 s to 0.07 s; anywhere else
    the plain header is used. https://gcc.gnu.org/onlinedocs/gcc/Precompiled-Headers.html
    """
    flags = [flag for flag in (*FLAGS, *target.flags) if not flag.startswith("-Wl,") and flag != "-shared"]
    key = digest(compiler_name(), *flags)[:16]

    def make(folder: Path) -> None:
        header = folder / "immintrin.h"
        header.write_text("#include_next <immintrin.h>\n")
        trusted([compiler(), *flags, "-w", "-x", "c++-header", str(header), "-o", f"{header}.gch"])

    return artefact(f"headers-{key}", make)


@memoise
def runner() -> Path:
    """The trusted program that hosts a CPU candidate, compiled from `runner.cpp` on first use."""
    source = Path(__file__).parent / "runner.cpp"
    key = digest(compiler_name(), source.read_text(), *CPU_CONTRACT.defines())[:16]

    def make(folder: Path) -> None:
        program = folder / "runner"
        flags = ["-std=c++17", "-O2", "-fopenmp", *CPU_CONTRACT.defines()]
        trusted([compiler(), *flags, str(source), "-o", str(program), "-ldl"])
        (folder / "loading.bpf").write_bytes(seccomp.loading())
        (folder / "running.bpf").write_bytes(seccomp.running())

    return artefact(f"runner-{key}-{hashlib.sha256(seccomp.running()).hexdigest()[:8]}", make) / "runner"


class CpuBackend:
    """g++ in jail, the candidate in a jailed runner, torch.matmul in a process of its own."""

    exclusive_builds = True
    lock = "device"

    def __init__(self, target: Target, config: WorkerConfig, kind: jail.Kind, cache: Cache) -> None:
        self.target, self.config, self.kind, self.cache = target, config, kind, cache
        self.threads = config.threads or len(os.sched_getaffinity(0))
        self.environment = Environment(
            device=processor.name(),
            threads=self.threads,
            compiler=compiler_name(),
            flags=" ".join((*FLAGS, *target.flags)),
            libraries=baselines.libraries(),
            harness=harness(),
        )
        self.machine = _machine()
        self._bench: CpuBench | None = None

    @property
    def bench(self) -> CpuBench:
        """What measures; made on first use, kept for the next candidate."""
        if self._bench is None:
            self._bench = CpuBench(self.config, self.kind, self.threads, runner())
        return self._bench

    def prepare(self, candidate: Candidate) -> Prepared[Launchable]:
        if candidate.binary:
            made = Build(Status.OK, read_binary(candidate.binary)[0])
            return _prepared(inspected(made, self.kind, self.config.compile_seconds, candidate.problem.type))
        if candidate.edit:
            return Prepared(Status.REJECTED, "an edit changes a cubin, and what runs on a processor has none")
        seconds, problem = self.config.compile_seconds, candidate.problem
        return _prepared(build(candidate.source, self.target, self.cache, self.kind, seconds, problem))

    def measure(self, launchable: Launchable, problem: Problem) -> Outcome:
        return self.bench.judge(launchable.library, problem)

    def portable(self, candidate: Candidate, launchable: Launchable, others: Mapping[int, Launchable] = {}) -> Portable:
        same = [m for m, other in others.items() if other.library == launchable.library]
        return Portable(launchable.library, rows=row_range(same, candidate.problem.m))

    def counters(self, portable: Portable, problem: Problem) -> dict[str, float]:
        raise Uncountable("those of a processor are not read")

    def foreign_headers(self, candidate: Candidate) -> frozenset[str]:
        if candidate.abi != "contract":
            raise ValueError(f"kernels of {candidate.abi} are for GPUs; choose a CUDA target")
        return frozenset()

    def baseline_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        _check_protocol(protocol)
        return self.bench.baseline_seconds(problem)

    def compare_baseline_with_itself(self, problem: Problem, protocol: str) -> Timing:
        _check_protocol(protocol)
        return self.bench.compare_baseline_with_itself(problem)

    def read_floor(self, problem: Problem) -> ReadFloor:
        raise ValueError("bench floor measures GPUs: run it on a machine with one, or name it, as in target=sm_90a")

    def close(self) -> None:
        if self._bench:
            self._bench.close()
            self._bench = None


def _prepared(built: Build) -> Prepared[Launchable]:
    if built.status is Status.OK:
        return Prepared(Status.OK, log=built.log, launchable=Launchable(built.library))
    return Prepared(built.status, built.reason or first_error(built.log), built.log)


def _machine() -> str:
    """By its name and systemd's machine ID; containers of one image and one name cannot be told apart."""
    number = Path("/etc/machine-id")
    return digest(platform.node(), number.read_text() if number.is_file() else "")[:8]


def _check_protocol(protocol: str) -> None:
    if protocol != "device":
        raise ValueError(f"a processor's calls are timed by the protocol device, not {protocol}")


BACKEND = CpuBackend
"""What `Worker` makes for a target of this kind."""
