"""Confine this process with Landlock, resource limits, an unprivileged user and seccomp, then exec a command.

The fallback where bubblewrap is absent. It runs as a program of its own (`python -I -S landlock.py …`), so it
imports nothing but the standard library. Interface: Linux `Documentation/userspace-api/landlock.rst`.
"""

import argparse
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 1, 38, 22, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15  # and truncate, ioctl on devices
RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def abi() -> int:
    """The kernel's Landlock version; 0 where it has none."""
    return max(0, _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def restrict(readable: list[str], writable: list[str]) -> None:
    """From here on this process sees only these paths (and those below them), and no TCP."""
    version = abi()
    rights = RIGHTS_BY_ABI[min(version, 5)]
    ruleset = _Ruleset(rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    fd = _check(_libc.syscall(CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0), "landlock")
    for paths, wanted in ((readable, EXECUTE | READ_FILE | READ_DIR), (writable, rights)):
        for path in paths:
            allowed = wanted if Path(path).is_dir() else wanted & FILE_RIGHTS
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = _Beneath(allowed & rights, parent)
            _check(_libc.syscall(ADD_RULE, fd, PATH_BENEATH, ctypes.byref(rule), 0), f"landlock: {path}")
            os.close(parent)
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.syscall(RESTRICT_SELF, fd, 0), "landlock")


def die_with(parent: int) -> None:
    """Be killed when the thread that started this process ends; the process `parent` may have ended already."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")
    if os.getppid() != parent:
        sys.exit("landlock: whoever started this is gone")


def load_filter(program: bytes) -> None:
    """Install a seccomp BPF program; it stays across exec."""
    code = ctypes.create_string_buffer(program, len(program))
    rules = _Filter(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(rules), 0, 0), "seccomp")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", action="append", default=[])
    parser.add_argument("--write", action="append", default=[])
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--user", type=int)
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seccomp", type=int, metavar="FD")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    program = os.pread(arguments.seccomp, 1 << 20, 0) if arguments.seccomp is not None else b""
    restrict(arguments.read, arguments.write)
    if arguments.user is not None:
        os.setgroups([])
        os.setresgid(arguments.user, arguments.user, arguments.user)
        os.setresuid(arguments.user, arguments.user, arguments.user)
    die_with(arguments.parent)  # another user would clear it
    for limit in arguments.limit:
        name, value = limit.split("=")
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(value), int(value)))
    if program:
        load_filter(program)
    command = arguments.command[1:]  # drops the "--"
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"landlock: {error}")
