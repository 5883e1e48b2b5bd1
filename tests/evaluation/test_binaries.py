"""What a binary measured is nobody's but its own: an exported folder's source and code need not belong together."""

import hashlib
import random

import msgspec
import pytest
from evaluating import FAR, NEAR, FakePool, put
from fakes import Says
from specimens import HERE, PROBLEM, candidate, verdict

from cudal2 import export, report
from cudal2.archive import Archive, selection
from cudal2.archive.selection import Comparable
from cudal2.evaluation import records, results
from cudal2.problem import Problem
from cudal2.records import Binary, Candidate
from cudal2.runtime import manifest
from cudal2.worker.backend import Portable

SPEEDS = {b"slow": 0.5, b"fast": 9.0}


def build(one: Candidate) -> Portable:
    """As a compiler would: fast code of a fast source."""
    return Portable(b"fast" if "fast" in one.source else b"slow")


def measured(one: Candidate):
    """What a worker finds: the speed of the code that runs."""
    if one.binary is None:
        return verdict(one, SPEEDS[build(one).code])
    path, _ = one.binary.code
    with open(path, "rb") as file:  # noqa: PTH123
        return verdict(one, SPEEDS[file.read()])


@pytest.fixture
def swapped(tmp_path):
    """An export of a slow and a fast kernel, in which each source lies beside the other's code, digests and all."""
    other = tmp_path / "other"
    rows = []
    with Archive.of(other) as archive:
        for text, problem in (("slow", PROBLEM), ("fast", NEAR)):
            one = put(archive, text, SPEEDS[text.encode()], problem)
            fields = {"problem": problem, "fingerprint": HERE.fingerprint, "status": "ok"}
            rows.append(records.Row(**fields, kernel=one.kernel_hash, timings=measured(one).timings))
        results.save(other, records.Results({HERE.fingerprint: HERE}, tuple(rows)))
        found = export.run(other, archive, build, HERE)
    folder, (first, second) = other / "export", found.kernels
    codes = [(folder / kernel.code.path).read_bytes() for kernel in (first, second)]
    assert set(codes) == set(SPEEDS)
    kernels = []
    for kernel, code in zip((first, second), reversed(codes)):
        (folder / kernel.code.path).write_bytes(code)
        kernels.append(
            msgspec.structs.replace(kernel, code=manifest.File(kernel.code.path, hashlib.sha256(code).hexdigest()))
        )
    manifest.write(folder, msgspec.structs.replace(found, kernels=tuple(kernels)))
    return folder


@pytest.mark.slow
def test_swapped_code_lends_its_speed_to_no_source(run, archive, tmp_path, swapped) -> None:
    """Neither ranked nor shown, tried or exported: not here, nor where the archive knows the source already."""
    rows = run([PROBLEM, NEAR], Says(measured, HERE), source=str(swapped))
    assert [row.timing.speedup for row in rows] == [9.0, 0.5], "the slow source's folder runs the fast code"
    kernels = Comparable(archive, "cpu", HERE.fingerprint)
    assert kernels.problems() == kernels.ranked(PROBLEM) == selection.nearest(kernels, FAR, 8) == []
    assert selection.exemplars(kernels, PROBLEM, 4, random.Random(0)) == []
    assert list(archive.samples()) == archive.rows("SELECT * FROM verdicts") == []
    with pytest.raises(ValueError, match="says nothing of any source"):
        export.run(tmp_path, archive, build, HERE)
    put(archive, "slow", 0.5)
    with pytest.raises(ValueError, match="says nothing of any source"):
        export.run(tmp_path, archive, build, HERE)
    assert [entry.low < 1 for entry in kernels.ranked(PROBLEM)] == [True]


def test_a_row_of_a_source_is_not_answered_by_its_binary_nor_the_other_way_round(run, archive, tmp_path, swapped):
    put(archive, "slow", 0.5)
    own = run([PROBLEM], Says(measured, HERE), neighbours=0)
    with pytest.raises(ValueError, match="name another run"):
        run([PROBLEM], Says(measured, HERE), source=str(swapped))
    assert results.load(tmp_path).rows == tuple(own)
    (tmp_path / "eval" / "results.json").unlink()
    built = run([PROBLEM], Says(measured, HERE), source=str(swapped))
    assert not {row.kernel for row in own} & {row.kernel for row in built} and own[0].considered != built[0].considered
    with pytest.raises(ValueError, match="name another run"):
        run([PROBLEM], Says(measured, HERE), neighbours=0)
    assert results.load(tmp_path).rows == tuple(built)


def test_an_archive_takes_only_what_a_source_compiles_to(archive) -> None:
    for changes in ({"binary": Binary(("x.so", "ab" * 32))}, {"abi": "cuda-l2"}):
        one = msgspec.structs.replace(candidate(), **changes)
        with pytest.raises(ValueError, match="archived"):
            archive.add(verdict(one, 9.0), one, None)
    assert archive.rows("SELECT * FROM sources") == []


def test_what_runs_names_a_binary_wherever_it_lies() -> None:
    def of(code: str, recipe: str | None, path: str = "a", source: str = "s") -> str:
        binary = Binary((path, code), (path, recipe) if recipe else None)
        return Candidate(source, PROBLEM, binary=binary).kernel_hash

    assert len({of("x", None), of("y", None), of("x", "y"), of("x", "z"), Candidate("s", PROBLEM).kernel_hash}) == 5
    assert of("x", "y") == of("x", "y", "b") == of("x", "y", "a", "another source")


def test_a_report_on_binaries_shows_their_figures_and_no_source(run, archive, tmp_path, swapped) -> None:
    run([PROBLEM, NEAR, Problem(8, 8, 8)], Says(measured, HERE), source=str(swapped))
    page = report.run(tmp_path).read_text()
    assert "9.00" in page and "measured as it was" in page
    put(archive, "slow", 0.5, FAR)
    assert "measured as it was" in report.run(tmp_path).read_text()


def test_a_csv_tells_code_from_sources(run, archive, tmp_path, swapped) -> None:
    run([PROBLEM], FakePool(1.25), source=str(swapped))
    lines = (tmp_path / "eval" / "results.csv").read_text().splitlines()
    assert f",{hashlib.sha256(b'fast').hexdigest()}," in lines[1]
