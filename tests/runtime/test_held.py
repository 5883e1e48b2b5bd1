import ctypes
import itertools
import shutil
from pathlib import Path

import pytest
import torch
from exported import change, described, write

from cudal2.exported import trial
from cudal2.exported.held import opened
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load
from cudal2.runtime.manifest import read

PROBLEM = Problem(8, 16, 8)
NUMBERS = itertools.count(1)


def filled(value: int) -> str:
    """A kernel that fills C with `value`."""
    return f"""
extern "C" int hgemm(const void*, const void*, _Float16* C, int M, int N, int K, void*) {{
    for (int i = 0; i < M * N; ++i) C[i] = {value};
    return 0;
}}
"""


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """(a folder, what its kernel fills C with, the library of another kernel); none was loaded before."""
    monkeypatch.setattr(trial, "is_right", lambda *_: True)  # they compute no product
    value, other = next(NUMBERS), next(NUMBERS)
    folder = write(tmp_path / "export", {PROBLEM: (filled(value), 1.5)})
    elsewhere = write(tmp_path / "other", {PROBLEM: (filled(other), 1.5)})
    return folder, value, library(elsewhere)


def library(folder):
    return folder / read(folder).kernels[0].code.path


def files_open():
    return len(list(Path("/proc/self/fd").iterdir()))


def check(lib, value):
    found = lib.matmul(torch.ones(8, 8).half(), torch.ones(16, 8).half().t())
    assert lib.calls["kernel"] and torch.equal(found, torch.full((8, 16), value).half())


def test_what_was_hashed_is_what_is_loaded(pair, monkeypatch):
    folder, value, other = pair
    opening, kernel = ctypes.CDLL, library(folder).read_bytes()

    def swapped_first(name, *arguments, **options):
        if other.exists() and Path(name).exists() and Path(name).read_bytes() == kernel:
            other.replace(library(folder))
        return opening(name, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", swapped_first)
    check(load(folder), value)
    assert not other.exists()


def test_what_is_loaded_stays_when_its_file_is_written_over(pair):
    folder, value, other = pair
    lib = load(folder)
    library(folder).write_bytes(other.read_bytes())
    check(lib, value)


def test_libraries_are_told_apart(pair):
    folder, value, other = pair
    check(load(folder), value)
    check(load(other.parent.parent), value + 1)
    check(load(folder), value)


def test_a_content_is_mapped_once_and_leaves_no_file_open(pair, tmp_path):
    folder, _, _ = pair
    file = read(folder).kernels[0].code
    before = files_open()
    first = opened(folder, file)
    assert opened(shutil.copytree(folder, tmp_path / "copy"), file) is first
    assert files_open() == before


def test_what_is_no_library_is_named(pair):
    folder, _, _ = pair
    library(folder).write_text("no library")
    change(folder, code=described(folder, read(folder).kernels[0].code.path))
    with pytest.raises(HarnessFault, match="cannot be loaded") as fault:
        load(folder)
    assert str(library(folder)) in str(fault.value)
