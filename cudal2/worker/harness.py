"""Which harness this is: a verdict of an older one is not recalled.

Its name ends with a digest of the sources that decide a verdict. Comments and docstrings of Python files decide none,
so they are left out: after a change of prose alone nothing is measured again.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

import cudal2
from cudal2 import operators, registry
from cudal2.config import WorkerConfig, identity
from cudal2.records import Candidate, digest

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
    return python(Path(str(registry.module(operators, name, "epilogue").__file__)))
