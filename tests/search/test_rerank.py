"""Of several texts the one is judged whose setting the cost model likes best; a text it cannot value comes last."""

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

TARGET = find("sm_90a")
SMALL, LARGE = parse("16_4096_4096"), parse("4096_4096_4096")


def texts(count: int) -> list[str]:
    """Kernels of families that the model knows."""
    rng, model, found = random.Random(0), cost_model.shipped("sm_90a"), list[str]()
    while len(found) < count:
        one = corpus.draw(TARGET, LARGE, rng)
        found += [corpus.plan(one) + one.source] * model.knows(one.family)
    return found


def test_texts_are_ordered_by_what_the_model_says_of_their_plans_and_those_much_alike_come_after_all_others():
    model, some = cost_model.shipped("sm_90a"), texts(60)
    order = rerank.most_liked_first(TARGET, [LARGE] * 60, some)
    stated = [corpus.stated(one, TARGET) for one in some]
    speeds = [model.speeds(LARGE, [one])[0] for one in stated]
    shapes = [shape_of(Setting(*one)) for one in stated]
    assert sorted(order) == list(range(60)) != order
    different = len(set(shapes))
    assert 1 < different < 60 and len({shapes[place] for place in order[:different]}) == different
    for part in (order[:different], order[different:]):
        assert (np.diff([speeds[place] for place in part]) <= 0).all()
    for place in order[different:]:
        assert any(shapes[one] == shapes[place] and speeds[one] >= speeds[place] for one in order[:different])


def test_each_text_is_valued_for_its_own_problem_and_one_without_a_plan_last():
    some = texts(6)
    problems, sources = [SMALL, LARGE] * 6, [text for text in some for _ in range(2)]
    unknown = None, "void hgemm() {}", "// family: cute\n// style: plain\nvoid hgemm() {}"
    whole = rerank.most_liked_first(TARGET, [LARGE] * 3 + problems, [*unknown, *sources])
    assert whole[-3:] == [0, 1, 2]
    for problem in (SMALL, LARGE):
        own = [(place - 3) // 2 for place in whole[:-3] if problems[place - 3] == problem]
        assert own == rerank.most_liked_first(TARGET, [problem] * 6, some)


def test_a_text_that_is_not_what_its_plan_says_comes_last():
    """The model's value is its plan's; and most kernels that fail are such."""
    some = texts(8)
    (first, *rest) = rerank.most_liked_first(TARGET, [LARGE] * 8, some)
    words = some[first].split(" ")
    some[first] = " ".join([*words[:-40], *words[-39:]])
    assert rerank.most_liked_first(TARGET, [LARGE] * 8, some)[-1] == first
    assert set(rerank.most_liked_first(TARGET, [LARGE] * 8, some)[:-1]) == set(rest)


CHOOSING = SearchConfig(run="here", target="sm_90a", search=SearchMethodConfig(method="policy", prior="none", rerank=4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "cpu"}, "none ships for cpu"),
        ({"policy": PolicyConfig(sampler="endpoint")}, "nobody judges"),
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
        with pytest.raises(ValueError, match="chooses among a policy's texts"):
            check(SearchConfig(run="here", shapes=ShapesConfig(names=("64_64_64",)), search=search))
