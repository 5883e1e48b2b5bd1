"""What experiments/h200/wall/wall.py says of the contenders that it has timed."""

import sys
from pathlib import Path

import pytest
import torch

from cudal2.problem import parse

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "h200" / "wall"))
import wall

FEW, MANY = parse("8_64_64_tn_f32_bf16"), parse("2048_64_64_tn_f32_bf16_bias")


def cells(text: str, name: str) -> list[str]:
    """Of a contender, those of the numbers of rows that there are."""
    head, *lines = text.splitlines()
    line = next(line for line in lines if line.startswith(name))
    return [line[11 + 28 * band :][:28].strip() for band in range(len(head[11:]) // 28 + 1)]


def test_a_ratio_says_how_many_times_as_fast_as_the_fastest_baseline():
    lines = wall.lines_of(FEW, {"baseline": 10.0, "triton": 12.5, "lt-0": 5.0})
    assert {line["contender"]: float(line["ratio"]) for line in lines} == {"baseline": 1, "triton": 0.8, "lt-0": 2}


def test_the_table_takes_each_shape_to_its_rows_and_any_is_the_fastest_but_ours():
    lines = wall.lines_of(FEW, {"baseline": 10.0, "triton": 20.0, "compile": 8.0, "ours": 5.0})
    lines += wall.lines_of(MANY, {"baseline": 10.0, "triton": 20.0, "compile": 40.0})
    text = wall.table(lines)
    few, many = cells(text, "any")
    assert few == "1.250 [1.250, 1.250] of 1"
    assert many == "0.500 [0.500, 0.500] of 1"
    assert cells(text, "ours")[0].startswith("2.000")
    assert cells(text, "ours")[1] == ""
    assert cells(text, "beyond")[0].startswith("1.600")
    assert not any(line.startswith("baseline") for line in text.splitlines())


@pytest.mark.parametrize("biased", [False, True])
def test_the_compiled_contender_is_a_linear_layer(biased, monkeypatch):
    """Given as the others are: operands in order, C last, which it leaves alone."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    a, b, bias, c = torch.randn(3, 8), torch.randn(16, 8), torch.randn(16), torch.full((3, 16), 7.0)
    given = (a, b, bias, c) if biased else (a, b, c)
    expected = a @ b.t() + (bias if biased else 0)
    torch.testing.assert_close(wall.by_compile()(*given), expected)
    assert (c == 7).all()


def test_the_workspace_is_the_vendors_again_behind_a_failure():
    before = wall.lt.WORKSPACE
    with pytest.raises(ZeroDivisionError), wall.allowed(4):
        assert wall.lt.WORKSPACE == 4 << 20
        raise ZeroDivisionError
    assert before == wall.lt.WORKSPACE


def test_one_contender_that_fails_costs_no_other(capsys):
    assert wall.attempt("triton", lambda: 1 / 0) is None
    assert wall.attempt("compile", lambda: 5) == 5
    assert "triton: ZeroDivisionError" in capsys.readouterr().out
