"""What the command lines say, whichever jail works on this machine."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from cudal2.worker.sandbox import confine, landlock

COMMAND = ["/usr/bin/env", "true"]
JOB = confine.Job(
    command=COMMAND,
    root=True,
    rlimits={"AS": 1 << 30, "CORE": 0},
    processes=7,
    private=4096,
    information=9,
    seccomp=8,
    readable=[Path("/opt/library")],
    writable=[Path("/tmp/job"), Path("/tmp/more")],
    devices=[Path("/dev/nvidia0")],
    environment={"LC_ALL": "C"},
)
WAYS = [confine.by_bubblewrap, confine.by_landlock, confine.by_limits]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(confine, "tool", lambda name: f"/usr/bin/{name}")


def after(words: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(words) if name == option]


@pytest.mark.parametrize("way", WAYS)
def test_the_command_ends_the_line_and_the_job_stays_as_it_was(way) -> None:
    before = msgspec.json.encode(JOB, enc_hook=str)
    assert way(JOB)[-len(COMMAND) :] == COMMAND
    assert msgspec.json.encode(JOB, enc_hook=str) == before


@pytest.mark.parametrize("way", WAYS[:2])
def test_root_becomes_nobody_and_only_root_is_asked_to(way) -> None:
    user = {f"--reuid={confine.NOBODY}", f"--user={confine.NOBODY}"}
    assert user & set(way(JOB))
    assert not user & set(way(msgspec.structs.replace(JOB, root=False)))


def test_bubblewrap_lets_write_to_the_writable_alone() -> None:
    words = confine.by_bubblewrap(JOB)
    assert after(words, "--bind") == ["/tmp/job", "/tmp/more"]
    assert "/opt/library" in after(words, "--ro-bind") and "/" in after(words, "--remount-ro")
    assert after(words, "--dev-bind") == ["/dev/nvidia0"]
    assert words.index("--tmpfs") < words.index("--bind"), "a folder below /tmp would be hidden"
    # A limit on processes outside would count those of everyone else with this uid.
    assert words.index("--nproc=7") > words.index("/usr/bin/bwrap")


def test_landlock_lets_write_to_the_writable_and_the_devices_alone() -> None:
    words = confine.by_landlock(JOB)
    assert landlock.__file__ in words
    written = {word.removeprefix("--write=") for word in words if word.startswith("--write=")}
    assert written == {"/tmp/job", "/tmp/more", "/dev/nvidia0", "/dev/null"}
    assert "--read=/opt/library" in words and "--limit=NPROC=7" in words and "--seccomp=8" in words


@pytest.mark.parametrize("way", WAYS[:2])
def test_the_system_is_shown_only_if_asked(way) -> None:
    def shown(job: confine.Job) -> bool:
        return any(word in ("/proc", "/sys") or word.endswith(("=/proc", "=/sys")) for word in way(job))

    assert shown(msgspec.structs.replace(JOB, system=True)) and not shown(JOB)
