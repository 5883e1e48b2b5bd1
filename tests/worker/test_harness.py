"""Whatever decides a verdict is in the harness's digest, and nothing else is."""

import ast
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cudal2.worker import harness


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package. Whoever changes it puts it back."""
    folder = tmp_path_factory.mktemp("package") / "cudal2"
    return shutil.copytree(
        harness.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "policy", "search", "data")
    )


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """What is left of a source is found out once: most are the same in all digests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "substance", cache(harness.substance))
        yield


@pytest.fixture(scope="module")
def before(package: Path) -> str:
    return harness.fingerprint(package)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name",
    [
        *("source.py", "target.py", "arch.py", "contract.py", "records.py", "problem.py"),
        *("config/worker.py", "exported/processor.py", "__init__.py"),
        *("worker/verify.py", "worker/cpu/runner.cpp", "worker/cuda/programs/driver.h"),
        "worker/cuda/compile/shim/ATen/ATen.h",
    ],
)
def test_what_decides_a_verdict_changes_the_digest(package: Path, before: str, name: str) -> None:
    """The source check's refusals, the target's flags: they are cached under it. A comment in Python decides nothing;
    in another file it may, if its line is counted."""
    was = (package / name).read_bytes()
    (package / name).write_bytes(was + b"\nnew = 1\n")
    changed = harness.fingerprint(package)
    (package / name).write_bytes(was + b"\n# new\n")
    commented = harness.fingerprint(package)
    (package / name).write_bytes(was)
    assert changed != before and (commented == before) is name.endswith(".py")


def test_a_new_file_and_another_name_change_it_and_what_no_verdict_needs_does_not(package: Path, before: str) -> None:
    for name in ("report.py", "train/rewards.py", "worker/__pycache__/verify.pyc"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(b"\n")
    assert harness.fingerprint(package) == before
    (package / "worker" / "new.h").touch()
    after = harness.fingerprint(package)
    (package / "worker" / "new.h").rename(package / "worker" / "newer.h")
    assert len({before, after, harness.fingerprint(package)}) == 3


SOURCE = '''class Size:
    count: int = 2 * 3
    text = "é"; other = """
    kept  # too
    """
    def name(self) -> str:
        if self:
            return f"{self.count}  # µ"
        return (
            "a"
            "b"
        )
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Size:\n", '# é\n"""Of\n\n  a module: é."""  # é\n\nclass Size:\n    "Of a class."\n'),
        ("2 * 3\n", '2 * 3  # é\n    """Of a field:\n\n    é."""\n\n'),
        ("str:\n", "str:  # é\n        ('of a '  # é\n\n         'method')\n"),
        ('"a"\n', '"a"  # é\n\n            # é\n'),
        ("        )\n", "        )   \n   \n\n# é"),
        ("        )\n", "        )"),
        ("\n", "\r\n"),
    ],
)
def test_what_is_only_read_is_left_out(tmp_path: Path, old: str, new: str) -> None:
    assert old in SOURCE and contents(tmp_path, SOURCE.replace(old, new)) == contents(tmp_path, SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * 3", "2 * 4"),
        ("2 * 3", "2 + 3"),
        ('"é"', '"e"'),
        ("kept  # too", "kept"),
        ("too\n", "too  \n"),
        ("too\n", "too\n\n"),
        ("  # µ", "  # m"),
        ("        return (", "            return ("),
        ('            "b"\n', ""),
    ],
)
def test_what_is_run_is_not(tmp_path: Path, old: str, new: str) -> None:
    assert old in SOURCE and contents(tmp_path, SOURCE.replace(old, new)) != contents(tmp_path, SOURCE)


def contents(folder: Path, source: str) -> str:
    """The digest of a package that has this source alone."""
    (folder / "worker").mkdir(exist_ok=True)
    (folder / "worker" / "one.py").write_bytes(source.encode())
    return harness.fingerprint(folder)


def test_an_f_string_that_some_pythons_read_as_many_tokens_stays_whole() -> None:
    kept = 'one = f"""{\n  1  \n}  \n\n# é {2}\n"""'
    assert harness.substance(f"{kept}  # é\n") == kept


def test_what_is_left_of_every_source_means_the_same() -> None:
    for file in harness.sources(harness.PACKAGE):
        if file.suffix == ".py":
            tree = ast.parse(passing(file.read_text()))
            for node in ast.walk(tree):
                if hasattr(node, "body") and isinstance(node.body, list):
                    node.body = [part for part in node.body if not docstring(part)]
            assert ast.dump(ast.parse(harness.substance(passing(file.read_text())))) == ast.dump(tree)


def passing(source: str) -> str:
    """A `pass` before each docstring, because a block that is nothing else would be empty without it."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if docstring(node):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = f"{line[: node.col_offset]}pass; {line[node.col_offset :]}"
    return "\n".join(lines)


def docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
