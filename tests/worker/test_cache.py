"""What was kept is returned; whatever decides a verdict is in the harness's digest, and nothing else is."""

import ast
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache as memoise
from multiprocessing import get_context
from pathlib import Path

import pytest

from cudal2.records import HarnessFault
from cudal2.worker import cache
from cudal2.worker.cache import Cache


def test_returns_what_was_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.read("kind", "abc") is None
    cache.write("kind", "abc", b"payload")
    assert cache.read("kind", "abc") == b"payload"
    assert cache.read("other", "abc") is None


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_damaged_entry_counts_as_missing_and_can_be_made_again(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    cache.write("kind", "abc", b"payload" * 100)
    (entry,) = (path for path in tmp_path.rglob("abc") if path.is_file())
    entry.write_bytes(damage)
    assert cache.read("kind", "abc") is None
    cache.write("kind", "abc", b"again")
    assert cache.read("kind", "abc") == b"again"


def test_truncated_entry_counts_as_missing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.write("kind", "abc", b"payload" * 100)
    (entry,) = (path for path in tmp_path.rglob("abc") if path.is_file())
    entry.write_bytes(entry.read_bytes()[:-1])
    assert cache.read("kind", "abc") is None


def _make(root: Path, key: str) -> None:
    """Counts how often the entry was really made, by the bytes of a log."""
    cache = Cache(root)
    with cache.lock("kind", key):
        if cache.read("kind", key) is None:
            with (root / "made").open("ab") as file:
                file.write(b".")
            cache.write("kind", key, os.urandom(1000))


def test_many_makers_make_it_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        for done in [processes.submit(_make, tmp_path, "key") for _ in range(16)]:
            done.result()
    assert (tmp_path / "made").read_bytes() == b"."


def test_full_disk_costs_the_entry_not_the_result(caplog) -> None:
    Cache(Path("/dev/full")).write("kind", "abc", b"payload")
    assert "worker.cache" in caplog.text


def test_unwritable_folder_is_a_fault_with_a_remedy() -> None:
    with pytest.raises(HarnessFault) as raised:
        Cache(Path("/proc/nowhere")).lock("kind", "abc")
    assert "worker.cache" in raised.value.remedy


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package. Whoever changes it puts it back."""
    folder = tmp_path_factory.mktemp("package") / "cudal2"
    return shutil.copytree(
        cache.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "policy", "search", "data")
    )


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    """What is left of a source is found out once: most are the same in all digests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "substance", memoise(cache.substance))
        yield


@pytest.fixture(scope="module")
def before(package: Path) -> str:
    return cache.fingerprint(package)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name",
    [
        *("completion.py", "target.py", "arch.py", "contract.py", "records.py", "problem.py"),
        *("config/base.py", "exported/processor.py", "__init__.py"),
        *("worker/verify.py", "worker/cpu/runner.cpp", "worker/cuda/programs/driver.h"),
        "worker/cuda/compile/shim/ATen/ATen.h",
    ],
)
def test_what_decides_a_verdict_changes_the_digest(package: Path, before: str, name: str) -> None:
    """The source check's refusals, the target's flags: they are cached under it. A comment in Python decides nothing;
    in another file it may, if its line is counted."""
    was = (package / name).read_bytes()
    (package / name).write_bytes(was + b"\nnew = 1\n")
    changed = cache.fingerprint(package)
    (package / name).write_bytes(was + b"\n# new\n")
    commented = cache.fingerprint(package)
    (package / name).write_bytes(was)
    assert changed != before and (commented == before) is name.endswith(".py")


def test_a_new_file_and_another_name_change_it_and_what_no_verdict_needs_does_not(package: Path, before: str) -> None:
    for name in ("report.py", "train/rewards.py", "worker/__pycache__/verify.pyc"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(b"\n")
    assert cache.fingerprint(package) == before
    (package / "worker" / "new.h").touch()
    after = cache.fingerprint(package)
    (package / "worker" / "new.h").rename(package / "worker" / "newer.h")
    assert len({before, after, cache.fingerprint(package)}) == 3


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
    return cache.fingerprint(folder)


def test_an_f_string_that_some_pythons_read_as_many_tokens_stays_whole() -> None:
    kept = 'one = f"""{\n  1  \n}  \n\n# é {2}\n"""'
    assert cache.substance(f"{kept}  # é\n") == kept


def test_what_is_left_of_every_source_means_the_same() -> None:
    for file in cache.sources(cache.PACKAGE):
        if file.suffix == ".py":
            tree = ast.parse(passing(file.read_text()))
            for node in ast.walk(tree):
                if hasattr(node, "body") and isinstance(node.body, list):
                    node.body = [part for part in node.body if not docstring(part)]
            assert ast.dump(ast.parse(cache.substance(passing(file.read_text())))) == ast.dump(tree)


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
