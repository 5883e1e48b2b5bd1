"""Content-addressed store: what was built or judged once is never built or judged again; and the key of a verdict.

An entry is a file `ROOT/kind/ab/abcdef…` whose first 32 bytes are the SHA-256 of the rest. Writes are atomic
renames under a lock per key; an entry that fails its checksum is dropped and counts as missing.

A verdict of another harness is not recalled. A harness's name ends with a digest of the sources that decide a verdict.
Comments and docstrings of Python files decide none, so they are left out: after a change of prose alone nothing is
measured again.
"""

import ast
import hashlib
import io
import logging
import os
import tempfile
import tokenize
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path

import msgspec
from filelock import FileLock

import cudal2
from cudal2 import files, operators
from cudal2.config import WorkerConfig, identity
from cudal2.records import Candidate, HarnessFault, digest

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


PACKAGE = Path(cudal2.__file__).parent


@cache
def harness() -> str:
    """The version, with a digest of all sources that a verdict depends on."""
    return f"{cudal2.__version__}+{fingerprint(PACKAGE)[:8]}"


def fingerprint(package: Path) -> str:
    """Hex digest over the names and contents of `sources`: the `substance` of a Python file, all bytes of any other."""
    parts: list[str] = []
    for file in sorted(sources(package)):
        parts += [str(file.relative_to(package)), python(file) if file.suffix == ".py" else file.read_bytes().hex()]
    return digest(*parts)


def python(file: Path) -> str:
    """The `substance` of a Python file."""
    with tokenize.open(file) as opened:
        return substance(opened.read())


def substance(source: str) -> str:
    """A Python source without comments, docstrings, blank lines and spaces at the ends of lines.

    A docstring is any statement that is only a string, also one below a field. Every other string stays as it is. The
    text is cut, because one that is written anew, from the syntax tree or the tokens, differs between versions of
    Python. Lines must end with a line feed alone. Raises SyntaxError where the source is not Python.
    """
    docstrings = sorted(_docstrings(source), reverse=True)
    comments, ended = _line_ends(source)
    # Bytes, because the syntax tree counts columns in them.
    lines = [line.removesuffix(comments.get(at, "")).encode() for at, line in enumerate(source.split("\n"))]
    for first, start, last, end in docstrings:
        lines[first : last + 1] = [lines[first][:start] + lines[last][end:], *[b""] * (last - first)]
        if last in ended:
            ended.add(first)
        ended.update(range(first + 1, last + 1))  # which are empty now
    lines = [line.rstrip() if at in ended else line for at, line in enumerate(lines)]
    return b"\n".join(line for at, line in enumerate(lines) if line or at not in ended).decode()


def _docstrings(source: str) -> Iterator[tuple[int, int, int, int]]:
    """Of each the first line and column, the last line and the column behind; all from 0, columns in bytes of UTF-8."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str()), end_lineno=int(last), end_col_offset=int(end)):
                yield node.lineno - 1, node.col_offset, last - 1, end


def _line_ends(source: str) -> tuple[dict[int, str], set[int]]:
    """The comments by line, and the lines that do not end within a string or with a backslash; lines from 0.

    Since Python 3.12 an f-string is many tokens. It was one before, so nothing within one counts.
    """
    comments: dict[int, str] = {}
    ended: set[int] = set()
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name, line = tokenize.tok_name[token.type], token.start[0] - 1
        depth += (name == "FSTRING_START") - (name == "FSTRING_END")
        if depth == 0 and name == "COMMENT":
            comments[line] = token.string
        elif depth == 0 and name in ("NEWLINE", "NL", "ENDMARKER"):
            ended.add(line)
    return comments, ended


def sources(package: Path) -> set[Path]:
    """The files below `package/worker`, and every module of the package that they import, however far."""
    found: set[Path] = set()
    new = {file for file in (package / "worker").rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    while new:
        found |= new
        new = {module for file in new if file.suffix == ".py" for module in _imported(file, package)} - found
    return found


def _imported(file: Path, package: Path) -> Iterator[Path]:
    """Modules of the package that a file names in any of its imports, also those inside functions."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            top, *parts = name.split(".")
            place = package.joinpath(*parts)
            if top == package.name:
                yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())


def verdict_key(candidate: Candidate, fingerprint: str, config: WorkerConfig) -> str:
    """The `key` of a verdict on a candidate that is reached in the environment of that fingerprint under `config`."""
    looks = {name: value for name, value in identity(config).items() if name != "counters"}
    settings = msgspec.json.encode(looks, order="sorted").decode()
    return digest(candidate.key, fingerprint, settings, operator(candidate.problem.epilogue))


@cache
def operator(name: str) -> str:
    """What the file of an operator says: no module imports it by name, so the harness's digest knows nothing of it."""
    return python(Path(str(files.plugin(operators, name, "epilogue").__file__)))
