"""What a plain installation lacks is asked for by the name of the extra that pyproject.toml has for it."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from cudal2.cli import remedies

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_MESSAGE = {"nvMatmulHeuristics", "pyarrow", "triton", "openenv", "pydantic", "starlette"}
"""Modules whose absence is handled where they are imported; torch and datasets bring the second and third."""


def modules() -> set[str]:
    """The first names of all modules that the package imports from elsewhere."""
    found = set()
    for file in (ROOT / "cudal2").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"cudal2", "cudal2_kernels"}


def test_every_import_is_declared_or_an_extra_is_named_for_it() -> None:
    declared = {Requirement(one).name.lower().replace("_", "-") for one in PROJECT["dependencies"]}
    brought = packages_distributions()
    for module in sorted(modules() - remedies.EXTRAS.keys() - OWN_MESSAGE):
        names = {name.lower().replace("_", "-") for name in brought.get(module, [module])}
        assert names & declared, f"{module} is imported, and neither declared nor in cli/remedies.py"


def test_the_extras_that_are_named_exist() -> None:
    assert set(remedies.EXTRAS.values()) <= PROJECT["optional-dependencies"].keys()


def test_a_missing_package_is_one_line(tmp_path) -> None:
    (tmp_path / "kernel.cu").write_text('extern "C" int hgemm() { return 0; }\n')
    words = ["sass", "list", str(tmp_path / "kernel.cu")]
    program = f"import sys; sys.modules['elftools'] = None; from cudal2 import cli; sys.exit(cli.main({words}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and 'pip install "cudal2[sass]"' in done.stderr and done.stderr.count("\n") == 1


def test_the_game_asks_for_its_own_extra_and_others_for_what_reads_code() -> None:
    asked = [remedies.extra(ImportError(name="elftools.elf"), verb) or "" for verb in ("sass", "measuring")]
    assert ["cudal2[sass]" in asked[0], "cudal2[reading]" in asked[1]] == [True, True]


def test_what_no_extra_brings_is_a_bug_and_shown_as_one() -> None:
    assert remedies.extra(ImportError(name="nonesuch")) is None and remedies.extra(ImportError()) is None
