"""Which headers a build read, and whether they still are what they were."""

import hashlib
import re
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

_ENTERED = re.compile(rb'^# \d+ "([^"\n]+)" 1\b', re.MULTILINE)


def entered(preprocessed: Iterable[bytes], places: tuple[Path, ...]) -> dict[str, str]:
    """Every file below `places` that these preprocessed sources entered, by path, with its digest.

    The host's pass (`-MD`) does not see what device code alone includes, the line markers of both passes do.
    https://gcc.gnu.org/onlinedocs/cpp/Preprocessor-Output.html
    """
    named = {name for text in preprocessed for name in _ENTERED.findall(text)}
    files = {Path(name.decode(errors="replace")).resolve() for name in named}
    return {str(file): _digest(str(file)) for file in sorted(files) if any(map(file.is_relative_to, places))}


def unchanged(known: Mapping[str, str]) -> bool:
    """Whether all these files have the digests that `entered` gave them."""
    return all(_digest(path) == content for path, content in known.items())


def _digest(path: str) -> str:
    """SHA-256 of a file, empty where there is none; read again only when its time or size changed."""
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    return _digest_of(path, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else ""


@lru_cache(maxsize=65536)
def _digest_of(path: str, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
