"""A rendering is found again from its text, and what is none is told from it."""

import random

import pytest

from cudal2 import corpus
from cudal2.corpus import without_plan
from cudal2.corpus.nearest import nearest
from cudal2.target import find


@pytest.mark.parametrize(("target", "count"), [("cpu", 10), ("sm_90a", 2)])
def test_a_rendering_is_found_from_nothing(target, count):
    rng = random.Random(4)
    for _ in range(count):
        sample = corpus.draw(find(target), rng.choice(("nn", "tn")), rng)
        found = nearest(sample.source, find(target), sample.layout)
        assert found.is_it and found.source == sample.source, (sample.family, sample.knobs)


def test_a_plan_is_read_but_what_follows_it_decides():
    rng, target = random.Random(0), find("sm_90a")
    one = corpus.draw(target, "tn", rng)
    family = next(family for family in corpus.families(target) if family.name == one.family)
    knob = next(
        {name: value}
        for name, values in family.knobs.items()
        for value in values
        if value != one.knobs[name] and not corpus.refusal(family, one.knobs | {name: value}, "tn")
    )
    text = corpus.plan(one) + one.source
    assert without_plan(text) == one.source and nearest(text, target, "tn").is_it
    lying = corpus.plan(corpus.Sample(one.family, "tn", one.knobs | knob, "")) + one.source
    assert not corpus.keeps_its_plan(lying, target)
    assert nearest(lying, target, "tn").knobs == one.knobs


def test_a_changed_rendering_is_near_it_and_not_it():
    target = find("cpu")
    sample = corpus.draw(target, "tn", random.Random(1))
    changed = sample.source.replace("return 0;", "return 0 + 0;")
    found = nearest(changed, target, "tn", sample.family, sample.knobs)
    assert not found.is_it and (found.source, found.changed) == (sample.source, 2)


def test_a_setting_that_a_rule_refuses_is_no_rendering():
    target = find("cpu")
    family = next(family for family in corpus.families(target) if family.name == "shared")
    rng = random.Random(0)
    for _ in range(1000):
        knobs = {knob: rng.choice(values) for knob, values in family.knobs.items()}
        if reason := corpus.refusal(family, knobs, "tn"):
            found = nearest(corpus.written(family, knobs, "tn"), target, "tn", family.name, knobs)
            assert not found.is_it and found.refused == reason and not found.changed
            return
    raise AssertionError("the rules refuse nothing")


@pytest.mark.parametrize("text", ["", "\n", "// family: shared\n", "// family: nobody's\nint x;", "int hgemm() {}"])
def test_any_text_has_a_nearest_rendering(text):
    found = nearest(text, find("cpu"), "nn")
    assert not found.is_it and found.changed


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_the_plan_of_every_family_is_taken_off_whole(target):
    """Whatever its knobs are called."""
    for family in corpus.families(find(target)):
        sample = corpus.Sample(
            family.name, "tn", {knob: values[0] for knob, values in family.knobs.items()}, "int a;\n"
        )
        assert without_plan(corpus.plan(sample) + sample.source) == sample.source
