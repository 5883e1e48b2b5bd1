"""The models of experiments/model have the layers of data/shapes/llm.toml, and ask for each product once."""

import sys
from pathlib import Path

import pytest

from cudal2 import llm
from cudal2.config import ShapesConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "model"))
import sizes

REAL = [name for name in sizes.BLOCKS if name not in sizes.TINY]


@pytest.mark.parametrize("name", REAL)
def test_layers_are_those_of_the_list(name):
    """What servers compute as one product is several here; together they have its outputs, inputs and bias."""
    of, found = llm.layers(name), sizes.linear(sizes.build(name, "meta"))
    mlp = "expert_" if "expert_down" in of else ""
    parts = {"qkv": "qkv", "out": "o", f"{mlp}gate_up": ("gate", "up"), f"{mlp}down": ("down",)}
    for layer, of_it in parts.items():
        ours = [one for path, one in found.items() if path.startswith("model.layers.0.") and path.endswith(ends(of_it))]
        assert sum(one.out_features for one in ours) == of[layer].n
        assert {one.in_features for one in ours} == {of[layer].k}
        assert {one.bias is not None for one in ours} == {of[layer].bias}
    assert found["lm_head"].weight.shape == (of["head"].n, of["head"].k)
    assert len(found) == 7 * sizes.BLOCKS[name] + 1


def ends(of_it) -> tuple[str, ...]:
    return tuple(f".{part}_proj" for part in of_it)


@pytest.mark.parametrize("name", REAL)
def test_problems_are_what_shapes_takes(name):
    """By name they come back as they are: bf16, a bias where the layer has one, and no row more than asked for."""
    asked = sizes.problems(name, [1, 8, 2048])
    assert ShapesConfig(names=tuple(one.name for one in asked)).problems() == asked
    assert len(set(asked)) == len(asked)
    assert {one.m for one in asked} == {1, 8, 2048}
    assert {one.dtype for one in asked} == {"bf16"}
    with_head = sizes.problems(name, [1, 8, 2048], head=True)
    of = llm.layers(name)["head"]
    assert {(one.m, one.n) for one in set(with_head) - set(asked)} == {(1, of.n), (8, of.n)}


def test_biases_are_drawn():
    """A layer whose bias is zero would be right without it."""
    layers = sizes.linear(sizes.build("tiny-biased", "cpu"))
    assert all(one.bias.count_nonzero() for name, one in layers.items() if name != "lm_head")
