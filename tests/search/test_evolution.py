"""What is proposed renders, whatever it descends from."""

import random

import numpy as np
import pytest
from fakes import ENVIRONMENT
from landscape import BEST, FAMILIES

from cudal2 import corpus
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.problem import parse
from cudal2.records import digest, to_json
from cudal2.search.proposer import Setting, Task, Trial
from cudal2.search.proposers import evolution
from cudal2.search.proposers.evolution import Evolution, Rated, child, fastest
from cudal2.search.settings import allowed, parsed, searched
from cudal2.search.trials import History
from cudal2.target import find


@pytest.mark.parametrize("name", ["256_256_256_tn_f32", "128_256_64_nn_f32"])
def test_the_families_that_ship_can_be_searched(name):
    """Children of real settings render and differ from their parents."""
    problem, families = parse(name), corpus.families(find("cpu"))
    search = SearchMethodConfig(prior="none", neighbours=0)
    config = SearchConfig(run="unused", shapes=ShapesConfig(names=(name,)), search=search)
    evolution, trials, rng = Evolution(History(config, ENVIRONMENT, None)), [], random.Random(0)
    for generation in range(4):
        proposed = evolution.propose(Task(problem), {problem: trials}, generation, 8)
        assert len(proposed) == 8
        for index, (candidate, prompt) in enumerate(proposed.items()):
            trials.append(Trial(prompt, generation, index, digest(candidate.source), rng.random()))
            setting = parsed(trials[-1])
            family = next(family for family in families if family.name == setting.family)
            assert candidate.source == corpus.render(family, setting.knobs, problem.layout)
            assert (candidate.problem, candidate.target) == (problem, "cpu")
    assert len({trial.source_hash for trial in trials}) == 32


def test_a_family_for_few_rows_is_searched_only_there():
    """And it is drawn there, by a search that has nothing to start from."""
    names = ("8_4096_4096_tn_f32", "64_128_64_tn_f32", "72_128_64_tn_f32", "8_4096_4096_nn_f32")
    config = SearchConfig(run="unused", target="sm_90a", shapes=ShapesConfig(names=names))
    found = {problem.name: {family.name for family in families} for problem, families in searched(config).items()}
    assert ["decode" in found[name] for name in names] == [True, True, False, False]
    assert all("split_k" in families for families in found.values())
    few = parse(names[0])
    evolution = Evolution(History(config, ENVIRONMENT, None))
    proposed = evolution.propose(Task(few), {few: []}, 1, 64).values()
    assert "decode" in {parsed(Trial(prompt, 1, 0, "", 0.0)).family for prompt in proposed}
    only = SearchMethodConfig(families=("decode",))
    with pytest.raises(ValueError, match="no family among decode has a kernel for 72_128_64_tn_f32"):
        searched(SearchConfig(run="unused", target="sm_90a", shapes=ShapesConfig(names=names[2:3]), search=only))


class Likes:
    """A cost model that knows one family, and likes many stages."""

    def knows(self, family):
        return family == "good"

    def speeds(self, problem, settings):
        return np.array([knobs["stages"] for _, knobs in settings], dtype=float)


def test_of_a_brood_the_cost_model_chooses_one_that_its_family_renders():
    usual = dict(BEST) | {"accumulate": "f32", "style": "plain"}
    brood = [Setting("good", usual | {"stages": stages}) for stages in (2, 5, 3)]
    useless = [
        Setting("good", usual | {"stages": 6, "tile_m": 256, "tile_n": 256}),
        Setting("fair", usual | {"stages": 6}),
        Setting("gone", usual | {"stages": 6}),
    ]
    problem = parse("256_256_256")
    assert evolution.liked(Likes(), problem, FAMILIES, [*useless, *brood]) == brood[1]
    assert evolution.liked(Likes(), problem, FAMILIES, useless) is None


def test_children_are_chosen_where_a_cost_model_ships_and_known_settings_are_tried(monkeypatch):
    monkeypatch.setattr(evolution.cost_model, "shipped", lambda target: Likes())
    monkeypatch.setattr(evolution, "searched", lambda config: dict.fromkeys(config.shapes.problems(), FAMILIES))
    monkeypatch.setattr(corpus, "render", lambda family, knobs, problem: to_json(Setting(family.name, knobs)))
    monkeypatch.setattr(evolution, "start", lambda config, device, problem, families, rng: [])
    problem, means = parse("256_256_256"), {}
    for order in ("cost", "nearest"):
        search = SearchMethodConfig(neighbours=0, order=order)
        config = SearchConfig(run="unused", shapes=ShapesConfig(names=("256_256_256",)), search=search)
        parents = [Setting("good", dict(BEST) | {"accumulate": "f32", "style": "plain", "stages": n}) for n in (1, 2)]
        trials = [Trial(to_json(one), 0, place, str(place), 1.0) for place, one in enumerate(parents)]
        born = Evolution(History(config, ENVIRONMENT, None)).propose(Task(problem), {problem: trials}, 1, 16)
        stages = [parsed(Trial(prompt, 1, 0, "", 0.0)).knobs["stages"] for prompt in born.values()]
        means[order] = sum(stages) / len(stages)
    assert means["cost"] > means["nearest"] + 1


def test_settings_of_another_edition_of_a_family_are_no_parents():
    """A knob or a value that is gone must not reach the template."""
    old = Setting("good", dict(BEST) | {"accumulate": "f32", "style": "plain", "gone": 1})
    gone = Setting("good", dict(BEST) | {"accumulate": "f32", "style": "plain", "tile_m": 7})
    problem, rated = parse("64_64_64"), [Rated(setting, 1.0) for setting in (old, gone)]
    parents = fastest(problem, FAMILIES[:1], rated)
    assert parents == {"good": []}
    for seed in range(50):
        found = child(problem, FAMILIES[:1], rated, parents, random.Random(seed))
        assert found is None or allowed(problem, FAMILIES[0], found.knobs)


def test_known_settings_go_on_where_a_generation_is_small(monkeypatch):
    """Half of each generation, until none is left; no child is of a family that neither they nor a trial name."""
    known = [Setting("good", dict(BEST) | {"accumulate": "f32", "style": "plain", "stages": n}) for n in range(1, 7)]
    monkeypatch.setattr(evolution, "start", lambda *given: known)
    monkeypatch.setattr(evolution, "searched", lambda config: dict.fromkeys(config.shapes.problems(), FAMILIES))
    monkeypatch.setattr(evolution, "EXPLORE", 0.0)
    monkeypatch.setattr(corpus, "render", lambda family, knobs, problem: to_json(Setting(family.name, knobs)))
    search = SearchMethodConfig(generation=4, neighbours=0)
    config = SearchConfig(run="unused", shapes=ShapesConfig(names=("256_256_256",)), search=search)
    method, problem, trials = Evolution(History(config, ENVIRONMENT, None)), parse("256_256_256"), []
    for generation, found in enumerate([known[:4], known[4:], []]):
        proposed = method.propose(Task(problem), {problem: trials}, generation, 4)
        for index, (candidate, prompt) in enumerate(proposed.items()):
            trials.append(Trial(prompt, generation, index, candidate.kernel_hash, 1.0))
        these = [parsed(trial) for trial in trials if trial.generation == generation]
        assert [setting for setting in these if setting in known] == found
        assert len(these) == 4 and {setting.family for setting in these} == {"good"}
