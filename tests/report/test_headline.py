"""The table of a page says what an evaluation's own summaries say."""

import math

import msgspec
import pytest
from specimens import HERE, PROBLEM, timing
from thousand import rows

from cudal2.evaluation import records, tables
from cudal2.problem import Problem
from cudal2.report import headline


def row(*timings, problem=PROBLEM):
    return records.Row(
        problem=problem, fingerprint=HERE.fingerprint, status="ok" if timings else "wrong", timings=timings
    )


@pytest.mark.parametrize("shapes", [1000])
def test_every_number_is_the_evaluations(shapes):
    evaluated = rows(shapes)
    lines = headline.lines(evaluated)
    assert [(line.protocol, line.baseline) for line in lines] == [
        (protocol, baseline)
        for protocol in ("device", "offline")
        for baseline in (headline.FASTEST, "torch.matmul", "cuBLAS-max", "cuBLASLt-AutoTuning-max")
    ]
    assert lines[0].summary == records.summarise(evaluated)
    for decade, part in tables.by_decade(evaluated).items():
        assert lines[0].decades.get(decade) == records.summarise(part)
    for line in lines:
        assert line.served.mean == pytest.approx(line.summary.dispatched, rel=1e-12)
        assert line.served.low <= line.served.mean <= line.served.high
        timings = [row.timing for row in line.rows if row.timing]
        assert len(timings) == line.summary.shapes == sum(map(lambda one: one.shapes, line.decades.values()))
        assert line.mean == pytest.approx(sum(one.speedup for one in timings) / len(timings))
        assert line.summary.geomean == pytest.approx(
            math.exp(sum(math.log(one.speedup) for one in timings) / len(timings))
        )


def test_a_baseline_in_two_layouts_counts_with_the_faster():
    slow, fast = timing(2.0, "cublas-nn"), timing(1.5, "cublas-tn")  # baseline_us is 10 times the speedup
    (fastest, one) = headline.lines([row(slow, fast)])
    assert (one.baseline, one.summary.geomean, fastest.summary.geomean) == ("cuBLAS-max", 1.5, 1.5)


def test_what_was_not_timed_so_is_left_out():
    lines = headline.lines([row(timing(1.5)), row(problem=Problem(8, 8, 8)), row(timing(0.5, "other"))])
    assert {line.baseline: line.summary.shapes for line in lines} == {
        headline.FASTEST: 2,
        "torch.matmul": 1,
        "other": 1,
    }
    assert all(len(line.rows) == 3 for line in lines)
    assert headline.lines([row()]) == []


def test_what_is_not_certain_is_served_by_torch():
    unsure = msgspec.structs.replace(timing(1.5), confidence=0.0)
    line = headline.lines([row(unsure), row(timing(2.0))])[0]
    assert line.served.mean == pytest.approx(math.sqrt(2)) and line.served.high == pytest.approx(2.0)


def test_what_has_no_right_kernel_is_served_by_torch_and_what_was_timed_otherwise_is_left_out():
    lines = headline.lines([row(timing(2.0)), row(), row(timing(3.0, "other"))])
    found = {line.baseline: line.served.mean for line in lines}
    assert found == {
        headline.FASTEST: pytest.approx(6 ** (1 / 3)),
        "torch.matmul": pytest.approx(2 ** (1 / 2)),
        "other": pytest.approx(3 ** (1 / 2)),
    }
