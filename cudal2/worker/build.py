"""What every target builds with: the host's compiler, a folder for each job, results that are kept by content."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache as memoise
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from cudal2.records import CLOCKED, HarnessFault, Status, digest
from cudal2.worker.cache import Cache
from cudal2.worker.sandbox import jail

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
