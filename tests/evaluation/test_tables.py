"""Our rows as CUDA-L2's tables: which baseline counts, what the aggregates are."""

import csv
import math
from pathlib import Path

import pytest

from cudal2.evaluation import tables
from cudal2.evaluation.records import Row
from cudal2.evaluation.tables import FASTEST
from cudal2.problem import Problem, parse
from cudal2.records import Timing

SMALL, LARGE = Problem(64, 64, 64), Problem(2048, 2048, 2048)
SAMPLE = Path(__file__).parents[2] / "experiments" / "h200" / "sample"


def timed(baseline: str, protocol: str, speedup: float) -> Timing:
    return Timing(baseline, protocol, 10.0, 10.0 * speedup, speedup, speedup, speedup, 7, 10)


def row(problem: Problem, **speedups: float) -> Row:
    """`cublas_tn=1.2` on the device's clock, `offline_cublas_tn` on the host's; without any the kernel is wrong."""
    timings = []
    for name, speedup in speedups.items():
        protocol, _, rest = name.partition("_") if name.startswith("offline") else ("device", "", name)
        timings.append(timed(rest.replace("_", "-"), protocol, speedup))
    status = "ok" if timings else "wrong"
    return Row(problem=problem, fingerprint="f", status=status, timings=tuple(sorted(timings, key=lambda t: t.speedup)))


def test_the_faster_layout_counts_shape_by_shape() -> None:
    rows = [row(SMALL, cublas_nn=1.5, cublas_tn=2.0), row(LARGE, cublas_nn=3.0, cublas_tn=0.5)]
    found = tables.table(rows)["cuBLAS-max"]["device"]
    assert (found.shapes, found.correct, found.mean, found.wins) == (2, 2, 1.0, 0.5)
    assert math.isclose(found.geomean, math.sqrt(0.75)) and math.isclose(found.fallback, math.sqrt(1.5))


def test_what_has_no_kernel_counts_where_torch_would_serve_and_nowhere_else() -> None:
    found = tables.table([row(SMALL, torch_nn=4.0), row(LARGE), row(LARGE), row(LARGE)])["torch.matmul"]["device"]
    assert (found.shapes, found.correct, found.wins) == (4, 1, 0.25)
    assert (found.mean, found.geomean) == (4.0, 4.0) and math.isclose(found.fallback, math.sqrt(2))


def test_a_right_kernel_that_was_not_timed_beside_a_library_is_not_lost_to_it() -> None:
    found = tables.table([row(SMALL, torch_nn=2.0, cublas_nn=2.0), row(LARGE, torch_nn=2.0), row(LARGE)])
    assert (found["torch.matmul"]["device"].shapes, found["torch.matmul"]["device"].wins) == (3, 2 / 3)
    assert (found["cuBLAS-max"]["device"].shapes, found["cuBLAS-max"]["device"].wins) == (2, 0.5)


def test_libraries_and_protocols_are_told_apart_and_none_is_made_up() -> None:
    found = tables.table(
        [row(SMALL, torch_nn=1.1, cublaslt_tn=1.2, cublaslt_auto_nn=1.3, offline_cublaslt_auto_nn=1.4)]
    )
    assert {name: set(cells) for name, cells in found.items()} == {
        "torch.matmul": {"device"},
        "cuBLASLt-heuristic-max": {"device"},
        "cuBLASLt-AutoTuning-max": {"device", "offline"},
        FASTEST: {"device", "offline"},
    }
    assert found[FASTEST]["device"].mean == 1.1 and found[FASTEST]["offline"].mean == 1.4
    assert tables.table([row(SMALL)]) == {} and tables.text([]) == tables.text([row(SMALL)]) == ""


def test_what_is_called_from_python_is_the_fastest_by_the_hosts_clock_only_where_it_is_alone() -> None:
    """A call of it does not compare with one from C."""
    both = tables.table([row(SMALL, torch_tn=1.1, cublas_tn=1.2, offline_torch_tn=1.1, offline_cublas_tn=1.2)])
    assert both[FASTEST]["device"].mean == 1.1 and both[FASTEST]["offline"].mean == 1.2
    alone = tables.against(row(SMALL, offline_torch_tn=1.1, offline_torch_nn=1.3), FASTEST, "offline")
    assert alone and alone.speedup == 1.1


def test_a_processors_baselines_are_both_torchs() -> None:
    timings = timed("torch.fp16", "device", 1.2), timed("torch.fp32", "device", 1.9)
    rows = [Row(problem=SMALL, fingerprint="f", status="ok", timings=timings)]
    assert {name: cells["device"].mean for name, cells in tables.table(rows).items()} == {"torch.matmul": 1.2}


OTHER, LAYER = Problem(72, 64, 64), parse("llama-3-8b.out")
"""A shape of no list, and one of two: a layer whose sizes the grid has."""


def test_groups_divide_the_whole() -> None:
    rows = [row(problem) for problem in (SMALL, LARGE, OTHER, LAYER, Problem(64, 128, 64))]
    for group in (tables.by_decade, tables.by_m):
        found = group(rows)
        assert sorted(one.problem for part in found.values() for one in part) == sorted(one.problem for one in rows)
    assert {name: len(part) for name, part in tables.by_m(rows).items()} == {"64": 2, "72": 1, "2048": 2}
    lists = {name: [one.problem for one in part] for name, part in tables.by_list(rows).items()}
    grid = [SMALL, LARGE, LAYER, Problem(64, 128, 64)]
    assert lists == {"grid": grid, "llama-3-8b": [LAYER], "other": [OTHER]}
    apart = parse("gemma-3-4b.qkv@8")
    lists = {name: [one.problem for one in part] for name, part in tables.by_list([*rows, row(apart)]).items()}
    assert lists["gemma-3-4b"] == [apart] and apart not in lists["other"]
    assert {name: len(part) for name, part in tables.by_split([*rows, row(apart)]).items()} == {
        "kept apart": 1,
        "others": 5,
    }


def test_a_group_without_a_correct_kernel_is_left_out_and_its_range_is_of_the_fastest() -> None:
    rows = [row(SMALL, cublas_nn=2.0, torch_nn=1.25), row(LARGE, cublas_nn=1.5), row(Problem(2048, 2048, 1024))]
    found = tables.text(rows)
    assert "1e5–1e6" in found and "1e9–1e10" not in found and "1.25–1.25" in found
    by_m = next(line for line in found.splitlines() if line.startswith("| 2048"))
    assert by_m.split("|")[2].strip() == "2", "what failed is one of its shapes"


def test_every_line_of_a_table_has_its_columns() -> None:
    lines = tables.text([row(SMALL, cublas_nn=2.0, torch_tn=1.0, offline_cublas_nn=1.2)]).splitlines()
    for head in (place for place, line in enumerate(lines) if set(line) == {"|", "-", " "}):
        block = [lines[head - 1], *lines[head + 1 :]]
        block = block[: block.index("")] if "" in block else block
        assert {line.count("|") for line in block} == {lines[head].count("|")} and len(block) > 1


def committed() -> list[Row]:
    """The hundred shapes that experiments/h200 measured."""
    rows: dict[Problem, list[Timing]] = {}
    with (SAMPLE / "results.csv").open() as file:
        for line in csv.DictReader(file):
            problem = Problem(*(int(line[name]) for name in "mnk"), line["layout"], line["accumulate"])
            figures = (float(line[name]) for name in ("candidate_us", "baseline_us", "speedup", "low", "high"))
            rows.setdefault(problem, []).append(Timing(line["baseline"], line["protocol"], *figures, 9, 1))
    return [Row(problem=one, fingerprint="f", status="ok", timings=tuple(found)) for one, found in rows.items()]


@pytest.mark.parametrize(("protocol", "figures"), [("device", (1.092, 1.085, 0.73)), ("offline", (1.253, 1.251, 0.95))])
def test_the_committed_measurement_has_the_committed_figures(protocol: str, figures: tuple[float, ...]) -> None:
    found = tables.table(committed())["cuBLASLt-AutoTuning-max"][protocol]
    assert (round(found.fallback, 3), round(found.geomean, 3), found.wins) == figures
    said = (SAMPLE / "speedups.txt").read_text()
    assert all(f"{figure:.3f}" in said for figure in figures[:2])


def test_number_types_and_epilogues_are_groups_of_their_own_where_there_are_several() -> None:
    kinds = [
        Problem(64, 64, 64),
        Problem(64, 64, 64, "tn", "f32", "bf16"),
        Problem(64, 64, 8, "nn", "f32", "bf16", "bias"),
    ]
    rows = [row(problem, cublas_tn=float(speed)) for problem in kinds for speed in (1, 2)]
    assert {name: len(part) for name, part in tables.by_type(rows).items()} == {
        "fp16, none": 2,
        "bf16, none": 2,
        "bf16, bias": 2,
    }
    assert "bf16, bias" in tables.text(rows) and "fp16, none" not in tables.text(rows[:2])
