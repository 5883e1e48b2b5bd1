"""Games on the best kernels of a run, shape by shape: which kernels are played, what is kept and where it goes."""

from pathlib import Path

import msgspec
import pytest
from fakes import FakePool
from sass.planted import listing
from specimens import verdict
from toolkit import needs_toolkit

from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.archive.selection import Comparable
from cudal2.archive.store import ANY
from cudal2.config import SassConfig, load
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, Measured, Shift, Status
from cudal2.sass.polish import run, shapes
from cudal2.sass.polish.subject import Subject

PLAYED, NO_LOOP, UNKNOWN = Problem(256, 256, 256), Problem(64, 64, 64), Problem(128, 128, 128)
KERNEL = (Path(__file__).parents[2] / "worker/cuda/kernels/mma.cu").read_text()
EMPTY = '#include <cuda_fp16.h>\nextern "C" __global__ void nothing(int* at) { *at = 1; }\n'
HGEMM = (
    'extern "C" cudaError_t hgemm(const __half*, const __half*, __half* C, int, int, int, void*, cudaStream_t stream)'
    "{ nothing<<<1, 1, 0, stream>>>((int*)C); return cudaSuccess; }\n"
)
ORIGIN = Origin(kind="search", run="a", step=0, index=0, policy="p", prompt="")


@pytest.fixture
def folder(tmp_path):
    """A run with a kernel to play on, which an edit is said to have made faster, and one without a loop."""
    kernel = Candidate(KERNEL, PLAYED, "sm_90a")
    edited = msgspec.structs.replace(kernel, edit=Edit("k", "ab" * 32, (Shift(3, 4),)))
    with Archive.of(tmp_path) as archive:
        for candidate, speed in ((kernel, 1.0), (edited, 1.5), (Candidate(EMPTY + HGEMM, NO_LOOP, "sm_90a"), 1.0)):
            archive.add(verdict(candidate, speed), candidate, ORIGIN)
    return tmp_path


@pytest.mark.slow
def test_each_shapes_best_kernel_is_played_once(folder):
    needs_toolkit()
    config = load("sass", ["search.method=greedy", "search.measurements=6", "floor=1"], SassConfig)
    assert shapes.played(folder, config) == [NO_LOOP, PLAYED]
    told = []
    first = shapes.run(folder, [PLAYED, NO_LOOP, UNKNOWN], config, jobs=2, tell=told.append)
    assert told == first and [one.problem for one in first] == [PLAYED.name, NO_LOOP.name, UNKNOWN.name]
    won, empty, unknown = first
    assert won.won and won.best.method == "greedy" and won.best.measurements == 6
    assert not empty.won and empty.best is None and unknown.best is None and "no correct kernel" in unknown.said
    assert "1 of 1 kernels are surely faster; 2 could not be played" in shapes.summary(first)
    (place,) = (folder / "sass").iterdir()
    before = (place / "greedy/journal.jsonl").read_bytes()
    again = shapes.one(folder, PLAYED, config, ["greedy"])  # in this process, which has imported all already
    assert again.best.edit == won.best.edit and (place / "greedy/journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(("methods", "jobs", "said"), [(["greedy", "luck"], 1, "luck"), (["greedy"], 0, "jobs")])
def test_what_cannot_be_is_told_before_anything_is_measured(folder, methods, jobs, said):
    with pytest.raises(ValueError, match=said):
        shapes.run(folder, [PLAYED], load("sass", [], SassConfig), methods, jobs)
    assert not (folder / "sass").exists()


def test_a_winner_joins_the_runs_archive(folder, monkeypatch):
    monkeypatch.setattr("cudal2.judging.Pool", FakePool)
    edit, measured = Edit("planted", "0", (Shift(1, 2),)), Measured(Status.OK, 1.1, 1.05, 1.2, 7)
    found = [run.Found("greedy", 1, 0.0, edit, measured, measured)]
    config = load("sass", ["judge=gpu", f"run={folder}/sass/game"], SassConfig)
    (folder / "sass/game").mkdir(parents=True)
    subject = Subject(b"", listing(), PLAYED, source=f"hgemm(){{}} // {KERNEL}")
    said = shapes.finished(subject, config, found, [], archive=folder)
    assert f"in the archive of {folder}" in said and not (folder / "sass/game/archive.sqlite").exists()
    with Archive.of(folder, create=False) as archive:
        assert edit in [entry.edit for entry in Comparable(archive, "sm_90a", ANY).ranked(PLAYED)]
