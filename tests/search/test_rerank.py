"""Of several plans that is judged first which the cost model likes best; what it cannot value is left out."""

import random

import msgspec
import numpy as np
import pytest

from cudal2 import corpus, cost_model
from cudal2.config import PolicyConfig, SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.problem import parse
from cudal2.search import check, rerank
from cudal2.search.proposer import Setting
from cudal2.search.settings import shape_of
from cudal2.target import find

TARGET, MODEL = find("sm_90a"), cost_model.shipped("sm_90a")
SMALL, LARGE = parse("16_4096_4096"), parse("4096_4096_4096")


def settings(count: int, **more) -> list[Setting]:
    """Of families that the model knows."""
    rng, found = random.Random(0), list[Setting]()
    while len(found) < count:
        one = corpus.draw(TARGET, "tn", rng, **more)
        found += [Setting(one.family, one.knobs)] * MODEL.knows(one.family)
    return found


def test_settings_are_ordered_by_what_the_model_says_and_those_much_alike_come_after_all_others():
    some = settings(80, styles=("plain",))
    order = rerank.liked(TARGET, LARGE, some)
    speeds = [MODEL.speeds(LARGE, [(one.family, one.knobs)])[0] for one in some]
    shapes = [shape_of(one) for one in some]
    assert len(set(order)) == len(order) > 20 and order != sorted(order)
    different = len({shapes[place] for place in order})
    assert 1 < different < len(order) and len({shapes[place] for place in order[:different]}) == different
    for part in (order[:different], order[different:]):
        assert (np.diff([speeds[place] for place in part]) <= 0).all()
    for place in order[different:]:
        assert any(shapes[one] == shapes[place] and speeds[one] >= speeds[place] for one in order[:different])


def test_what_does_not_serve_the_problem_or_is_unknown_to_the_model_is_left_out(monkeypatch):
    some = settings(120)
    families = {family.name: family for family in corpus.families(TARGET)}
    for problem in (SMALL, LARGE):
        served = [not corpus.refusal(families[one.family], one.knobs, problem) for one in some]
        order = rerank.liked(TARGET, problem, some)
        assert 0 < len(order) < len(some) and all(served[place] for place in order)
    best = some[rerank.liked(TARGET, LARGE, some)[0]].family
    monkeypatch.setattr(type(MODEL), "knows", lambda _, family: family != best)
    order = rerank.liked(TARGET, LARGE, some)
    assert order and all(some[place].family != best for place in order)


def test_of_settings_that_differ_in_style_the_first_counts():
    some = settings(30, styles=("plain",))
    best = some[rerank.liked(TARGET, LARGE, some)[0]]
    again = Setting(best.family, best.knobs | {"style": "terse"})
    assert rerank.liked(TARGET, LARGE, [again, best]) == [0] and rerank.liked(TARGET, LARGE, [best, again]) == [0]


CHOOSING = SearchConfig(run="here", target="sm_90a", search=SearchMethodConfig(method="policy", prior="none", rerank=4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "cpu"}, "none ships for cpu"),
        ({"policy": PolicyConfig(sampler="endpoint")}, "weights are here"),
        ({"search": SearchMethodConfig(rerank=4)}, "prior=policy"),
    ],
)
def test_a_search_that_cannot_choose_says_why(change, said):
    rerank.check(CHOOSING)
    with pytest.raises(ValueError, match=said):
        rerank.check(msgspec.structs.replace(CHOOSING, **change))


def test_it_is_refused_before_a_search_begins_whoever_proposes():
    for method in ("evolution", "random"):
        search = SearchMethodConfig(method=method, prior="none", neighbours=0, rerank=4)
        with pytest.raises(ValueError, match="chooses among a policy's plans"):
            check(SearchConfig(run="here", shapes=ShapesConfig(names=("64_64_64",)), search=search))
