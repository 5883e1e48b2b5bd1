"""Problems to learn from without end."""

import pytest

from cudal2 import llm
from cudal2.config.problems import DrawnConfig, ShapesConfig
from cudal2.drawn import drawn
from cudal2.split import open_families, unseen


def test_they_are_of_every_kind_and_none_that_training_may_not_see() -> None:
    found = ShapesConfig(names=("drawn",), count=2000, seed=0).problems()
    assert len(set(found)) == 2000 and not any(map(unseen, found))
    assert max(problem.flop for problem in found) <= 1e8
    assert all(problem.n % 8 == problem.k % 8 == 0 for problem in found)
    for key in ("layout", "dtype", "epilogue"):
        values = [getattr(problem, key) for problem in found]
        assert all(values.count(value) > 500 for value in set(values)) and len(set(values)) == 2
    rows = [problem.m for problem in found]
    assert min(rows) == 1 and max(rows) > 1000 and sum(m % 8 > 0 for m in rows) > 500


def test_every_second_is_a_layer_where_layers_are_small_enough() -> None:
    layers = {(layer.n, layer.k) for layer in (llm.find(name)[1] for name in llm.names(open_families()))}
    assert 800 < sum((problem.n, problem.k) in layers for problem in drawn(2000, 0, 1e11)) < 1200
    assert not {(problem.n, problem.k) for problem in drawn(200, 0, 1e5)} & layers


def test_a_seed_repeats_and_a_greater_count_adds() -> None:
    found = drawn(200, 0, 1e8)
    assert found[:50] == drawn(50, 0, 1e8) != drawn(50, 1, 1e8)


def test_only_the_kinds_that_are_asked_for_come() -> None:
    asked = DrawnConfig(flop=1e7, rows=8, layouts=("nn",), epilogues=("bias",))
    found = ShapesConfig(names=("drawn_bf16",), count=40, drawn=asked).problems()
    assert {(problem.layout, problem.dtype, problem.epilogue, problem.m % 8) for problem in found} == {
        ("nn", "bf16", "bias", 0)
    }


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ValueError, match="fewer or larger"):
        drawn(1000, 0, 1e4)
    with pytest.raises(ValueError, match="name something"):
        DrawnConfig(dtypes=())
    with pytest.raises(ValueError, match="fp8"):
        DrawnConfig(dtypes=("fp8",))
