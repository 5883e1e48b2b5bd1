"""Modules import one another one way, also those that are imported only when they are needed."""

import ast
from collections.abc import Container
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules() -> dict[str, Path]:
    files = ((file.relative_to(ROOT).with_suffix(""), file) for file in (ROOT / "cudal2").rglob("*.py"))
    return {".".join(name.parts).removesuffix(".__init__"): file for name, file in files}


def imported(module: str, file: Path, known: Container[str]) -> set[str]:
    names = set()
    parts = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            inside = [f"{source}.{alias.name}" for alias in node.names]
            names |= {name if name in known else source for name in inside}
    return {name for name in names if name in known}


def test_there_is_no_circle() -> None:
    known = modules()
    graph = {module: imported(module, file, known) for module, file in known.items()}
    assert sum(map(len, graph.values())) > len(graph)
    list(TopologicalSorter(graph).static_order())  # names the circle that it raises for
