import json

import pytest
from callings import half
from exported import NN, TN, change, plain, write
from test_padding import TELLS

from cudal2.cli import main
from cudal2.exported.op import PADDED
from cudal2.overhead import cost, neighbours
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import load
from cudal2.runtime.manifest import read

SMALL, GOOD, LEFT = Problem(16, 16, 16), Problem(64, 16, 16), Problem(32, 8, 16, "nn")
ADDS = TELLS.replace("C[i] = M", "C[i] = A[0] - A[0] + A[K * (M - 1)] * 0")
"""The first and the last row cancel in every other: right, as long as they are numbers."""
MINDS = TELLS.replace("C[i] = M", "C[i] = float(A[K * (M - 1)]) > 1e3f ? 9 : 1")
"""A NaN in the last row is seen in no other, a large number in all."""


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "export", {SMALL: (TN, 1.5), GOOD: (TN, 1.5), LEFT: (NN, 0.5)})


def slower(monkeypatch, *numbers):
    """Let the kernels have been slower than torch just there."""

    def told(library, kernel, rows):
        name, ratio = cost.problem(kernel).name, 2.0 if rows in numbers else 0.5
        return {"problem": name, "rows": rows, "served": True, "call_us": ratio, "call_torch_us": 1.0}

    monkeypatch.setattr(neighbours, "measured", told)


@pytest.mark.parametrize("below", [0, 1, 7, 64, 1024, 4095])
@pytest.mark.parametrize("m", [1, 8, 64, 128, 4096, 16384])
def test_numbers_of_rows_lie_between_two_kernels(below, m):
    found = neighbours.numbers(below, m)
    assert found == sorted(set(found), reverse=True) and all(below < rows < m for rows in found)
    assert len(found) <= 2 * neighbours.PARTS + 1
    if below < m - 1:
        assert found[0] == m - 1 and found[-1] <= below + max(1, (m - below) // neighbours.PARTS)


def test_each_dispatched_kernel_is_called_with_fewer_rows_until_torch_is_faster(folder, monkeypatch, capsys):
    slower(monkeypatch, 8, 29)
    assert main(["bench", "call", str(folder), "neighbours=true", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["served"] and row["apart"] for row in rows)
    small, good = ([row["rows"] for row in rows if row["problem"] == one.name] for one in (SMALL, GOOD))
    assert [*small, *good] == [row["rows"] for row in rows], "that which is not dispatched is not measured"
    assert small == [one for one in neighbours.numbers(0, 16) if one >= 8]
    assert good == neighbours.numbers(16, 64)
    assert load(folder).calls == {} and all(one.fewest_rows is None for one in read(folder).kernels)


def test_calls_with_fewer_rows_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "ROUNDS", 1)
    monkeypatch.setattr(cost, "FEWEST", 1)
    monkeypatch.setattr(cost, "CALLS", 1)
    library = cost.opened(write(tmp_path / "export", {SMALL: (TN, 1.5), LEFT: (NN, 1.5)}), "f32")
    for kernel in library.kernels:
        row = cost.measured(library, kernel, kernel.m - 1)
        assert row["served"] and row["rows"] == kernel.m - 1 and row["call_us"] > 0 < row["call_torch_us"]
    assert set(library.calls) == {PADDED}


def test_what_is_measured_decides_from_how_many_rows_on_a_kernel_serves(folder, monkeypatch, capsys):
    slower(monkeypatch, 40)
    assert main(["bench", "call", str(folder), "neighbours=true", "settle=true"]) == 0
    assert "2 kernels serve fewer rows" in capsys.readouterr().err
    fewest = {one.problem: one.fewest_rows for one in read(folder).kernels}
    assert fewest == {SMALL: 1, GOOD: 41, LEFT: None}
    lib, w = load(folder), half(16, 16)
    for rows in range(66):
        lib.linear(half(rows, 16), w)
    assert lib.calls == {"kernel": 2, PADDED: 15 + 23, "no faster kernel for this shape": 1 + 24 + 1}
    slower(monkeypatch, 63)
    assert main(["bench", "call", str(folder), "neighbours=true", "settle=true"]) == 0
    assert [one.fewest_rows for one in read(folder).kernels if one.problem == GOOD] == [None]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_a_kernel_with_a_bias_is_called_below_the_rows_that_it_is_for(tmp_path, monkeypatch, layout, dtype):
    """Kernels of another kind are no neighbours."""
    slower(monkeypatch)
    with_bias = Problem(32, 16, 16, layout, dtype=dtype, epilogue="bias")
    other, below = Problem(24, 16, 16, layout, dtype=dtype), Problem(9, 16, 16, layout, dtype=dtype, epilogue="bias")
    kernels = {problem: (plain(problem), 1.5) for problem in (with_bias, other, below)}
    folder = write(tmp_path / "export", kernels, {with_bias: (17, 32), below: (9, 10)})
    rows = [row for row in neighbours.run(folder) if row["problem"] == with_bias.name]
    assert [row["rows"] for row in rows] == neighbours.numbers(10, 17) and all(row["apart"] for row in rows)
    neighbours.settle(folder, rows)
    fewest = {one.problem: one.fewest_rows for one in read(folder).kernels}
    assert fewest == {with_bias: 11, other: None, below: None}


def test_a_kernel_that_was_slower_with_the_fewest_of_its_rows_is_not_tried_with_fewer(folder, monkeypatch):
    slower(monkeypatch)
    change(folder, rows=(8, 64))
    for dispatched, tried in (((8, 16), {SMALL.name, GOOD.name}), (None, {SMALL.name, GOOD.name})):
        change(folder, dispatch_rows=dispatched)
        assert {row["problem"] for row in neighbours.run(folder)} == tried
    change(folder, dispatch_rows=(16, 64))
    with pytest.raises(ValueError, match="room for fewer rows"):
        neighbours.run(folder)


@pytest.mark.parametrize("source", [ADDS, MINDS], ids=["adds", "minds"])
def test_a_kernel_whose_rows_see_one_another_serves_no_fewer(tmp_path, folder, monkeypatch, source):
    slower(monkeypatch)
    coupled = write(tmp_path / "coupled", {GOOD: (source, 1.5)})
    (row,) = neighbours.run(coupled)
    assert row["served"] and not row["apart"]
    assert neighbours.settle(coupled, [row]) == 0 and read(coupled).kernels[0].fewest_rows is None


def test_what_was_not_served_or_not_measured_stays_as_it_is(folder):
    change(folder, fewest_rows=3)
    row = {"problem": GOOD.name, "rows": 63, "served": False, "apart": True, "call_us": 9.0, "call_torch_us": 1.0}
    assert neighbours.settle(folder, [row]) == 2
    assert [one.fewest_rows for one in read(folder).kernels] == [3] * 3
    assert neighbours.settle(folder, [row | {"served": True}]) == 1


def test_nothing_to_measure_is_named(tmp_path, monkeypatch):
    folder = write(tmp_path / "export", {GOOD: (TN, 0.5)})
    with pytest.raises(ValueError, match="settle=true"):
        neighbours.run(folder)
    monkeypatch.setattr(neighbours.Library, "pads", property(lambda self: False, lambda self, on: None), raising=False)
    with pytest.raises(HarnessFault, match="Export again"):
        neighbours.run(folder)
