"""What is known to be fast is learnt as it stands, and lent to other forms only where there are such kernels."""

import json
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from cudal2 import corpus
from cudal2.config import CorpusConfig, SftConfig, load
from cudal2.problem import Problem
from cudal2.search.known import listed
from cudal2.search.prior import known_settings
from cudal2.search.settings import allowed
from cudal2.split import training, unseen
from cudal2.target import find
from cudal2.train.sft import known

FAMILIES = {family.name: family for family in corpus.families(find("sm_90a"))}
SETTINGS = {
    setting.family: setting
    for shape in (Problem(4096, 4096, 4096), Problem(8, 4096, 4096), Problem(64, 4096, 8192))
    for setting in known_settings("sm_90a", shape, list(FAMILIES.values()))
}


def labels(folder: Path, family: str, count: int) -> Path:
    """A file of settings of this family, of as many problems, in both types."""
    setting, file = SETTINGS[family], folder / f"{family}.jsonl"
    lines = [
        {"problem": f"{64 * n}_4096_4096", "layout": "tn", "family": family, "knobs": setting.knobs, "dtype": dtype}
        for n in range(1, count + 1)
        for dtype in ("fp16", "bf16")
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def config(file: Path, layouts=("tn", "nn"), accumulates=("f32", "f16"), **more) -> SftConfig:
    forms = CorpusConfig(layouts=layouts, accumulates=accumulates)
    return SftConfig(run="", target="sm_90a", examples="known", settings=str(file), corpus=forms, **more)


@pytest.mark.parametrize("family", sorted(SETTINGS))
def test_a_file_is_learnt_as_it_stands_and_then_lent_to_forms_that_its_family_serves(tmp_path, family):
    file = labels(tmp_path, family, 100)
    alone = known.stated(config(file, ("tn",), ("f32",)))
    assert alone and not any(unseen(problem) for problem, _ in alone)
    every = known.stated(config(file))
    assert every[: len(alone)] == alone
    for problem, setting in every[len(alone) :]:
        assert replace(problem, layout="tn", accumulate="f32") in {other for other, _ in alone}
        assert (problem.layout, problem.accumulate) != ("tn", "f32") and setting == SETTINGS[family]
        assert allowed(problem, FAMILIES[family], setting.knobs)
        assert problem.accumulate in problem.type.accumulators
    forms = Counter((problem.layout, problem.accumulate, problem.dtype) for problem, _ in every[len(alone) :])
    assert forms["tn", "f16", "fp16"] and not forms["tn", "f16", "bf16"]
    served = allowed(Problem(64, 4096, 4096, "nn"), FAMILIES[family], SETTINGS[family].knobs)
    assert bool(forms["nn", "f32", "bf16"]) == served
    assert known.stated(config(file)) == every != known.stated(config(file, seed=1))


@pytest.fixture
def few(monkeypatch):
    """Of the grid, whose settings take seconds to find."""
    monkeypatch.setattr(known, "training", lambda: training()[::40])


def test_compositions_that_are_kept_out_are_not_known(tmp_path, few):
    without = {"warp_specialised": {"schedule": "ping-pong", "epilogue": "tma boxes"}}
    usual = config(labels(tmp_path, "decode", 3), also_known=True)
    less = replace(usual, corpus=replace(usual.corpus, without=without))
    before, after = (known.stated(one) for one in (usual, less))
    assert any(corpus.kept_out(setting.family, setting.knobs, without) for _, setting in before)
    assert after and not any(corpus.kept_out(setting.family, setting.knobs, without) for _, setting in after)
    assert {problem for problem, _ in known.nearest(less, training()[::40])} == set(training()[::40])


def test_what_was_measured_may_be_learnt_beside_a_file(tmp_path, few):
    file = labels(tmp_path, "warp_specialised", 3)
    one, both = (known.stated(config(file, ("tn",), ("f32",), also_known=also)) for also in (False, True))
    assert both == one + known.nearest(config(file), training()[::40])
    with pytest.raises(ValueError, match="also_known is for settings=FILE"):
        SftConfig(run="", examples="known", also_known=True)


def test_the_recipe_for_any_layer_mostly_learns_what_was_labelled_as_it_was(few, monkeypatch):
    monkeypatch.setattr(known, "listed", lambda path: listed(path)[::40])
    every = known.stated(load("sft", ["recipe=hopper_any_known"], SftConfig))
    forms = Counter((problem.layout, problem.accumulate) for problem, _ in every)
    assert sum(forms[form] for form in (("nn", "f32"), ("tn", "f16"), ("nn", "f16"))) > 0.1 * len(every)
    assert forms["tn", "f32"] > 0.6 * len(every)
    assert {problem.dtype for problem, _ in every} == {"fp16", "bf16"} and any(problem.m % 8 for problem, _ in every)
