"""Which harness this is: a verdict of an older one is not recalled."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cudal2
from cudal2.records import digest

PACKAGE = Path(cudal2.__file__).parent


@cache
def harness() -> str:
    """The version, with a digest of all sources that a verdict depends on."""
    return f"{cudal2.__version__}+{fingerprint(PACKAGE)[:8]}"


def fingerprint(package: Path) -> str:
    """Hex digest over the names and bytes of `sources`."""
    files = sorted(sources(package))
    return digest(*(text for file in files for text in (str(file.relative_to(package)), file.read_bytes().hex())))


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
