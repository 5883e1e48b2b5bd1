"""Compile a candidate in the jail, once: source + flags + compiler decide the key, failures are kept too.

But for those that a clock or a busy machine decided: such a build is tried again.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from functools import cache as memoise
from pathlib import Path

import msgspec

from cudal2.contract import CPU_CONTRACT
from cudal2.records import CLOCKED, HarnessFault, Status, digest
from cudal2.target import Target
from cudal2.worker.cache import Cache
from cudal2.worker.sandbox import jail, seccomp

LOG_BYTES = 4000
"""Compiler output beyond this is cut off before anyone stores it or shows it in a prompt."""

FLAGS = ("-shared", "-fPIC", "-Wl,--no-undefined", "-fmax-errors=5", "-fdiagnostics-color=never")
FREE_BYTES = 32 << 20
_STOPPED = re.compile(
    r"^g\+\+: .*(?:(?:Killed|CPU time limit exceeded) signal terminated program|Resource temporarily unavailable)",
    re.MULTILINE,
)
"""The compiler was ended or hindered from outside: by a limit on its time, for want of memory or processes."""


class Build(msgspec.Struct, frozen=True):
    """What the compiler made of a source: the shared object's bytes where `status` is ok."""

    status: Status
    library: bytes = b""
    log: str = ""
    seconds: float = 0.0


@memoise
def compiler() -> str:
    """Absolute path of g++. Raises HarnessFault where there is none."""
    path = shutil.which("g++")
    if path is None:
        raise HarnessFault("g++ is not installed", "Install it: apt-get install g++")
    return path


@memoise
def compiler_name() -> str:
    """First line of `g++ --version`, with a digest of what `-march=native` means on this machine."""
    version = trusted([compiler(), "--version"]).splitlines()[0]
    native = trusted([compiler(), "-march=native", "-Q", "--help=target"])
    return f"{version} native={digest(native)[:8]}"


def trusted(command: list[str]) -> str:
    """Run one of our own toolchain commands unjailed and return its output; HarnessFault where it fails.

    It sees the jail's environment, lest the caller's (CPATH, …) decide what comes out.
    """
    place = {"TMPDIR": os.environ["TMPDIR"]} if "TMPDIR" in os.environ else {}
    done = subprocess.run(command, capture_output=True, text=True, env=jail.ENVIRONMENT | place)
    if done.returncode:
        raise HarnessFault(
            f"{' '.join(command[:2])} failed: {done.stderr[-500:]}",
            "Reinstall the compiler: apt-get install g++",
        )
    return done.stdout


def build(source: str, target: Target, cache: Cache, kind: jail.Kind, seconds: float = 30.0) -> Build:
    """Compile `source` for `target` in a jail of that kind within `seconds` of wall time, or recall it.

    A source that fails to compile is a Build with its status; HarnessFault is for a missing compiler, a jail
    that does not start or a full disk.
    """
    key = digest(source, " ".join((*FLAGS, *target.flags)), compiler_name(), platform.machine())
    with cache.lock("builds", key):
        stored = cache.read("builds", key)
        if stored is not None:
            known = msgspec.msgpack.decode(stored, type=Build)
            if known.status not in CLOCKED:  # an earlier version kept them
                return known
        made = _compile(source, target, kind, seconds)
        if made.status not in CLOCKED:
            cache.write("builds", key, msgspec.msgpack.encode(made))
        return made


def _compile(source: str, target: Target, kind: jail.Kind, seconds: float) -> Build:
    started = time.perf_counter()
    headers = precompiled_headers(target)
    folder = jail.job_folder()
    try:
        file, output, messages = (folder / name for name in ("kernel" + target.suffix, "kernel.so", "log"))
        file.write_text(source)
        with messages.open("w+b") as stderr:
            code = jail.run(
                kind,
                [compiler(), *FLAGS, *target.flags, f"-I{headers}", file.name, "-o", output.name],
                seconds,
                readable=[headers],
                writable=[folder],
                limits=jail.Limits(cpu_seconds=int(seconds) + 1),
                environment={"TMPDIR": str(folder)},
                filter_program=seccomp.toolchain(),
                stderr=stderr.fileno(),
            )
            stderr.seek(0)
            text = readable(stderr.read(2 * LOG_BYTES).decode(errors="replace"), folder)
        elapsed = time.perf_counter() - started
        if code == 0 and output.is_file() and not output.is_symlink():
            return Build(Status.OK, output.read_bytes(), text, elapsed)
        if shutil.disk_usage(folder).free < FREE_BYTES:
            raise HarnessFault(f"no space left on {folder.parent}", "Make room, or point TMPDIR elsewhere")
        if code is None or _STOPPED.search(text):
            return Build(Status.COMPILE_TIMEOUT, log=text, seconds=elapsed)
        return Build(Status.COMPILE_ERROR, log=text or f"the compiler ended with {code}", seconds=elapsed)
    except OSError as error:
        raise HarnessFault(f"cannot build in {folder}: {error}", "Make room, or point TMPDIR elsewhere") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def readable(text: str, folder: Path) -> str:
    """What of a compiler's words may be stored and shown: at most LOG_BYTES, no path of ours, plain ASCII."""
    return re.sub(r"[^\x09\x0a\x20-\x7e]", "?", text.replace(f"{folder}/", "")[:LOG_BYTES])


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
    """The trusted program that hosts a CPU candidate, compiled from `cpu/runner.cpp` on first use."""
    source = Path(__file__).parent / "cpu" / "runner.cpp"
    key = digest(compiler_name(), source.read_text(), *CPU_CONTRACT.defines())[:16]

    def make(folder: Path) -> None:
        program = folder / "runner"
        flags = ["-std=c++17", "-O2", "-fopenmp", *CPU_CONTRACT.defines()]
        trusted([compiler(), *flags, str(source), "-o", str(program), "-ldl"])
        (folder / "loading.bpf").write_bytes(seccomp.loading())
        (folder / "running.bpf").write_bytes(seccomp.running())

    return artefact(f"runner-{key}-{hashlib.sha256(seccomp.running()).hexdigest()[:8]}", make) / "runner"


def artefact(name: str, make) -> Path:
    """The folder `scratch()/name`, made by `make(folder)` exactly once however many processes ask for it."""
    final = jail.scratch() / name
    with Cache(jail.scratch()).lock("locks", name):
        if not final.is_dir():
            partial = jail.scratch() / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir(mode=0o755)
                make(partial)
                partial.rename(final)
            except OSError as error:
                raise HarnessFault(f"cannot write {final}: {error}", "Point TMPDIR elsewhere") from error
    return final
