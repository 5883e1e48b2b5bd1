"""A search that begins with what a policy writes: its plans become settings, before those that are known."""

import random

import pytest
from fakes import ENVIRONMENT

from cudal2 import corpus
from cudal2.completion import Found
from cudal2.config import PolicyConfig, SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.policy import writer
from cudal2.policy.plans import Plan
from cudal2.problem import parse
from cudal2.records import to_json
from cudal2.search import prior, trials
from cudal2.search.proposer import Setting, Task, Trial
from cudal2.search.proposers.evolution import Evolution
from cudal2.search.rerank import liked
from cudal2.search.settings import allowed, parsed
from cudal2.search.trials import History
from cudal2.search.written import written
from cudal2.target import find

HERE, CPU = parse("128_128_128"), find("cpu")
HALF = 4


def samples(count: int) -> list[corpus.Sample]:
    """Kernels of the corpus whose settings differ."""
    rng, found = random.Random(0), dict[str, corpus.Sample]()
    while len(found) < count:
        one = corpus.draw(CPU, HERE.layout, rng)
        if allowed(HERE, family_of(one), setting(one).knobs):
            found.setdefault(to_json(setting(one)), one)
    return list(found.values())


def family_of(sample: corpus.Sample) -> corpus.Family:
    return next(family for family in corpus.families(CPU) if family.name == sample.family)


def setting(sample: corpus.Sample) -> Setting:
    return Setting(sample.family, sample.knobs | {"style": "plain"})


def planned(sample: corpus.Sample) -> str:
    return corpus.plan(sample) + sample.source


@pytest.fixture
def writes(monkeypatch):
    """Makes the policy write these texts in turn and then nothing, and returns what each batch asked for."""

    def install(*texts: str) -> list[bool]:
        left, batches = iter(texts), []

        class Writer:
            def write(self, prompts, names, seed, finished=None, further=False):
                assert len(prompts) == len(names) == len(set(names))
                batches.append(further)
                return [Found(next(left, "")) for _ in prompts]

        monkeypatch.setattr(writer, "make", lambda *_: Writer())
        written.cache_clear()
        return batches

    yield install
    written.cache_clear()


def config(method="evolution", begun="policy", **policy) -> SearchConfig:
    search = SearchMethodConfig(method=method, prior=begun, generation=2 * HALF, neighbours=0)
    shapes = ShapesConfig(names=(HERE.mnk,))
    return SearchConfig("unused", shapes=shapes, search=search, policy=PolicyConfig(**policy))


def first(asked: SearchConfig, *before: Trial, generation=0) -> list[Setting]:
    evolution = Evolution(History(asked, ENVIRONMENT, None))
    proposed = evolution.propose(Task(HERE), {HERE: list(before)}, generation, 2 * HALF)
    return [parsed(Trial(prompt, 0, 0, "")) for prompt in proposed.values()]


def test_half_of_the_first_generation_is_a_policys_the_other_half_known_and_none_of_either_comes_twice(
    writes, monkeypatch
):
    some = samples(HALF + 3)
    monkeypatch.setattr(prior, "known_settings", lambda *_: list(map(setting, reversed(some))))
    texts = [planned(one) for one in some]
    batches = writes(texts[0], "int main;", texts[0], texts[1], *texts[2:])
    asked = config()
    wanted = [*map(setting, some[:HALF]), *map(setting, reversed(some[HALF:]))]
    assert first(asked)[: HALF + 3] == wanted
    assert batches == [False, True, True], "the first text is the surest"
    later = first(asked, Trial(to_json(wanted[0]), 0, 0, "x", 1.0), generation=1)
    assert later[:HALF] == wanted[1 : HALF + 1] and len(batches) == 3, "a policy is asked once in a search"


def test_a_text_without_a_plan_has_the_setting_that_it_is_a_rendering_of(writes):
    (good,) = samples(1)
    writes(good.source)
    assert first(config())[0] == setting(good)


def test_a_policy_that_writes_no_settings_has_nothing_to_begin_with_and_that_is_said(writes):
    writes("int main;", "", samples(1)[0].source + "int more;")
    with pytest.raises(ValueError, match=r"search\.prior=policy.*search\.method=policy"):
        first(config())


def test_a_plan_that_no_family_renders_here_brings_nothing(writes):
    (good,) = samples(1)
    family, *knobs = planned(good).splitlines()
    writes("\n".join([family + "x", *knobs]), "\n".join([family, *knobs[1:]]), planned(good))
    assert first(config())[0] == setting(good)


def test_of_a_policys_plans_those_come_first_that_the_cost_model_likes_most_and_no_text_is_written(monkeypatch):
    hopper, rng, plans = find("sm_90a"), random.Random(0), list[Plan]()
    while len(plans) < 30:
        one = corpus.draw(hopper, "tn", rng)
        plans.append(Plan([], one.family, one.knobs))

    class Planner:
        def plans(self, prompts, count):
            return [plans[:count] for _ in prompts]

    monkeypatch.setattr(writer, "make", lambda *_: Planner())
    search = SearchMethodConfig(prior="policy", generation=2 * HALF, neighbours=0, rerank=30)
    problem = parse("4096_4096_4096")
    asked = SearchConfig("unused", target="sm_90a", shapes=ShapesConfig(names=(problem.mnk,)), search=search)
    (found,) = written(asked).values()
    best = [plans[place] for place in liked(hopper, problem, [Setting(one.family, one.knobs) for one in plans])]
    assert found == [Setting(one.family, one.knobs | {"style": "plain"}) for one in best[:HALF]]


def test_the_policy_tells_searches_apart_that_begin_with_it_and_no_others():
    def name(begun: str, path: str) -> str:
        return trials._digest(config("evolution", begun, path=path))

    assert name("policy", "one") != name("policy", "two") and name("policy", "one") != name("known", "one")
