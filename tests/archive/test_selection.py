"""Islands: prompts explore apart, the worse half begins anew, and all of it follows from seed, step and samples."""

import random

import pytest
from specimens import HERE, PROBLEM, candidate, verdict

from cudal2.archive import selection
from cudal2.archive.records import Entry
from cudal2.archive.selection import Comparable
from cudal2.archive.store import Archive
from cudal2.config import PromptConfig
from cudal2.policy import prompts
from cudal2.problem import Problem
from cudal2.records import Status

NEAR = Problem(64, 128, 512)
PROMPT = PromptConfig(template="instruct", exemplars=3, failures=2, islands=3, island_steps=4, parent=2)


def kernel(name: object, speedup: float) -> Entry:
    one = candidate(str(name))
    return Entry(one.source, verdict(one, speedup))


def born(count: int, seed: int = 0) -> list[tuple[int, Entry]]:
    rng = random.Random(seed)
    return [(1 + place // 2, kernel(place, rng.uniform(0.5, 2.0))) for place in range(count)]


def learn(archive: Archive, steps: range, seed: int = 0) -> None:
    """Two problems of four samples a step, of which some fail."""
    for step in steps:
        rng = random.Random(f"{seed} {step}")
        for place in range(8):
            one = candidate(f"{seed} {step} {place}", (PROBLEM, NEAR)[place // 4])
            judged = verdict(one, rng.uniform(0.5, 2.0) if place % 4 else None, log=f"error of {step}")
            archive.add(judged, one, {"kind": "train", "run": "r", "step": step, "index": place})


def prompt(archive: Archive, step: int, config: PromptConfig = PROMPT) -> str | list:
    kernels = Comparable(archive, "cpu", HERE.fingerprint)
    return prompts.from_archive(config, False, PROBLEM, kernels, HERE, 5, step)


def test_a_kernel_joins_the_island_that_its_prompt_drew_from():
    found = selection.all_islands(PROBLEM, born(200), 4, 0, 7, None)
    assert sum(map(len, found)) == 200 and all(found)
    for step, entry in born(200):
        assert entry.source in found[selection.island_number(7, step, PROBLEM, 4)]


def test_the_worse_half_begins_anew_with_the_best_of_the_others():
    before = selection.all_islands(PROBLEM, born(60), 5, 0, 0, 40)
    after = selection.all_islands(PROBLEM, born(60), 5, 40, 0, 40)
    bests = [selection.fastest_first(island)[0] for island in before]
    kept = [place for place in range(5) if after[place] == before[place]]
    assert len(kept) == 3
    assert {bests[place].low for place in kept} == set(sorted(one.low for one in bests)[2:])
    founders = {bests[place].source for place in kept}
    for place in set(range(5)).difference(kept):
        assert len(after[place]) == 1 and founders.issuperset(after[place])


@pytest.mark.parametrize("period", [0, 1, 3, 7])
def test_whatever_begins_anew_the_best_kernel_stays(period):
    everything = born(80, seed=3)
    for step in range(1, 45):
        past = [(when, entry) for when, entry in everything if when < step]
        found = selection.all_islands(PROBLEM, past, 4, period, 2, step)
        best = max((entry.low for _, entry in past), default=0.0)
        assert max((entry.low for island in found for entry in island.values()), default=0.0) == best


def test_a_run_that_was_killed_asks_the_same_again(tmp_path):
    """What later steps found before they were lost changes nothing, nor do samples of the step under way."""
    with Archive(tmp_path / "archive.sqlite") as archive:
        learn(archive, range(1, 13))
        asked = [prompt(archive, step) for step in range(1, 14)]
        assert len(set(asked)) == 13 and "Improve this one" in asked[-1] and "error of" in asked[-1]
        learn(archive, range(12, 20), seed=1)
        assert [prompt(archive, step) for step in range(1, 13)] == asked[:12]
        assert prompt(archive, 13) != asked[12], "step 12 was taken again, otherwise"
        assert prompt(archive, 0), "after training there is no step that counts no more"


def test_a_prompt_shows_one_island_alone(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        learn(archive, range(1, 25))
        kernels = Comparable(archive, "cpu", HERE.fingerprint)
        config = PromptConfig(template="instruct", exemplars=9, islands=3)
        for step in (5, 11, 25):
            place = selection.island_number(5, step, PROBLEM, 3)
            theirs = {
                f"// 0 {born} {index}\n"
                for born in range(1, step)
                for index in range(8)
                if selection.island_number(5, born, (PROBLEM, NEAR)[index // 4], 3) == place
            }
            ranked = selection.island(kernels, config, PROBLEM, 5, step)
            shown = selection.exemplars(kernels, PROBLEM, 9, random.Random(0), ranked)
            assert shown and theirs.issuperset(entry.source.splitlines(keepends=True)[0] for entry in shown)


def test_an_island_without_kernels_shows_none_and_what_was_judged_elsewhere_is_none(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        first = prompt(archive, 1)
        one = candidate("elsewhere")
        there = verdict(one, 3.0, environment=verdict(one).environment.__class__("x", 1, "", "", "", ""))
        archive.add(there, one, {"kind": "train", "run": "r", "step": 1, "index": 0})
        archive.add(verdict(candidate("w"), None, status=Status.WRONG), candidate("w"), None)
        assert prompt(archive, 2) == first
