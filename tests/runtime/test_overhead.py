import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from exported import NN, TN, change, plain, write
from specimens import HERE

from cudal2.cli import main
from cudal2.exported.op import PADDED
from cudal2.overhead import cost
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load
from cudal2.runtime.manifest import read

SLOW, TALL = Problem(16, 16, 16), Problem(32, 16, 16, "nn")


def test_every_kernel_of_a_folder_is_called_beside_torch(tmp_path, capsys, monkeypatch):
    """Also one that is not dispatched."""
    monkeypatch.setattr(cost, "ROUNDS", 2)
    monkeypatch.setattr(cost, "CALLS", 2)
    folder = write(tmp_path / "export", {TALL: (NN, 1.5), SLOW: (TN, 0.5)})
    assert main(["bench", "call", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["problem"] for row in rows] == [SLOW.name, TALL.name]
    for row in rows:
        assert row["served"] and all(row[name] > 0 for name in ("call_us", "call_torch_us", "call_op_us"))
    assert main(["bench", "call", str(folder), "count=1"]) == 0
    assert "× torch's time" in capsys.readouterr().out


KINDS = [
    Problem(7, 16, 24, layout, dtype=dtype, epilogue=epilogue)
    for layout in ("tn", "nn")
    for dtype in ("fp16", "bf16")
    for epilogue in ("none", "bias")
]


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    """An export of all of them, each for 5 to 12 rows; and the library that it is called by."""
    kernels = {problem: (plain(problem), 1.5) for problem in KINDS}
    folder = write(tmp_path_factory.mktemp("kinds") / "export", kernels, dict.fromkeys(kernels, (5, 12)))
    return folder, cost.opened(folder, "f32")


@pytest.fixture
def quick(monkeypatch):
    for name in ("ROUNDS", "FEWEST", "CALLS"):
        monkeypatch.setattr(cost, name, 1)


@pytest.mark.parametrize("problem", KINDS, ids=lambda problem: problem.name)
def test_a_kernel_of_any_kind_is_called_with_its_own_operands(every_kind, quick, problem):
    """As it is for the rows that it is for, padded for fewer; all three calls give the same."""
    _, library = every_kind
    (kernel,) = [one for one in library.kernels if cost.problem(one) == problem]
    for rows in (1, 5, 7, 12):
        before, by = library.calls, "kernel" if rows >= 5 else PADDED
        row = cost.measured(library, kernel, rows)
        assert row["problem"] == problem.name and row["served"] and row["call_us"] > 0 < row["call_torch_us"]
        assert (library.calls - before).keys() == {by}
        sides = cost.calls(library, kernel, *cost.operands(library, kernel, rows))
        expected, *found = (side() for side in (sides["torch"], sides[""], sides["op"]))
        assert expected.shape == (rows, 16) and str(expected.dtype) == f"torch.{problem.type.torch}"
        for one in found:
            assert torch.allclose(one.float(), expected.float(), rtol=4 * problem.type.unit, atol=1e-2)


def test_kernels_of_every_kind_are_settled_by_their_own_names(every_kind, quick, tmp_path):
    source, _ = every_kind
    folder = change(shutil.copytree(source, tmp_path / "export"))
    rows = cost.run(folder)
    assert sorted(row["problem"] for row in rows) == sorted(problem.name for problem in KINDS)
    slow = [row | {"call_us": 2.0 if "bf16_bias" in row["problem"] else 0.5, "call_torch_us": 1.0} for row in rows]
    assert cost.settle(folder, slow) == 6
    assert {one.problem for one in read(folder).kernels if not one.dispatch} == {
        problem for problem in KINDS if (problem.dtype, problem.epilogue) == ("bf16", "bias")
    }


def test_another_machine_is_a_fault(tmp_path):
    with pytest.raises(HarnessFault, match="not on"):
        cost.run(write(tmp_path / "export", {SLOW: (TN, 1.5)}, environment=HERE))


def test_settling_measures_what_may_be_dispatched(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cost, "ROUNDS", 2)
    monkeypatch.setattr(cost, "CALLS", 2)
    folder = write(tmp_path / "export", {TALL: (NN, 1.5), SLOW: (TN, 0.5)})
    assert main(["bench", "call", str(folder), "settle=true", "--json"]) == 0
    assert [row["problem"] for row in json.loads(capsys.readouterr().out)] == [TALL.name]
    nothing = write(tmp_path / "nothing", {SLOW: (TN, 0.5)})
    assert main(["bench", "call", str(nothing), "settle=true"]) == 2
    assert "nothing to settle" in capsys.readouterr().err


def test_what_ends_settling_loses_nothing_that_was_measured(monkeypatch):
    monkeypatch.setattr(cost, "BATCH", 2)
    settled = []

    def figures(_, kernel):
        if kernel == 5:
            raise KeyboardInterrupt
        return [{"problem": kernel}]

    called = SimpleNamespace(
        eligible=lambda *_: (None, list(range(9))),
        figures=figures,
        settle=lambda _, rows: settled.append([row["problem"] for row in rows]),
    )
    with pytest.raises(KeyboardInterrupt):
        cost.settle_all(called, None, "f32")
    assert settled == [[0, 1], [2, 3], [4]]


def test_what_is_measured_decides_what_is_dispatched(tmp_path):
    """Of what is surely faster; a kernel that was not measured stays as it is."""
    problems = [Problem(8, 8, 8 * k) for k in range(1, 7)]
    folder = write(tmp_path / "export", dict.fromkeys(problems, (TN, 1.5)) | {problems[4]: (TN, 0.9)})
    ratios = [(1.0, 1.0), (0.5, 1.02), (1.02, 0.5), (0.5, None), (0.5, 0.5), (2.0, 2.0)]
    rows = [
        {
            "problem": problem.name,
            "served": problem != problems[5],
            "call_us": 10 * call,
            "call_torch_us": 10.0,
            "host_us": 9.0,
            "host_torch_us": 1.0,
        }
        | ({} if graph is None else {"graph_us": 10 * graph, "graph_torch_us": 10.0})
        for problem, (call, graph) in zip(problems, ratios)
    ]
    assert cost.settle(folder, rows) == 3 == len(load(folder))
    assert [one.dispatch for one in read(folder).kernels] == [True, False, False, True, False, True]
    assert not list(folder.glob(".settle*"))
    assert "more than 1% slower on 2 of 5" in cost.summary(rows)
