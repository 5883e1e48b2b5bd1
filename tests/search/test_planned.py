"""Of a policy's likeliest plans those are written out that the cost model likes most, and nothing twice."""

import io
import random

from fakes import FakePool
from rich.console import Console

from cudal2 import corpus, search
from cudal2.archive import Archive
from cudal2.completion import Found
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.form import form
from cudal2.policy.plans import Plan
from cudal2.problem import parse
from cudal2.search import planned, rerank
from cudal2.search.asked import Asked
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.target import find

TARGET = find("sm_90a")
PROBLEM, OTHER = parse("4096_4096_4096"), parse("2048_4096_4096")
FAMILIES = {family.name: family for family in corpus.families(TARGET)}


def plans(count: int) -> list[Plan]:
    """Of kernels that differ, begun with what says which."""
    rng, found = random.Random(0), dict[str, Plan]()
    while len(found) < count:
        one = corpus.draw(TARGET, "tn", rng, styles=("plain",))
        family = FAMILIES[one.family]
        if all(corpus.applies(family, each) and allowed(each, family, one.knobs) for each in (PROBLEM, OTHER)):
            found.setdefault(form(one.source), Plan([len(found)], one.family, one.knobs))
    return list(found.values())


def text(plan: Plan, problem=PROBLEM) -> str:
    source = corpus.render(FAMILIES[plan.family], plan.knobs, problem)
    return corpus.plan(corpus.Sample(plan.family, problem.layout, plan.knobs, source)) + source


class Planner:
    """Has these plans for every prompt. Of some it writes another kernel."""

    def __init__(self, some: list[Plan], breaks: tuple[Plan, ...] = ()) -> None:
        self.some, self.breaks, self.wrote = some, breaks, list[Plan]()

    def plans(self, prompts, count):
        return [self.some[:count] for _ in prompts]

    def write_out(self, prompts, some, seed, finished):
        self.wrote += some
        texts = [Found(text(one) + "int more;\n" * (one in self.breaks)) for one in some]
        for place, one in enumerate(texts):
            finished(place, one)
        return texts


def asked(wanted: int, affordable: int = 99, tried: tuple[Plan, ...] = (), ahead=lambda candidates: None) -> Asked:
    forms = {PROBLEM: {form(text(one)) for one in tried}}
    return Asked({PROBLEM: wanted}, {PROBLEM: affordable}, forms, TARGET.name, ahead)


def written(planner: Planner, into: Asked, count: int = 64) -> list[str]:
    planned.write_out(planner, count, TARGET, {PROBLEM: [("prompt", "record")]}, into, random.Random(0))
    assert set(into.new[PROBLEM].values()) <= {"record"}
    return [candidate.source for candidate in into.new[PROBLEM]]


def liked(some: list[Plan]) -> list[Plan]:
    return [some[place] for place in rerank.liked(TARGET, PROBLEM, [Setting(one.family, one.knobs) for one in some])]


def test_the_most_liked_are_written_out_and_judged_in_that_order():
    some = plans(30)
    planner, best = Planner(some), liked(some)
    assert written(planner, asked(5)) == list(map(text, best[:5]))
    assert planner.wrote == best[:5] != some[:5], "nothing is written that nobody judges"


def test_only_so_many_plans_are_looked_at():
    some = plans(30)
    assert written(Planner(some), asked(5), 8) == list(map(text, liked(some[:8])[:5]))


def test_what_was_tried_is_not_written_again():
    some = plans(30)
    planner, best = Planner(some), liked(some)
    assert written(planner, asked(3, tried=(best[0], best[2]))) == list(map(text, (best[1], *best[3:5])))


def test_a_text_that_is_not_what_its_plan_says_is_passed_over_and_the_next_plan_takes_its_place():
    some = plans(30)
    best = liked(some)
    assert written(Planner(some, (best[0], best[3])), asked(4)) == list(map(text, (*best[1:3], *best[4:6])))


def test_no_more_is_built_ahead_than_the_budget_covers():
    some, ahead = plans(30), []
    written(Planner(some), asked(5, affordable=2, ahead=ahead.extend))
    assert [one.source for one in ahead] == list(map(text, liked(some)[:2]))


def test_without_plans_nothing_is_written():
    planner = Planner([])
    assert written(planner, asked(5)) == [] == planner.wrote


def test_the_shipped_policy_searches_so_and_goes_on_as_if_it_had_been_larger_at_once(tmp_path):
    def hunt(kernels: int, name: str) -> list[str]:
        method = SearchMethodConfig("policy", kernels=kernels, generation=2, prior="none", neighbours=0, rerank=16)
        config = SearchConfig("unused", target=TARGET.name, shapes=ShapesConfig(names=(PROBLEM.mnk,)), search=method)
        asked = list[str]()

        class Noting(FakePool):
            def _one(self, candidate):
                asked.append(candidate.source)
                return super()._one(candidate)

        with Archive(tmp_path / f"{name}.sqlite") as archive:
            search.run(config, Noting(), archive, Console(file=io.StringIO()))
        return asked

    whole = hunt(4, "whole")
    assert len(whole) == len(set(whole)) == 4
    assert hunt(2, "parts") + hunt(4, "parts") == whole
