"""A door opens on the core, and the core knows of no door."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "cudal2"
DOORS = ("serving", "dataset")
KNOWN_BY = {"cli": DOORS, "serving": ("serving",), "dataset": ("dataset",)}
"""The rooms that may import a door."""


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("door", DOORS)
def test_only_the_command_imports_a_door(door: str) -> None:
    seen = 0
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        if any(name.startswith(f"cudal2.{door}") for name in imported(file)):
            assert door in KNOWN_BY.get(room, ()), file
            seen += 1
    assert seen
