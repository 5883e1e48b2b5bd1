"""Which kernels a page shows, and how they fit into it."""

import random

import msgspec
import pytest
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, edited, verdict
from thousand import rows, run

from cudal2.archive import Archive
from cudal2.evaluation import results
from cudal2.records import Status
from cudal2.report import headline, kernels
from cudal2.report.kernels import Kernel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run(folder, shapes=8, sources=2)
    return folder


def found(folder):
    with Archive.of(folder) as archive:
        return kernels.of(archive, HERE.fingerprint, results.load(folder).rows)


def test_the_best_come_first_then_their_parents_then_failures(folder):
    shown = found(folder)
    assert len(shown) == 8 * 3 and len({(kernel.hash, kernel.problem) for kernel in shown}) == len(shown)
    assert [kernel.best for kernel in shown] == [True] * 8 + [False] * 16
    assert {kernel.status for kernel in shown[-8:]} == {Status.WRONG} and shown[-1].reason == "ρ = 12"
    hashes = {kernel.hash[:12] for kernel in shown}
    assert all(kernel.parent in hashes and kernel.how == "constants" for kernel in shown[:8])
    assert all(kernel.family for kernel in shown)


def test_without_an_evaluation_rows_are_the_archives_best(folder):
    with Archive.of(folder) as archive:
        archived = kernels.rows(archive, HERE.fingerprint)
    assert len(archived) == 8
    for row in archived:
        best = max(
            (kernel for kernel in found(folder) if kernel.problem == row.problem and kernel.timing),
            key=lambda kernel: kernel.timing.low,
        )
        assert (row.kernel, row.timing) == (best.hash, best.timing)


def test_an_edited_kernel_names_its_edit_and_shows_what_moved(tmp_path, monkeypatch):
    changed = edited("the fastest")
    with Archive.of(tmp_path) as archive:
        archive.add(verdict(candidate("the fastest"), 1.0), candidate("the fastest"), None)
        archive.add(verdict(changed, 99.0), changed, None)
        archive.add(verdict(candidate("there"), 9.0, ELSEWHERE), candidate("there"), None)
        asked = []
        monkeypatch.setattr(kernels, "moved", lambda *about: asked.append(about[:3]) or "HMMA <R4>")
        first, second = kernels.of(archive, HERE.fingerprint, kernels.rows(archive, HERE.fingerprint))
    assert asked == [(changed.source, changed.target, changed.edit)]
    assert (first.edit, first.listing, first.best) == (changed.edit.name, "HMMA <R4>", True)
    assert first.parent == second.hash[:12] and (second.edit, second.listing) == ("", "")


def test_a_source_is_packed_once_and_numbers_keep_five_digits():
    lines = headline.lines(rows(40))
    shown = [Kernel(hash=f"{n:064}", problem=PROBLEM, status="ok", source="same", best=n < 2) for n in range(9)]
    data = headline.unpacked(headline.data(lines, shown, None, steps=None))
    assert data["sources"] == ["same"] and len(data["kernels"]) == 9 and len(data["shapes"]) == 40
    assert len(data["lines"]) == len(lines)
    for line, column in zip(lines, data["lines"]):
        for row, value in zip(line.rows, column["speedup"]):
            assert value == (pytest.approx(row.timing.speedup, rel=5e-5) if row.timing else None)


def test_what_does_not_fit_is_left_out_the_last_kernels_first():
    """Text of chance compresses least."""
    lines, rng = headline.lines(rows(40)), random.Random(0)
    texts = [rng.randbytes(2000).hex() for _ in range(300)]
    shown = [Kernel(hash=f"{n:064}", problem=PROBLEM, status="ok", source=text) for n, text in enumerate(texts)]
    data = headline.data(lines, shown, None, limit=200_000, steps=None)
    assert len(data) < 200_000
    kept = [kernel["hash"] for kernel in headline.unpacked(data)["kernels"]]
    assert 20 < len(kept) < 100 and kept == [kernel.hash[:12] for kernel in shown[: len(kept)]]
    assert headline.unpacked(headline.data(lines, shown, None, limit=10))["kernels"] == []


def test_nothing_of_an_archive_is_lost_in_json(folder):
    for kernel in found(folder):
        assert msgspec.json.decode(msgspec.json.encode(kernel), type=Kernel) == kernel
