"""What an audit says of published kernels: kinds, their shares, and why those that are not right are not."""

import csv
import math

import msgspec
import pytest
from evaluating import NEAR
from fakes import Says
from specimens import HERE, PROBLEM, timing, verdict

from cudal2.evaluation import audit, records, results, terminal
from cudal2.evaluation.records import Results, Row
from cudal2.problem import Problem, grid
from cudal2.records import Status


def row(status: str = "ok", problem: Problem = PROBLEM, **fields) -> Row:
    timings = (timing(1.2),) if status == "ok" else ()
    return Row(problem=problem, fingerprint="f", status=status, timings=timings, **fields)


def test_what_fails_after_its_single_calls_is_told_apart() -> None:
    kinds = {
        "right": row(repeatable=True),
        "racing": row("wrong", rho=1.0, repeatable=True),
        "wrong": row("wrong", rho=1.0),
        "imprecise": row("imprecise", rho=4.0),
        "out_of_bounds": row("out_of_bounds", repeatable=True),
    }
    assert {name: audit.kind(one) for name, one in kinds.items()} == {name: name for name in kinds}
    assert audit.kind(row("imprecise", rho=1.0, repeatable=False)) == "racing"
    assert set(Status) - {Status.OK} <= set(audit.MEANINGS)


def test_what_the_judge_cannot_do_is_no_fault_of_the_kernel() -> None:
    refused = row("rejected", reason="reads both", notes=("reads both",))
    rows = [row("rejected", grid()[0], reason="includes a file"), refused]
    (part,) = audit.parts(rows)
    assert (part.kind, part.share) == ("rejected", 1.0) and audit.unjudged(rows) == [refused]
    assert "1 more were not judged" in audit.text(rows) and refused not in audit.failures(rows)


def test_shares_have_intervals_where_only_a_part_was_judged() -> None:
    some = [row("wrong" if place % 10 == 0 else "ok", problem) for place, problem in enumerate(grid())]
    assert [(part.count, part.low, part.high) for part in audit.parts(some)] == [(900, 0.9, 0.9), (100, 0.1, 0.1)]
    right, wrong = audit.parts([*some[:50], row(records.NOTHING_ARCHIVED)])
    assert (right.count, wrong.count, wrong.share) == (45, 5, 0.1)
    assert wrong.low == pytest.approx(0.0435, abs=1e-4) and wrong.high == pytest.approx(0.2136, abs=1e-4)
    assert audit.wilson(0, 10)[0] == 0 and audit.wilson(10, 10) == (pytest.approx(0.7225, abs=1e-4), 1.0)


def test_reasons_and_errors_are_printed_and_speeds_are_of_the_right_ones() -> None:
    hostile = "ρ = 4.2\n\x1b[2Jgone " + "x" * 1000
    rows = [row(problem=grid()[0]), row("imprecise", rho=4.2, reason=hostile, notes=("published for M padded to 256",))]
    said = audit.text(rows)
    assert "\x1b" not in said and "ρ = 4.2 [2Jgone" in said and "published for M padded" in said
    assert f"ρ 4.2 ({math.sqrt(PROBLEM.k / 32 + 0.5):.3g}) " in said
    assert "torch.matmul" in said and not any(len(line) > 1000 for line in said.splitlines())
    assert audit.text([]) == "" and "\x1b" not in terminal.describe(PROBLEM, rows[1])


PUBLISHED = """
// auto BM = Int<96>{}; auto BN = Int<64>{}; auto BK = Int<64>{};
void cuda_l2_h100_fp32(torch::Tensor a, torch::Tensor b, torch::Tensor b_col_major, torch::Tensor c) {
  launch(a.data_ptr(), b_col_major.data_ptr(), c.data_ptr());
}
"""


def refused(one):
    found = verdict(one, None, HERE, Status.REJECTED)
    said = "cuda_l2_h100_fp32 reads both b and b_col_major; a kernel is judged with one stored form of B"
    return msgspec.structs.replace(found, reason=said)


def test_a_row_keeps_what_the_verdict_said_and_on_which_machine(run, tmp_path) -> None:
    place = tmp_path / "published"
    place.mkdir()
    (place / f"{PROBLEM.mnk}.cu").write_text(PUBLISHED)
    failed = {"reason": "ρ = 4.2, at most 1.05", "rho": 4.2, "max_error": 0.5, "machine": "0f3a5b7c"}

    def look(one):
        found = verdict(one, None, HERE, Status.IMPRECISE)
        return msgspec.structs.replace(found, **failed)

    options = {"source": str(place), "abi": "cuda-l2", "target": "sm_90a"}
    (row,) = run([PROBLEM], Says(look, HERE), **options)
    assert {name: getattr(row, name) for name in failed} == failed
    assert row.notes == ("published for M padded to a multiple of 96; here M=64 is not padded",)
    (line,) = csv.DictReader(results.as_csv([row]).splitlines())
    assert (line["reason"], line["rho"], line["machine"]) == ("ρ = 4.2, at most 1.05", "4.2", "0f3a5b7c")
    assert records.machines(results.load(tmp_path)) == {f"{HERE.device}, machine 0f3a5b7c": 1}
    assert records.machines(Results({}, (row, row))) == {f"{HERE.fingerprint}, machine 0f3a5b7c": 2}
    (place / f"{NEAR.mnk}.cu").write_text(PUBLISHED.replace("a.data_ptr()", "b.data_ptr()"))
    assert audit.kind(run([NEAR], Says(refused, HERE), **options)[0]) == audit.UNJUDGED
