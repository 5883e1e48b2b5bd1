"""System-call filters as BPF programs, assembled by libseccomp.

Four of them. `toolchain` keeps a compiler from the kernel's riskier corners (it must still fork and exec). `gpu`
is the same for a process with a CUDA context, whose driver listens on a Unix socket that nobody can reach.
`loading` is what the runner lives under while it loads a candidate's shared object, of which nothing runs by then
(worker/cpu/elf.py). `running` is added once it is loaded: threads, memory and the reply pipe, nothing else.

None lets its process act on another one by its number, whoever that belongs to: under Landlock the user's other
processes can be named, and a candidate could move its rival to another core, or end it.
"""

import errno
import socket
import tempfile
from functools import cache

from cudal2.records import HarnessFault

COMMAND_FD, REPLY_FD = 100, 101  # where runner.cpp moves its two pipes
CLONE_THREAD = 0x00010000
PROT_WRITE, PROT_EXEC, MAP_ANONYMOUS = 0x2, 0x4, 0x20
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
HARMLESS_ADVICE = (0, 1, 2, 3, 4, 8, 14, 15)
"""Of madvise: what touches nobody's pages but the caller's own (MADV_REMOVE and MADV_PAGEOUT take shared ones away)."""
WRITE_FLAGS = 0o3 | 0o100 | 0o1000 | 0o2000  # access mode, O_CREAT, O_TRUNC, O_APPEND

_DENIED = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module finit_module fsconfig
    fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp
    kexec_file_load kexec_load keyctl lookup_dcookie mount mount_setattr move_mount name_to_handle_at
    open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root process_madvise
    process_vm_readv process_vm_writev ptrace quotactl reboot request_key setdomainname sethostname
    setns settimeofday swapoff swapon syslog umount umount2 unshare userfaultfd
    vhangup
""".split()

_SOCKETS = ["socket", "socketpair"]

# Without mremap: a mapping of code that grows takes in the pages that follow in its file, and nobody asks whether these
# are code. Where it is refused, realloc copies.
_MEMORY_AND_THREADS = """
    brk close exit exit_group futex futex_waitv
    get_robust_list getcpu getpid getrandom gettid gettimeofday membarrier mincore munmap
    nanosleep poll ppoll pselect6 restart_syscall rseq rt_sigprocmask rt_sigreturn
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler
    sched_yield set_robust_list set_tid_address sigaltstack time
""".split()

_CLOCKS = "clock_getres clock_gettime clock_nanosleep".split()
CLOCK_IDS = range(12)
"""Those of Linux, the caller's own CPU time among them; a negative number is the CPU time of another process."""
_LOADER = "fstat lseek newfstatat pread64 read readlink rt_sigaction seccomp write".split()

_SIGNALS = "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal".split()
_SCHEDULING = """
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler prlimit64 migrate_pages move_pages
""".split()
"""The first argument says which process is meant, 0 the caller itself."""

_HOSTILE = """
    execve execveat fork vfork kill tkill tgkill ptrace socket connect bind listen sendto
""".split()


def _library():
    try:
        import pyseccomp
    except RuntimeError as error:  # what it raises where the shared library is missing
        raise HarnessFault("libseccomp is not installed", "Install it: apt-get install libseccomp2") from error
    return pyseccomp


def _export(rules) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow(lib, rules, names: list[str]) -> None:
    for name in names:
        rules.add_rule(lib.ALLOW, name)


def _threads_and_memory(lib):
    """EPERM by default; hostile calls trap, so that the runner can name them before it dies."""
    rules = lib.SyscallFilter(lib.ERRNO(errno.EPERM))
    _allow(lib, rules, _MEMORY_AND_THREADS)
    for name in _CLOCKS:
        for clock in CLOCK_IDS:
            rules.add_rule(lib.ALLOW, name, lib.Arg(0, lib.EQ, clock))
    rules.add_rule(lib.ALLOW, "sched_setaffinity", lib.Arg(0, lib.EQ, 0))
    for advice in HARMLESS_ADVICE:
        rules.add_rule(lib.ALLOW, "madvise", lib.Arg(2, lib.EQ, advice))
    for name in ("mmap", "mprotect"):
        rules.add_rule(lib.ALLOW, name, lib.Arg(2, lib.MASKED_EQ, PROT_EXEC, 0))
    # glibc tries clone3, whose flags a filter cannot see, and falls back to clone where it is missing.
    rules.add_rule(lib.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(lib.ALLOW, "clone", lib.Arg(0, lib.MASKED_EQ, CLONE_THREAD, CLONE_THREAD))
    rules.add_rule(lib.TRAP, "clone", lib.Arg(0, lib.MASKED_EQ, CLONE_THREAD, 0))
    for name in _HOSTILE:
        rules.add_rule(lib.TRAP, name)
    return rules


def _without(lib, names: list[str]):
    """EPERM for these calls, anything else allowed."""
    rules = lib.SyscallFilter(lib.ALLOW)
    for name in names:
        # A name that this libseccomp does not know is a call that this kernel hardly has.
        if lib.resolve_syscall(lib.Arch.NATIVE, name) != -1:
            rules.add_rule(lib.ERRNO(errno.EPERM), name)
    for name in _SCHEDULING:
        rules.add_rule(lib.ERRNO(errno.EPERM), name, lib.Arg(0, lib.NE, 0))
    for name, itself in (("setpriority", PRIO_PROCESS), ("ioprio_set", IOPRIO_WHO_PROCESS)):
        rules.add_rule(lib.ERRNO(errno.EPERM), name, lib.Arg(0, lib.NE, itself))
        rules.add_rule(lib.ERRNO(errno.EPERM), name, lib.Arg(1, lib.NE, 0))
    return rules


@cache
def toolchain() -> bytes:
    """For compilers: everything but administration, tracing, sockets and new namespaces."""
    return _export(_without(_library(), [*_DENIED, *_SIGNALS, *_SOCKETS]))


@cache
def gpu() -> bytes:
    """For a process with a CUDA context: as `toolchain`, but Unix sockets may be made and listened on.

    None can reach a socket outside: Landlock does not rule on those that are files, so connecting and sending to an
    address are refused here, as if no daemon (MPS, say) were there. It may start threads, but no process.
    """
    lib = _library()
    rules = _without(lib, [*_DENIED, *_SIGNALS, "sendmsg", "sendmmsg", "fork", "vfork"])
    # glibc tries clone3, whose flags a filter cannot see, and falls back to clone where it is missing.
    rules.add_rule(lib.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(lib.ERRNO(errno.EPERM), "clone", lib.Arg(0, lib.MASKED_EQ, CLONE_THREAD, 0))
    rules.add_rule(lib.ERRNO(errno.EPERM), "socket", lib.Arg(0, lib.NE, socket.AF_UNIX))
    rules.add_rule(lib.ERRNO(errno.EPERM), "sendto", lib.Arg(4, lib.NE, 0))
    rules.add_rule(lib.ERRNO(errno.ECONNREFUSED), "connect")
    return _export(rules)


@cache
def loading() -> bytes:
    """For the runner while it loads a candidate: may also open files to read, and map them as code."""
    lib = _library()
    rules = _threads_and_memory(lib)
    _allow(lib, rules, _LOADER)
    code = lib.Arg(2, lib.MASKED_EQ, PROT_WRITE | PROT_EXEC, PROT_EXEC), lib.Arg(3, lib.MASKED_EQ, MAP_ANONYMOUS, 0)
    rules.add_rule(lib.ALLOW, "mmap", *code)
    rules.add_rule(lib.ALLOW, "openat", lib.Arg(2, lib.MASKED_EQ, WRITE_FLAGS, 0))
    return _export(rules)


@cache
def running() -> bytes:
    """For the runner once the candidate is loaded: no file can be opened and no code page made."""
    lib = _library()
    rules = _threads_and_memory(lib)
    rules.add_rule(lib.ALLOW, "read", lib.Arg(0, lib.EQ, COMMAND_FD))
    rules.add_rule(lib.ALLOW, "write", lib.Arg(0, lib.EQ, REPLY_FD))
    return _export(rules)
