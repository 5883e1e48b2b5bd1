"""What is kept apart from learning and tuning stays apart."""

import random

import pytest

from cudal2 import corpus, llm
from cudal2.config.problems import DrawnConfig, ShapesConfig
from cudal2.files import asset
from cudal2.problem import GRID_SIZES, LLM_SHAPES, Problem, grid, off_lattice, parse
from cudal2.search import known, loop
from cudal2.search.known import read_known, shipped_settings
from cudal2.split import KEPT_APART, REPORTED, draw, kept_apart, open_families, refuse, training, unseen
from cudal2.train.sft import examples, text


def apart() -> list[Problem]:
    return ShapesConfig(names=("llm-apart",)).problems()


def test_a_third_of_the_models_is_kept_apart_for_any_number_of_rows_type_and_layout() -> None:
    share = sum(model.family in KEPT_APART for model in llm.models().values()) / len(llm.models())
    assert 0.3 < share < 0.37 and set(KEPT_APART) < set(llm.families())
    for name in llm.names(KEPT_APART):
        rows, layer = llm.find(name)
        for problem in Problem(rows, layer.n, layer.k), Problem(rows + 5, layer.n, layer.k, "nn", "f32", "bf16"):
            assert kept_apart(problem) and unseen(problem)


def test_which_models_are_kept_apart_does_not_change() -> None:
    """Figures on them are worth something only as long as this list only grows by models that nobody tuned for."""
    models = {name for name, model in llm.models().items() if model.family in KEPT_APART}
    assert models >= {"gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "mistral-nemo-12b", "mixtral-8x22b", "starcoder2-7b"}
    assert off_lattice(*REPORTED)[0].mnk == "1577_5384_3296"


def test_no_layer_is_both_apart_and_open() -> None:
    assert not any(map(kept_apart, ShapesConfig(names=("llm-open", "grid")).problems()))
    assert not any(kept_apart(parse(name)) for name in LLM_SHAPES)
    both = ShapesConfig(names=("llm-open", "llm-apart")).problems()
    assert sorted(both) == sorted(ShapesConfig(names=("llm",)).problems())
    assert not any({problem.n, problem.k} <= set(GRID_SIZES) for problem in apart())


def test_the_reported_shapes_off_the_lattice_are_kept_apart_too() -> None:
    listed = ShapesConfig(names=("off-lattice",)).problems()
    assert listed == off_lattice(*REPORTED) and all(map(kept_apart, listed))
    assert not any(map(kept_apart, off_lattice(100, 1)))


def test_no_known_setting_comes_from_what_is_kept_apart() -> None:
    files = sorted(asset("data", "settings").glob("*.jsonl"))
    assert files
    for file in files:
        lines = read_known(file)
        assert lines and not [line.problem for line in lines if kept_apart(parse(line.problem))]


def test_settings_from_what_is_kept_apart_are_passed_over(monkeypatch, tmp_path) -> None:
    rows = '{"problem": "%s", "layout": "tn", "family": "small", "knobs": {"a": 1}}\n'
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "there.jsonl").write_text(rows % "8_5376_4096" + rows % "8_4096_4096")
    monkeypatch.setattr(known, "asset", lambda *parts: tmp_path)
    assert [problem.mnk for problem in shipped_settings("there")] == ["8_4096_4096"]


def test_what_is_kept_apart_lends_nothing_to_other_shapes_of_a_search() -> None:
    mine, other, far = Problem(8, 5376, 4096), Problem(16, 5376, 4096), Problem(64, 64, 64)
    assert loop._lenders(mine, [mine, other, far], 3) == (far,)
    assert loop._lenders(far, [mine, other, far], 3) == ()


def test_nothing_that_trains_may_see_them() -> None:
    assert not any(map(kept_apart, training())) and len(training()) > 700
    assert not any({problem.n, problem.k} <= set(corpus.SIZES) for problem in apart() + off_lattice(*REPORTED))
    assert text.named_held_out("kernels/8_5376_4096.cu") == "8_5376_4096"
    with pytest.raises(ValueError, match="llm-open"):
        refuse([Problem(8, 4096, 4096), *apart()], "training")
    refuse(grid(), "training")


def test_a_drawn_example_is_drawn_again_where_it_would_be_one_of_them(monkeypatch) -> None:
    drawn = iter([Problem(64, 5376, 4096), Problem(64, 64, 72)])
    monkeypatch.setattr(corpus, "draw_problem", lambda rng, layout: next(drawn))
    rng = random.Random(0)
    monkeypatch.setattr(rng, "random", lambda: 0.0)
    found = examples._problem(rng, "tn", examples.CorpusConfig())
    assert (found.n, found.k) == (64, 72)


def test_families_are_open_or_apart() -> None:
    assert sorted([*open_families(), *KEPT_APART]) == sorted(llm.families())


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
    assert 800 < sum((problem.n, problem.k) in layers for problem in draw(2000, 0, 1e11)) < 1200
    assert not {(problem.n, problem.k) for problem in draw(200, 0, 1e5)} & layers


def test_a_seed_repeats_and_a_greater_count_adds() -> None:
    found = draw(200, 0, 1e8)
    assert found[:50] == draw(50, 0, 1e8) != draw(50, 1, 1e8)


def test_only_the_kinds_that_are_asked_for_come() -> None:
    asked = DrawnConfig(flop=1e7, rows=8, layouts=("nn",), epilogues=("bias",))
    found = ShapesConfig(names=("drawn_bf16",), count=40, drawn=asked).problems()
    assert {(problem.layout, problem.dtype, problem.epilogue, problem.m % 8) for problem in found} == {
        ("nn", "bf16", "bias", 0)
    }


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ValueError, match="fewer or larger"):
        draw(1000, 0, 1e4)
    with pytest.raises(ValueError, match="name something"):
        DrawnConfig(dtypes=())
    with pytest.raises(ValueError, match="fp8"):
        DrawnConfig(dtypes=("fp8",))


@pytest.mark.parametrize("key", ["layout", "dtype", "epilogue"])
def test_drawn_problems_have_kinds_of_their_own(key: str) -> None:
    """Which are refused where they would be passed over."""
    other = {"layout": "nn", "dtype": "bf16", "epilogue": "bias"}[key]
    with pytest.raises(ValueError, match=rf"shapes.drawn.{key}s=\[{other}\]"):
        ShapesConfig(names=("drawn",), **{key: other})
    assert ShapesConfig(names=("drawn",), count=3, drawn=DrawnConfig(**{f"{key}s": (other,)})).problems()
