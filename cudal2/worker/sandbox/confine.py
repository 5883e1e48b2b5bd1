"""The command lines that put a job in jail: by bubblewrap, by Landlock, or by limits alone."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker.sandbox import landlock

NOBODY = 65534
SYSTEM = [path for path in ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin") if Path(path).exists()]
SYSTEM_FILES = [path for path in ("/etc/alternatives", "/etc/ld.so.cache") if Path(path).exists()]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A command (absolute path first) and what it may reach; `jail.start` says what its paths are.

    `root` tells whether root starts it, who then hands it to NOBODY. `rlimits` is what each RLIMIT_… is set to, but for
    `processes`; `private` is the bytes of memory that its private files may take. `seccomp` and `information` are file
    descriptors that it inherits: the filter to install, and where bubblewrap tells the pid of what it started.
    """

    command: list[str]
    root: bool
    rlimits: dict[str, int]
    processes: int
    private: int
    information: int
    seccomp: int | None = None
    readable: list[Path] = []
    writable: list[Path] = []
    devices: list[Path] = []
    system: bool = False
    environment: dict[str, str] = {}


def by_limits(job: Job) -> list[str]:
    """No jail: the limits of each process, and nothing else."""
    return [*ends_with_parent(), *_prlimit(job), *job.command]


def by_bubblewrap(job: Job) -> list[str]:
    """In namespaces of its own, with a file system of what it may see. HarnessFault where a program is missing."""
    drop = [tool("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if job.root else []
    mounts: list[str] = []
    for path in SYSTEM:
        if Path(path).is_symlink():
            mounts += ["--symlink", str(Path(path).readlink()), path]
        else:
            mounts += ["--ro-bind", path, path]
    for path in SYSTEM_FILES:
        mounts += ["--ro-bind", path, path]
    mounts += ["--dev", "/dev", "--size", str(job.private), "--tmpfs", "/tmp"]
    if job.system:
        mounts += ["--proc", "/proc", "--ro-bind", "/sys", "/sys"]
    # Below /tmp, so bound after it; the job's folders are what readable and writable name.
    for path in map(str, job.readable):
        mounts += ["--ro-bind", path, path]
    for path in map(str, job.writable):
        mounts += ["--bind", path, path]
    for path in map(str, job.devices):
        mounts += ["--dev-bind", path, path]
    variables = [word for name, value in job.environment.items() for word in ("--setenv", name, value)]
    return [
        *drop,
        *_prlimit(job),
        tool("bwrap"),
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
        "--clearenv",
        *variables,
        *mounts,
        "--remount-ro",
        "/",
        "--chdir",
        str(job.writable[0]) if job.writable else "/",
        "--info-fd",
        str(job.information),
        *(["--seccomp", str(job.seccomp)] if job.seccomp is not None else []),
        # Set inside, where the jail's own user namespace counts: a fork bomb must not take its neighbours' share.
        *(tool("prlimit"), f"--nproc={job.processes}"),
        *job.command,
    ]


def by_landlock(job: Job) -> list[str]:
    """Through `landlock.py`, which confines itself and becomes the command."""
    reads = [*SYSTEM, *SYSTEM_FILES, "/dev/null", "/dev/zero", "/dev/urandom", *map(str, job.readable)]
    writes = [*map(str, job.writable), *map(str, job.devices), "/dev/null"]
    if job.system:
        reads += ["/proc", "/sys"]
        writes += ["/proc"]  # a CUDA driver names its threads there; what is of other users stays theirs
    # Counted with all that the user runs already.
    processes = {"NPROC": job.processes if job.root else 4096}
    return [
        *(sys.executable, "-I", "-S", landlock.__file__, f"--parent={os.getpid()}"),
        *(f"--read={path}" for path in reads),
        *(f"--write={path}" for path in writes),
        *(f"--limit={name}={value}" for name, value in (job.rlimits | processes).items()),
        *([f"--user={NOBODY}"] if job.root else []),
        *([f"--seccomp={job.seccomp}"] if job.seccomp is not None else []),
        "--",
        *job.command,
    ]


def ends_with_parent() -> list[str]:
    """Before a command: the kernel kills it when the thread that starts it ends, even while it is stopped."""
    return [tool("setpriv"), "--pdeathsig", "KILL"]


def _prlimit(job: Job) -> list[str]:
    return [tool("prlimit"), *(f"--{name.lower()}={value}" for name, value in job.rlimits.items())]


@cache
def tool(name: str) -> str:
    """The path of a program of the system. Raises HarnessFault where it is not installed."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin:/usr/sbin:/sbin")
    if path is None:
        package = {"bwrap": "bubblewrap"}.get(name, "util-linux")
        raise HarnessFault(f"{name} is not installed", f"Install it: apt-get install {package}")
    return path
