"""Disks that are full or only read: small ones of their own, or a limit on the size of this process's files."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

INODES = 1000


class Disk:
    """A file system in memory, mounted at `path`; `size` in kilobytes."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={size}k,nr_inodes={INODES}", "tmpfs", str(path))

    def resize(self, size: int) -> None:
        _mount("-o", f"remount,size={size}k", str(self.path))

    def only_read(self) -> None:
        """From here on, by root too."""
        _mount("-o", "remount,ro", str(self.path))

    def fill(self, left: int = 0) -> None:
        """Take all of its space but so many kilobytes; where none is left, all that files, too, are named by."""
        free = os.statvfs(self.path)
        with (self.path / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bfree * free.f_bsize - (left << 10))
        with suppress(OSError):
            for number in range(0 if left else INODES):
                (self.path / f"ballast {number}").touch()

    def empty(self) -> None:
        """Give back what `fill` took."""
        for path in self.path.glob("ballast*"):
            path.unlink()


@contextmanager
def disk(path: Path, size: int) -> Iterator[Disk]:
    """A disk of `size` kilobytes at `path`; skips where this user may not mount one."""
    try:
        made = Disk(path, size)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("only root may mount a disk")
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Meanwhile no file may grow beyond `size` bytes: writing fails in the middle, as on a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)
