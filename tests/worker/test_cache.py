import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from cudal2.records import HarnessFault
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
