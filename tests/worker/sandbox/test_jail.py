import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cudal2.records import HarnessFault
from cudal2.worker.sandbox import jail, seccomp

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


@pytest.fixture
def folder():
    path = jail.job_folder()
    yield path
    shutil.rmtree(path)


def shell(kind: str, script: str, folder: Path, **options) -> int:
    """Exit code of a shell script in the jail."""
    options.setdefault("limits", jail.Limits(cpu_seconds=20))
    jailed = jail.start(
        kind, ["/bin/sh", "-c", script], writable=[folder], filter_program=seccomp.toolchain(), **options
    )
    try:
        return jailed.process.wait(timeout=30)
    finally:
        jailed.kill()


def test_writes_where_it_may_and_nowhere_else(kind: str, folder: Path, tmp_path: Path) -> None:
    assert shell(kind, "echo made > file", folder) == 0
    assert (folder / "file").read_text() == "made\n"
    tmp_path.chmod(0o777)
    for place in ("/usr/file", "/etc/file", str(tmp_path / "file")):
        assert shell(kind, f"echo made > {place}", folder) != 0, place
        assert not Path(place).exists()


def test_reads_the_system_but_nobody_s_files(kind: str, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tmp_path.chmod(0o755)
    assert shell(kind, "cat /usr/bin/env > /dev/null", folder) == 0
    for place in (secret, "/etc/passwd", "/proc/self/environ", Path.home()):
        assert shell(kind, f"ls -l {place}/* || cat {place}", folder) != 0, place


def test_environment_is_cleared(kind: str, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    assert shell(kind, 'test -z "$TOKEN"', folder) == 0


def test_is_nobody_in_particular(kind: str, folder: Path) -> None:
    assert shell(kind, "test $(id -u) != 0", folder) == 0


def test_has_no_network(kind: str, folder: Path) -> None:
    connect = f"{sys.executable} -c 'import socket; socket.socket()'"
    python = Path(sys.executable).resolve()
    if not str(python).startswith("/usr"):
        connect = 'exec 3<>/dev/tcp/127.0.0.1/1 2>err; grep -q -i -E "permitted|denied|bad|not found" err && exit 1'
        connect = f"/bin/bash -c '{connect}'"
    assert shell(kind, connect, folder) != 0


def test_file_size_is_limited(kind: str, folder: Path) -> None:
    shell(kind, "head -c 3000000 /dev/zero > big", folder, limits=jail.Limits(file_size=1 << 20))
    assert (folder / "big").stat().st_size <= 1 << 20


@pytest.mark.parametrize("limits", [jail.Limits(address_space=None, data=64 << 20), jail.Limits(64 << 20)])
def test_memory_is_limited(kind: str, folder: Path, limits: jail.Limits) -> None:
    hoard = "head -c 200000000 /dev/zero | tail -n 1 | wc -c > size"  # tail keeps the line it has not seen the end of
    assert shell(kind, f"{hoard}; grep -qx 200000000 size", folder, limits=jail.Limits(address_space=None)) == 0
    assert shell(kind, f"{hoard}; grep -qx 200000000 size", folder, limits=limits) != 0


def test_every_limit_holds_alike(kind: str, folder: Path) -> None:
    limits = jail.Limits(address_space=3 << 30, data=2 << 30, file_size=1 << 20, cpu_seconds=17)
    script = "for flag in v d f t n c; do ulimit -$flag; done > limits"
    assert shell(kind, script, folder, limits=limits) == 0
    assert (folder / "limits").read_text().split() == [str(3 << 20), str(2 << 20), "2048", "17", "256", "0"]


def test_sees_the_devices_it_is_given(kind: str, folder: Path) -> None:
    elsewhere = jail.job_folder()
    try:
        node = elsewhere / "node"
        try:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero by another name
            node.chmod(0o666)
        except PermissionError:
            pytest.skip("making a device node needs privileges")
        script = f"test $(head -c 100 {node} | wc -c) = 100 && echo > {node}"
        assert shell(kind, script, folder) != 0
        assert shell(kind, script, folder, devices=[node]) == 0
    finally:
        shutil.rmtree(elsewhere)


def test_sees_the_system_if_asked(kind: str, folder: Path) -> None:
    if not jail.works(kind, True):
        pytest.skip(f"{kind} cannot show /proc and /sys on this machine")
    script = "grep -q processor /proc/cpuinfo && ls /sys/devices/system/cpu > /dev/null"
    assert shell(kind, script, folder) != 0
    assert shell(kind, script, folder, system=True) == 0
    for place in (f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/root/", "/proc/1/mem"):
        assert shell(kind, f"ls {place}* > /dev/null && head -c 1 {place}*", folder, system=True) != 0, place
    for place in ("/proc/sys/kernel/core_pattern", "/sys/kernel/mm/transparent_hugepage/enabled"):
        assert shell(kind, f"echo x > {place}", folder, system=True) != 0, place
    if kind == "bubblewrap":
        assert shell(kind, "ls -d /proc/[0-9]* > all", folder, system=True) == 0
        assert len((folder / "all").read_text().split()) <= 3


def test_gpu_filter_lets_a_driver_listen_but_reaches_nobody() -> None:
    script = """
    import errno, os, socket
    from cudal2.worker.sandbox import landlock, seccomp

    open_before = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    assert landlock._libc.prctl(landlock.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    landlock.load_filter(seccomp.gpu())

    def refusal(call, *arguments):
        try:
            call(*arguments)
        except OSError as error:
            return error.errno

    one, other = socket.socketpair()
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    listener, name = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), f"\\0cudal2-{os.getpid()}"
    listener.bind(name)
    listener.listen(1)
    assert refusal(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect, name) == errno.ECONNREFUSED
    assert refusal(open_before.sendto, b"x", name) == errno.EPERM
    assert refusal(open_before.sendmsg, [b"x"], [], 0, name) == errno.EPERM
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
        assert refusal(socket.socket, family, socket.SOCK_RAW) == errno.EPERM
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("filter_program", ["toolchain", "gpu"])
def test_no_filter_lets_act_on_another_process(filter_program: str) -> None:
    script = f"""
    import os, resource, signal
    from cudal2.worker.sandbox import landlock, seccomp

    other = int(os.environ["OTHER"])
    assert landlock._libc.prctl(landlock.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    landlock.load_filter(seccomp.{filter_program}())

    def refused(call, *arguments):
        try:
            call(*arguments)
        except PermissionError:
            return True

    cores, limit = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_CORE)
    os.sched_setaffinity(0, cores)  # its own it may choose
    resource.setrlimit(resource.RLIMIT_CORE, limit)
    assert refused(os.sched_setaffinity, other, cores)
    assert refused(resource.prlimit, other, resource.RLIMIT_CPU, (1, 1))
    assert refused(os.setpriority, os.PRIO_PROCESS, other, 19)
    assert refused(os.setpriority, os.PRIO_USER, 0, 19)
    assert refused(os.sched_setscheduler, other, os.SCHED_BATCH, os.sched_param(0))
    for number in (0, signal.SIGSTOP, signal.SIGKILL):
        assert refused(os.kill, other, number)
    assert refused(os.pidfd_open, other)
    """
    with subprocess.Popen(["/bin/sleep", "100"]) as other:
        environment = os.environ | {"OTHER": str(other.pid)}
        command = [sys.executable, "-c", textwrap.dedent(script)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        alive = other.poll() is None
        other.kill()
    assert done.returncode == 0, done.stderr
    assert alive


def test_stopped_means_every_thread(kind: str, folder: Path) -> None:
    script = "i=0; echo > ready; while :; do i=$((i+1)); done"
    jailed = jail.start(
        kind, ["/bin/sh", "-c", script], writable=[folder], limits=jail.Limits(), filter_program=seccomp.toolchain()
    )
    while not (folder / "ready").exists():
        time.sleep(0.01)
    assert not jailed.stopped()
    jailed.signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not jailed.stopped() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert jailed.stopped()
    jailed.signal(signal.SIGCONT)
    while jailed.stopped() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not jailed.stopped()
    jailed.kill()
    assert jailed.stopped(), "what is gone stands still"


def test_busy_seconds_count_threads_that_have_ended() -> None:
    work = "import threading, time; t = threading.Thread(target=lambda: sum(range(10**6))); t.start(); t.join()"
    process = subprocess.Popen([sys.executable, "-c", f"{work}; print(1, flush=True); input()"], **PIPES)
    jailed = jail.Jailed(process, process.pid)
    process.stdout.readline()
    own = float(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9  # of its first thread
    assert jailed.busy_seconds() > own + 0.002
    jailed.kill()
    assert jailed.busy_seconds() == 0


def test_kill_reaches_the_children(kind: str, folder: Path) -> None:
    sleep = f"sleep {1000 + os.getpid()}"  # nobody else's
    jailed = jail.start(
        kind,
        ["/bin/sh", "-c", f"{sleep} & {sleep} & echo > ready; wait"],
        writable=[folder],
        limits=jail.Limits(),
        filter_program=seccomp.toolchain(),
    )
    while not (folder / "ready").exists():
        time.sleep(0.01)
    jailed.kill()
    time.sleep(0.2)
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert sleep not in listing


def test_unknown_jail_and_no_jail_are_faults_with_remedies(monkeypatch) -> None:
    monkeypatch.setattr(jail, "works", lambda kind, system: False)
    for wanted in ("auto", "bubblewrap", "landlock"):
        with pytest.raises(HarnessFault) as raised:
            jail.choose(wanted)
        assert "worker.jail=off" in raised.value.remedy
    assert jail.choose("off") == "off"


def test_scratch_of_somebody_else_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jail.tempfile, "gettempdir", lambda: str(tmp_path))
    place = tmp_path / f"cudal2-{os.geteuid()}"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(HarnessFault):
        jail.scratch.__wrapped__()
