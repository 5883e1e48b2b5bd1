import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudal2.records import HarnessFault
from cudal2.worker import jail, seccomp


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request) -> str:
    if not jail.works(request.param):
        pytest.skip(f"{request.param} does not work on this machine")
    return request.param


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


def test_kill_reaches_the_children(kind: str, folder: Path) -> None:
    jailed = jail.start(
        kind,
        ["/bin/sh", "-c", "sleep 1000 & sleep 1000 & echo > ready; wait"],
        writable=[folder],
        limits=jail.Limits(),
        filter_program=seccomp.toolchain(),
    )
    while not (folder / "ready").exists():
        time.sleep(0.01)
    jailed.kill()
    time.sleep(0.2)
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 1000" not in listing


def test_unknown_jail_and_no_jail_are_faults_with_remedies(monkeypatch) -> None:
    monkeypatch.setattr(jail, "works", lambda kind: False)
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
