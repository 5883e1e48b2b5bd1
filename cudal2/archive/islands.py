"""Kernels of an archive divided into islands, after FunSearch (Romera-Paredes et al., Nature 625, 2024; the prompts of
CUDA-L1, arXiv:2507.14111, may draw from such).

A prompt shows kernels of one island only, and the kernels written from it join that island, so that islands evolve
separately. Every so many steps the worse half of them, by their best kernel, is emptied, and each of these begins anew
with the best kernel of one of the others.

All this follows from the seed, the step and the samples of earlier steps, so a killed run continues with the same
prompts: the island of a prompt is drawn from the seed, its step and its problem, which are in every sample's origin.
From these the history of the islands is computed again. This differs from the paper:

- islands begin empty, and an empty island shows nothing; FunSearch gives each the same first program;
- a group's samples share their prompt, so they all join one island;
- each problem has islands of its own, as speeds of two problems do not compare;
- they begin anew after steps, not hours;
- which kernels of the island are shown is chosen by contrast (`selection.contrasting`), not by clusters of equal score.
"""

import random
from collections.abc import Sequence

from cudal2.archive.records import Entry
from cudal2.problem import Problem

Born = Sequence[tuple[int, Entry]]
"""Correct, timed kernels for one problem, each with the step that wrote it, in order of the step."""
Island = dict[str, Entry]
"""Kernels by their source."""


def drawn(seed: int, step: int, problem: Problem, count: int) -> int:
    """The number, below `count`, of the island whose kernels the prompt of that step and problem shows."""
    return random.Random(f"island {seed} {step} {problem.name}").randrange(count)


def divided(problem: Problem, born: Born, count: int, period: int, seed: int, step: int | None) -> list[Island]:
    """The kernels of each island when `step` begins (None: in the end).

    The worse half begins anew before each step that is a multiple of `period`; 0: never.
    """
    islands: list[Island] = [{} for _ in range(count)]
    due = period
    ends = [] if step is None else [(step, None)]
    for when, entry in [*born, *ends]:
        while period and due <= when:
            _begin_anew(islands, random.Random(f"founders {seed} {due} {problem.name}"))
            due += period
        if entry is not None:
            islands[drawn(seed, when, problem, count)].setdefault(entry.source, entry)
    return islands


def ranked(island: Island) -> list[Entry]:
    """The island's kernels by the lower bound of their speedup, best first."""
    return sorted(island.values(), key=lambda entry: entry.low, reverse=True)


def _begin_anew(islands: list[Island], rng: random.Random) -> None:
    """Empties the worse half (rounded down; ties by chance), and starts each with the best kernel of another."""
    bests = [max((entry.low for entry in island.values()), default=0.0) for island in islands]
    order = sorted(range(len(islands)), key=lambda number: (bests[number], rng.random()))
    half = len(islands) // 2
    for worse in order[:half]:
        founders = ranked(islands[rng.choice(order[half:])])[:1]
        islands[worse] = {founder.source: founder for founder in founders}
