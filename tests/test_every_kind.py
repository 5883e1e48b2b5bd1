"""A problem in bf16 with a bias, of a number of rows that no tile has, goes through every verb; so does one of an
operator that is one file, with a family that is another."""

import csv
import math
import shutil
from pathlib import Path

import pytest
from thorough import only_thorough

from cudal2 import operators
from cudal2.archive import Archive
from cudal2.archive.selection import Comparable
from cudal2.archive.store import ANY
from cudal2.cli import main
from cudal2.corpus import family
from cudal2.files import asset
from cudal2.problem import parse
from cudal2.report import headline
from cudal2.runtime import manifest
from tests.helpers import toy

PROBLEM = parse("7_64_64_tn_f32_bf16_bias")
PLAIN = parse(PROBLEM.mnk)
QUICK = "worker=quick", "worker.threads=1", "worker.disturbed=1000"


@pytest.mark.slow
def test_a_search_an_evaluation_an_export_and_a_page(tmp_path, capsys) -> None:
    """What is found is of that problem alone: it neither takes nor leaves anything for fp16 without a bias."""
    run, worker = tmp_path / "run", [*QUICK, f"worker.cache={tmp_path / 'cache'}"]
    kind = [f"shapes={PROBLEM.mnk}", "shapes.dtype=bf16", "shapes.epilogue=bias"]
    asked = ["search.kernels=2", "search.families=[convert]"]
    assert not main(["search", f"run={run}", *kind, *asked, *worker])
    with Archive.of(run) as archive:
        kernels = Comparable(archive, "cpu", ANY)
        assert kernels.problems() == [PROBLEM] and not kernels.ranked(PLAIN)
        assert all(entry.verdict.rho == pytest.approx(1.0, abs=0.05) for entry in kernels.ranked(PROBLEM))
    assert not main(["eval", str(run), *kind, *worker])
    (row, *_) = csv.DictReader((run / "eval/results.csv").read_text().splitlines())
    assert [row[name] for name in ("m", "dtype", "epilogue", "status")] == ["7", "bf16", "bias", "ok"]
    assert not main(["export", str(run), *worker])
    assert [kernel.problem for kernel in manifest.read(run / "export").kernels] == [PROBLEM]
    assert not main(["report", "page", str(run)])
    capsys.readouterr()
    assert not main(["report", "tables", str(run)])
    assert "torch.matmul" in capsys.readouterr().out


@pytest.fixture
def residual(tmp_path, monkeypatch):
    """The name of an operator that exists in this test only, with its family."""
    families = tmp_path / "data/families"
    shutil.copytree(asset("data", "families"), families)
    toy.family(families)

    def found(*parts: str) -> Path:
        return tmp_path.joinpath(*parts) if parts[:2] == ("data", "families") else asset(*parts)

    monkeypatch.setattr(family, "asset", found)
    cached = (family._families, family._styles, family._environment, family._expression)
    for one in cached:
        one.cache_clear()
    with toy.operator(tmp_path) as name:
        yield name
    for one in cached:
        one.cache_clear()


@pytest.mark.slow
@only_thorough
def test_an_operator_and_a_family_are_a_file_each(residual, tmp_path, capsys) -> None:
    run, worker = tmp_path / "run", [*QUICK, f"worker.cache={tmp_path / 'cache'}"]
    kind = ["shapes=7_64_64", f"shapes.epilogue={residual}"]
    assert not main(["search", f"run={run}", *kind, "search.kernels=2", "search.generation=2", *worker])
    assert not main(["eval", str(run), *kind, *worker])
    (row, *_) = csv.DictReader((run / "eval/results.csv").read_text().splitlines())
    assert [row[name] for name in ("m", "dtype", "epilogue", "status")] == ["7", "fp16", residual, "ok"]
    assert not main(["export", str(run), *worker])
    assert [kernel.problem.epilogue for kernel in manifest.read(run / "export").kernels] == [residual]
    with Archive.of(run) as archive:
        (entry, *_) = Comparable(archive, "cpu", ANY).ranked(parse(f"7_64_64_tn_f32_fp16_{residual}"))
    assert "GCC unroll" in entry.source and entry.verdict.rho == pytest.approx(1.0, abs=0.05)


def test_a_roof_and_a_page_count_what_follows_the_product() -> None:
    from cudal2 import arch

    found = arch.roof("a processor", [(PROBLEM, 1.0)])
    assert found.flops == pytest.approx(1e6 * operators.flop(PROBLEM)) and operators.flop(PROBLEM) > PROBLEM.flop
    assert math.isclose(found.bandwidth, 1e6 * (PROBLEM.bytes + 2 * PROBLEM.n))
    assert headline._problem(PROBLEM) == (7, 64, 64, "tn", "f32", "bf16", "bias")
    assert headline._problem(PLAIN) == (7, 64, 64, "tn", "f32")
