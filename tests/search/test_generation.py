"""A generation follows from the generations before it, whatever else is known by then."""

import json

import pytest
from fakes import ENVIRONMENT
from landscape import BEST, FAMILIES, KNOBS

from cudal2 import corpus
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.problem import parse
from cudal2.records import digest, to_json
from cudal2.search import proposers, settings
from cudal2.search.proposer import Setting, Task, Trial
from cudal2.search.settings import parsed
from cudal2.search.trials import History, missing

HERE, NEAR, FAR = (parse(name) for name in ("256_256_256", "256_256_512", "2048_2048_2048"))
TASK = Task(HERE, (NEAR, FAR))


@pytest.fixture(autouse=True)
def rendered(monkeypatch):
    monkeypatch.setattr(corpus, "families", lambda target: FAMILIES)
    monkeypatch.setattr(corpus, "render", lambda family, knobs, layout: source_of(Setting(family.name, knobs)))


def source_of(setting: Setting) -> str:
    return json.dumps({"name": setting.family, "knobs": setting.knobs})


def config(**values) -> SearchConfig:
    shapes = ShapesConfig(names=(HERE.name,))
    return SearchConfig(run="unused", shapes=shapes, search=SearchMethodConfig(**values))


def trial(number: int, index: int, low: float, **knobs) -> Trial:
    setting = Setting("good", BEST | {"accumulate": "f32", "style": "plain"} | knobs)
    return Trial(to_json(setting), number, index, digest(source_of(setting)), low, 1.0)


def lacking(config: SearchConfig, task: Task, number: int, trials: dict) -> dict | None:
    """What is missing of that generation of an evolution."""
    return missing(config.search, proposers.make(History(config, ENVIRONMENT, None)), task, number, trials)


def asked(number: int, trials: dict, **values) -> list[Setting]:
    found = lacking(config(**values), TASK, number, {HERE: [], NEAR: [], FAR: []} | trials)
    return [parsed(one) for one in (found or {}).values()]


def test_the_best_of_each_neighbour_comes_first_nearest_first():
    near = [trial(0, 0, 0.5, stages=1), trial(0, 1, 0.9, stages=2)]
    far = [trial(0, 0, 2.0, stages=3), trial(0, 1, 1.9, stages=5)]
    found = asked(1, {HERE: [trial(0, 0, 0.1, stages=6)], NEAR: near, FAR: far})
    assert [setting.knobs for setting in found[:2]] == [parsed(near[1]).knobs, parsed(far[0]).knobs]
    assert len(found) == 8


def test_only_earlier_generations_lend():
    """Else a search that was killed would go on otherwise than it began."""
    tried = [trial(0, 0, 0.1, stages=6)]
    early, late = trial(0, 0, 0.5, stages=1), [trial(1, 0, 0.9, stages=2), trial(2, 0, 1.2, stages=3)]
    assert asked(1, {HERE: tried, NEAR: [early]}) == asked(1, {HERE: tried, NEAR: [early, *late]})
    assert asked(1, {HERE: tried, NEAR: late}) == asked(1, {HERE: tried})
    assert asked(2, {HERE: tried, NEAR: [early, *late]})[0] == parsed(late[0])


def test_nothing_wrong_nothing_twice_and_at_most_half_is_lent():
    same = trial(0, 0, 0.5, stages=1)
    assert parsed(same) not in asked(1, {HERE: [same], NEAR: [same]})
    wrong = trial(0, 0, 0.0, stages=2)
    assert asked(1, {HERE: [same], NEAR: [wrong]}) == asked(1, {HERE: [same]})
    assert asked(1, {HERE: [same], NEAR: [trial(0, 0, 0.5, stages=3)], FAR: [trial(0, 0, 0.9, stages=3)]})
    many = [parse(f"256_256_{8 * (33 + number)}") for number in range(len(KNOBS["stages"]))]
    task = Task(HERE, tuple(many))
    lent = {other: [trial(0, 0, 0.5, stages=stages, raster="row")] for other, stages in zip(many, KNOBS["stages"])}
    found = lacking(config(), task, 1, {HERE: [same]} | lent)
    own = [parsed(trials[0]) for trials in lent.values()]
    assert [parsed(one) for one in found.values()][:4] == own[:4]
    rest = settings.lent(task, {HERE: [lent[many[0]][0]]} | lent)
    assert [parsed(one) for one in rest] == own[1:]


def test_what_is_judged_keeps_its_place_even_if_it_would_not_be_proposed_again():
    """A family may have changed since: no sample is overwritten and the generation grows no longer."""
    here = [trial(0, index, 0.1, stages=stages) for index, stages in ((0, 1), (3, 2), (4, 3))]
    found = lacking(config(), TASK, 0, {HERE: here, NEAR: [], FAR: []})
    assert sorted(one.index for one in found.values()) == [1, 2, 5, 6, 7]


def test_an_end_is_told_from_nothing_to_do():
    full = [trial(0, index, 0.1, stages=stages) for index, stages in enumerate(KNOBS["stages"])]
    trials = {HERE: full, NEAR: [], FAR: []}
    assert lacking(config(generation=6), TASK, 0, trials) == {}
    assert lacking(config(generation=6, kernels=6), TASK, 1, trials) is None
    assert lacking(config(generation=6, kernels=0, seconds=6.0), TASK, 1, trials) is None
    assert len(lacking(config(generation=6, kernels=0, seconds=6.1), TASK, 1, trials)) == 6
    later = [*full[:2], trial(1, 0, 0.1, raster="row")]
    assert lacking(config(generation=6), TASK, 0, trials | {HERE: later}) == {}, "its faults are past"
