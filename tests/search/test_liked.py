"""What the cost model likes is tried with the tiles that fit a shape, and is always a kernel of the problem."""

import random
from itertools import islice

import msgspec

from cudal2 import corpus, cost_model
from cudal2.problem import parse
from cudal2.records import to_json
from cudal2.search import liked
from cudal2.search.known import shipped_settings
from cudal2.search.settings import allowed
from cudal2.split import draw
from cudal2.target import find

FAMILIES = {family.name: family for family in corpus.families(find("sm_90a"))}
HERE = parse("574_1840_3336")


def test_what_it_likes_most_is_tried_with_tiles_that_no_near_shape_has():
    known = {to_json(one) for some in shipped_settings("sm_90a").values() for one in some}
    some = liked.most_liked("sm_90a", HERE)
    first, texts = some[0], [to_json(one) for one in some]
    tiled = [to_json(one) for one in liked.with_tiles(HERE, FAMILIES[first.family], first)]
    assert texts[0] in tiled and len(set(tiled)) == len(tiled) > 4
    assert set(tiled) <= set(texts) and len(set(texts)) == len(texts)
    assert not known.issuperset(texts)
    speeds = cost_model.shipped("sm_90a").speeds(HERE, [(one.family, one.knobs) for one in some])
    assert (speeds[:-1] >= speeds[1:]).all()


def test_all_of_it_is_rendered_for_problems_of_any_form():
    kinds = ("fp16", "bf16"), ("none", "bias", "bias_gelu")
    problems = [problem for layout in ("tn", "nn") for problem in draw(6, 7, 1e11, 1, (layout,), *kinds)]
    for problem in [*problems, msgspec.structs.replace(HERE, accumulate="f16")]:
        some = liked.most_liked("sm_90a", problem)
        assert some and all(allowed(problem, FAMILIES[one.family], one.knobs) for one in some), problem
        for one in random.Random(problem.name).sample(some, 3):
            assert corpus.render(FAMILIES[one.family], one.knobs, problem)


def test_a_family_without_tiles_has_none_to_try():
    settings = (one for some in shipped_settings("sm_90a").values() for one in some)
    untiled = (one for one in settings if not one.knobs.keys() & set(liked.TILE))
    for one in islice(untiled, 3):
        assert not list(liked.with_tiles(HERE, FAMILIES[one.family], one))


def test_nothing_is_liked_without_a_model():
    assert liked.most_liked("cpu", parse("64_64_64")) is None
