"""What every target builds with: the host's compiler, a folder for each job, results that are kept by content; a
disassembler, which parses bytes that a stranger chose, in the jail (`listing`); and how our own libraries in an export
are linked.

These run on systems older than the one they were linked on: glibc 2.28 and the C++ runtime of GCC 8, as manylinux_2_28
has them, which is no newer than what torch itself needs. A linker takes the newest version of each symbol that its own
system has. So what moved into libc later (2.34: threads, dlopen's family) is linked from small stand-ins for the
libraries that had it before, which every later glibc still has under the old names. What came to be only later, and old
systems lack, is defined in our library itself, where nobody else sees it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache as memoise
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import msgspec

from cudal2.records import CLOCKED, HarnessFault, Status, digest
from cudal2.worker.cache import Cache
from cudal2.worker.sandbox import jail, seccomp

LOG_BYTES = 4000
"""Compiler output beyond this is cut off before anyone stores it or shows it in a prompt."""
FREE_BYTES = 32 << 20
MIDNIGHT = {"SOURCE_DATE_EPOCH": "0"}
"""For a compiler's environment: __DATE__ and __TIME__ are always the same, lest two builds of one source differ."""


class Built(Protocol):
    """What any compiler makes of a source."""

    @property
    def status(self) -> Status: ...

    @property
    def log(self) -> str: ...

    @property
    def reason(self) -> str: ...


B = TypeVar("B", bound=Built)


def once(cache: Cache, key: str, kind: type[B], make: Callable[[], B], current: Callable[[B], bool]) -> B:
    """The build of that key: recalled where it is `current`, else made, and kept.

    Failures are kept too, but for those that a clock or a busy machine decided: such a build is tried again.
    """
    with cache.lock("builds", key):
        stored = cache.read("builds", key)
        if stored is not None:
            known = msgspec.msgpack.decode(stored, type=kind)
            if current(known):
                return known
        made = make()
        if made.status not in CLOCKED:
            cache.write("builds", key, msgspec.msgpack.encode(made))
        return made


@contextmanager
def job(doing: str) -> Iterator[Path]:
    """A folder for one job in the jail, removed afterwards; HarnessFault where the disk does not let it be done."""
    folder = jail.job_folder()
    try:
        yield folder
    except OSError as error:
        raise HarnessFault(f"cannot {doing} in {folder}: {error}", "Make room, or point TMPDIR elsewhere") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_source(file: Path, source: str) -> None:
    """As a file of no age, which __TIMESTAMP__ would tell."""
    file.write_text(source, encoding="utf-8")
    os.utime(file, (0, 0))


def check_space(folder: Path) -> None:
    """Raises HarnessFault where a job that failed had no room left to write to."""
    if shutil.disk_usage(folder).free < FREE_BYTES:
        raise HarnessFault(f"no space left on {folder.parent}", "Make room, or point TMPDIR elsewhere")


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
    done = subprocess.run(command, capture_output=True, text=True, env=jail.ENVIRONMENT | place, start_new_session=True)
    if done.returncode:
        check_space(jail.scratch())
        raise HarnessFault(
            f"{' '.join(command[:2])} failed: {' '.join(done.stderr.split())[-500:]}",
            "Reinstall the compiler: apt-get install g++",
        )
    return done.stdout


def readable(text: str, folder: Path) -> str:
    """What of a compiler's words may be stored and shown: at most LOG_BYTES, no path of the job's, plain ASCII."""
    return re.sub(r"[^\x09\x0a\x20-\x7e]", "?", text.replace(f"{folder}/", "")[:LOG_BYTES])


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


OLDEST = {
    **{"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    **{"GOMP": (4, 5), "OMP": (4, 5)},  # what kernels of a processor need, whose own libraries nothing changes
}
"""The newest version of each kind of symbol that a library may need."""
_MOVED = {
    "libdl.so.2": ("dladdr", "dlclose", "dlerror", "dlopen", "dlsym"),
    "libpthread.so.0": (
        *("__pthread_key_create", "pthread_key_create", "pthread_once"),
        *("pthread_rwlock_rdlock", "pthread_rwlock_unlock", "pthread_rwlock_wrlock"),
    ),
}
"""By the library that had them before glibc 2.34: its symbols of version 2.2.5 that we, or a C++ runtime, may use."""
_LATER = """
#include <cstdlib>
#include <new>
#include <sstream>
// Weak: a C++ runtime that is linked_for_older in may have its own.
extern "C" __attribute__((weak)) char __libc_single_threaded = 0;  // 2.32: "maybe not" is always right
extern "C" __attribute__((weak)) unsigned arc4random() noexcept { abort(); }  // 2.36; nothing here draws
namespace std {
__attribute__((weak)) void __throw_bad_array_new_length() { throw bad_array_new_length(); }  // GCC 11
}
template std::stringstream::basic_stringstream();  // GCC 9
template std::ostringstream::basic_ostringstream();
"""


def linking_key() -> str:
    """A digest of what `linked_for_older` does, for whoever keeps what it linked_for_older."""
    return digest(Path(__file__).read_text())


def linked_for_older(folder: Path, exports: str) -> tuple[str, ...]:
    """Arguments of the compiler, behind the sources, that link a library as said above; what they name is written into
    `folder`. Only symbols that match `exports` are seen outside of the library. Raises HarnessFault.
    """
    (folder / "exports").write_text(f"{{ global: {exports}; local: *; }};")
    (folder / "later.cpp").write_text(_LATER)
    trusted([compiler(), "-std=c++17", "-O2", "-fPIC", "-c", str(folder / "later.cpp"), "-o", str(folder / "later.o")])
    (folder / "versions").write_text("GLIBC_2.2.5 { *; };")
    for name, symbols in _MOVED.items():
        (folder / "moved.c").write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in symbols))
        script = f"-Wl,-soname,{name},--version-script={folder / 'versions'}"
        trusted([compiler(), "-shared", "-fPIC", "-xc", str(folder / "moved.c"), script, "-o", str(folder / name)])
    moved = (str(folder / name) for name in _MOVED)
    used = ("-Wl,--push-state,--as-needed", *moved, "-Wl,--pop-state")
    return (str(folder / "later.o"), *used, f"-Wl,--version-script={folder / 'exports'}")


LISTING_BYTES = 512 << 20
COMPLAINT_BYTES = 300
KILLED = (-9, 137)
"""How a process ends that a machine without memory left kills."""


class Unfinished(ValueError):
    """The disassembler was stopped, not the code at fault."""


@contextmanager
def listing(command: Sequence[str], code: bytes, kind: jail.Kind, seconds: float) -> Iterator[BinaryIO]:
    """What `command` (the program's path, and options) prints of this code within `seconds`.

    ValueError where it cannot read it, the kind Unfinished where it was stopped; HarnessFault where there is no jail.
    """
    program = Path(command[0])
    with job("read built code") as folder:
        (folder / "code").write_bytes(code)
        ended = jail.run(
            kind,
            # The jail has no standard output and no error output; the shell gives them files.
            ["/bin/sh", "-c", 'exec "$0" "$@" code > listing 2> errors', *command],
            seconds,
            readable=[] if program.is_relative_to("/usr") else [program.parent],
            writable=[folder],
            limits=jail.Limits(file_size=LISTING_BYTES, cpu_seconds=int(seconds) + 1),
            filter_program=seccomp.toolchain(),
        )
        printed = folder / "listing"
        if ended is None:
            raise Unfinished(f"the disassembler did not end within {seconds:g} s")
        if ended in KILLED:
            raise Unfinished("the disassembler was killed")
        if ended != 0 or printed.is_symlink() or not printed.is_file():
            raise ValueError(f"the disassembler ended with {ended}{_complaint(folder / 'errors')}")
        with printed.open("rb") as lines:
            yield lines


def _complaint(errors: Path) -> str:
    """The first line of what it complained of."""
    if errors.is_symlink() or not errors.is_file():
        return ""
    with errors.open("rb") as text:
        line = text.readline(COMPLAINT_BYTES).decode(errors="replace").strip()
    return f": {readable(line, errors.parent)}" if line else ""
