"""The jail that compilers and candidates run in.

Covers: no network; a read-only view of the system's own programs and libraries, of nothing in anyone's home;
writing only to the folders named; an unprivileged user (uid 65534 if started by root); a cleared environment;
limits on memory, file size, processes and CPU seconds; a seccomp filter; and one kill that reaches the
whole process tree, because the caller holds the pid of the jail's init.

Does not cover: side channels (timing, caches, power), faults of the kernel or CPU, and the readable parts of
`/usr`. Where bubblewrap is absent, Landlock + seccomp + setuid + limits take its place: then a compiler's
processes are not in a pid namespace of their own and the total size of what they write has no bound but
RLIMIT_FSIZE for each file. Where neither works the worker refuses, unless `worker.jail=off` is said.

A job that uses a GPU is given its device nodes (`devices`) and the system's description of itself (`system`), and
that widens what it reaches: the ioctl interface of the NVIDIA kernel driver, whose faults are the kernel's; `/sys` to
read; of `/proc` what describes the machine, and under Landlock also which other processes run and their command lines
(never their memory or environment). The address space has to stay unlimited, since a CUDA context reserves terabytes;
`Limits.data` bounds the host memory instead, all but what is mapped shared. The GPU's MMU and the driver keep other
processes' GPU memory apart; nothing limits how much GPU memory or GPU time a job takes but the caller's clock and the
kill, which the driver answers by destroying the context.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker.sandbox import confine, landlock
from cudal2.worker.sandbox.confine import NOBODY

Kind = Literal["bubblewrap", "landlock", "off"]

CONFINED = {"bubblewrap": confine.by_bubblewrap, "landlock": confine.by_landlock, "off": confine.by_limits}
_SCHEDULED = 2
"""Of a process's clocks the one that counts nanoseconds: CPUCLOCK_SCHED of Linux."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"}


class Limits(msgspec.Struct, frozen=True):
    """Bytes of address space, of private memory and of the largest file written; processes; CPU seconds in all.

    None is no limit. Each process has its own; `data` counts what it may write to and shares with nobody.
    """

    address_space: int | None = 4 << 30
    data: int | None = None
    file_size: int = 64 << 20
    processes: int = 256
    cpu_seconds: int = 600


class Jailed(msgspec.Struct, frozen=True):
    """A running jail: the process we started and the pid, as we see it, of the first process inside."""

    process: subprocess.Popen
    inside: int

    def signal(self, number: int) -> None:
        """Send to the first process inside; nothing happens when it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.inside, number)

    def stopped(self) -> bool:
        """Whether every thread of the first process inside stands still, as after SIGSTOP, or is gone."""
        folder = f"/proc/{self.inside}/task"
        try:
            for thread in os.listdir(folder):  # noqa: PTH208 (asked often, while a core is wanted by others)
                with open(f"{folder}/{thread}/stat", "rb", 0) as file:  # noqa: PTH123
                    if file.read().rpartition(b") ")[2][:1] not in b"TtZX":
                        return False
        except (FileNotFoundError, ProcessLookupError):  # a thread ended just now, or all have
            return not Path(folder).exists()
        return True

    def busy_seconds(self) -> float:
        """Seconds that all threads of the first process inside, those that have ended too, had a core; 0 if it is gone.

        Read from the process's own clock, whose number the kernel makes of the pid (clock_getcpuclockid(3)).
        """
        with suppress(OSError):
            return time.clock_gettime(~self.inside << 3 | _SCHEDULED)
        return 0.0

    def kill(self) -> None:
        """End every process of the jail and wait for it."""
        self.signal(signal.SIGKILL)  # of a pid namespace this is the init: the kernel ends the rest
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)  # bubblewrap reaps its child and follows it
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


def start(
    kind: Kind,
    command: list[str],
    *,
    readable: list[Path] = [],  # noqa: B006 (never changed)
    writable: list[Path] = [],  # noqa: B006
    devices: list[Path] = [],  # noqa: B006
    system: bool = False,
    limits: Limits,
    environment: dict[str, str] | None = None,
    filter_program: bytes = b"",
    pass_fds: tuple[int, ...] = (),
    stderr: int = subprocess.DEVNULL,
) -> Jailed:
    """Start `command` (absolute path first) in a jail of that kind, its input and output being /dev/null.

    `devices` are device nodes to read, write and control; `system` adds `/proc` (under bubblewrap one of its own)
    and `/sys`, both to read. A library folder outside `/usr` is named in `readable`, and in `environment` for the
    loader. Raises HarnessFault where the jail itself cannot be set up.
    """
    environment = ENVIRONMENT | (environment or {})
    read, write = os.pipe()
    seccomp = _memory_file(filter_program) if filter_program else None
    fds = (*pass_fds, write, *((seccomp,) if seccomp is not None else ()))
    try:
        job = confine.Job(
            command=command,
            root=os.geteuid() == 0,
            rlimits=_rlimits(limits),
            processes=limits.processes,
            private=limits.file_size,
            information=write,
            seccomp=seccomp,
            readable=readable,
            writable=writable,
            devices=devices,
            system=system,
            environment=environment,
        )
        process = subprocess.Popen(
            CONFINED[kind](job),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            pass_fds=fds,
            start_new_session=True,
            cwd=writable[0] if writable else "/",
        )
    except OSError as error:
        os.close(read)
        raise HarnessFault(f"the jail could not start: {error}", remedy(kind)) from error
    finally:
        os.close(write)
        if seccomp is not None:
            os.close(seccomp)
    with os.fdopen(read, "rb") as information:
        inside = _pid_inside(information.read()) if kind == "bubblewrap" else process.pid
    if inside is None:
        process.wait()
        raise HarnessFault("bubblewrap could not set up the jail", remedy(kind))
    return Jailed(process, inside)


def run(kind: Kind, command: list[str], seconds: float, **arguments: Any) -> int | None:
    """`start` with these arguments, waited for: the exit code, or None where `seconds` were too few."""
    jailed = start(kind, command, **arguments)
    try:
        return jailed.process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        jailed.kill()


def _pid_inside(information: bytes) -> int | None:
    with suppress(ValueError, KeyError):
        return int(json.loads(information)["child-pid"])
    return None


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("seccomp")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _rlimits(limits: Limits) -> dict[str, int]:
    """What each RLIMIT_… is set to."""
    values = {
        "AS": limits.address_space,
        "DATA": limits.data,
        "FSIZE": limits.file_size,
        "CPU": limits.cpu_seconds,
        "CORE": 0,
        "NOFILE": 256,
    }
    return {name: value for name, value in values.items() if value is not None}


def remedy(kind: Kind) -> str:
    return {
        "bubblewrap": "Install bubblewrap (apt-get install bubblewrap), allow unprivileged user "
        "namespaces, or choose worker.jail=landlock",
        "landlock": "Use a Linux kernel from 5.13 on with Landlock enabled, or install bubblewrap",
        "off": "See the message above",
    }[kind]


@cache
def works(kind: Kind, system: bool = False) -> bool:
    """Whether a trivial program runs to its end in a jail of that kind, here and now.

    With `system` as for `start`: inside a container that hides parts of `/proc`, bubblewrap may not make a new one.
    """
    if kind == "landlock" and landlock.abi() == 0:
        return False
    from cudal2.worker.sandbox import seccomp

    try:
        jailed = start(kind, [confine.tool("true")], system=system, limits=Limits(), filter_program=seccomp.toolchain())
    except HarnessFault:
        return False
    return jailed.process.wait() == 0


def choose(wanted: str, system: bool = False) -> Kind:
    """The jail to use for a configured `worker.jail`: "auto" takes the strongest that works (with `system`, if asked).

    Raises HarnessFault where the wanted one does not work: untrusted code never runs unjailed by accident.
    """
    if wanted == "off":
        return "off"
    kinds: tuple[Kind, ...] = ("bubblewrap", "landlock") if wanted == "auto" else (wanted,)  # type: ignore[assignment]
    for kind in kinds:
        if works(kind, system):
            return kind
    raise HarnessFault(
        f"no jail works here (tried {', '.join(kinds)})",
        "Install bubblewrap (apt-get install bubblewrap) or use a kernel with Landlock; worker.jail=off runs "
        "untrusted code without one",
    )


@cache
def scratch() -> Path:
    """A folder for jobs and toolchain artefacts that an unprivileged user may read: `TMPDIR/cudal2-UID`.

    Raises HarnessFault where somebody else made it first, or the disk refuses.
    """
    path = Path(tempfile.gettempdir()) / f"cudal2-{os.geteuid()}"
    try:
        path.mkdir(mode=0o755, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise HarnessFault(f"{path} cannot be made: {error}", "Point TMPDIR at a writable folder") from error
    if path.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise HarnessFault(f"{path} belongs to somebody else", "Remove it, or point TMPDIR elsewhere")
    return path


def job_folder() -> Path:
    """A fresh folder in `scratch()` that the jail's user may write to; the caller removes it.

    Raises HarnessFault where the disk refuses.
    """
    try:
        path = Path(tempfile.mkdtemp(dir=scratch(), prefix="job-"))
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    except OSError as error:
        raise HarnessFault(
            f"no folder for a job can be made: {error}", "Make room, or point TMPDIR elsewhere"
        ) from error
    return path
