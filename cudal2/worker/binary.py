"""Code that was built elsewhere, for a candidate that brings it along: read once, and only as it was."""

import hashlib
from pathlib import Path

from cudal2.records import Binary, HarnessFault

REMEDY = "Export it again, or bring the folder anew from where it was exported"


def read(binary: Binary) -> tuple[bytes, bytes]:
    """The code, and the recipe of a GPU's (else nothing).

    Raises HarnessFault where a file cannot be read, or holds something else than was written into it.
    """
    return _same(*binary.code), _same(*binary.recipe) if binary.recipe else b""


def _same(path: str, sha256: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise HarnessFault(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise HarnessFault(f"{path} is damaged: its digest is another", REMEDY)
    return data
