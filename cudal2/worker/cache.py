"""Content-addressed store: what was built or judged once is never built or judged again.

An entry is a file `ROOT/kind/ab/abcdef…` whose first 32 bytes are the SHA-256 of the rest. Writes are atomic
renames under a lock per key; an entry that fails its checksum is dropped and counts as missing.
"""

import hashlib
import logging
import os
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock

from cudal2.records import HarnessFault

log = logging.getLogger(__name__)


class Cache(msgspec.Struct, frozen=True):
    """A store below `root`; made on first use. All methods are safe across threads and processes."""

    root: Path

    def _path(self, kind: str, key: str) -> Path:
        return self.root / kind / key[:2] / key

    def lock(self, kind: str, key: str) -> AbstractContextManager:
        """Held while an entry is made, so that two makers of one key wait for each other.

        Raises HarnessFault where the folder cannot be written.
        """
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return FileLock(path.with_suffix(".lock"))
        except OSError as error:
            raise HarnessFault(
                f"the cache {self.root} cannot be written: {error}", "Choose another: worker.cache=FOLDER"
            ) from error

    def read(self, kind: str, key: str) -> bytes | None:
        """The stored bytes, or None where there are none or they are damaged."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        checksum, payload = data[:32], data[32:]
        if hashlib.sha256(payload).digest() != checksum:
            log.warning("dropping damaged cache entry %s", path)
            with suppress(OSError):
                path.unlink()
            return None
        return payload

    def write(self, kind: str, key: str, payload: bytes) -> None:
        """Store `payload`. A full or read-only disk costs the entry, with a warning, not the result."""
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd, temporary = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(hashlib.sha256(payload).digest() + payload)
                os.replace(temporary, path)  # noqa: PTH105
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            log.warning("not cached: %s (make room, or choose another cache: worker.cache=FOLDER)", error)
