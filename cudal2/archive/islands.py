"""Kernels of an archive divided into islands, after FunSearch (Romera-Paredes et al., Nature 625, 2024; the prompts of
CUDA-L1, arXiv:2507.14111, may draw from such).

A prompt shows kernels of one island alone, and what is written from it joins that island, so that islands explore apart
from each other. Every so many steps the worse half of them, by their best kernel, is emptied and each begins anew with
the best kernel of one of the others.

All of it follows from the seed, the step and the samples of earlier steps, so a killed run goes on with the same
prompts: the island of a prompt is drawn from the seed, its step and its problem, which every sample's origin states
too, and what became of the islands is played again from there. This differs from the paper:

- islands begin empty, and one that has nothing yet shows nothing, where FunSearch gives each the same first program;
- a group's samples share their prompt, so they all join one island;
- islands are judged, emptied and founded anew for each problem by itself, for speeds of two problems do not compare;
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
    """Which of `count` islands the prompt of that step for that problem draws from, and what it writes joins."""
    return random.Random(f"island {seed} {step} {problem.name}").randrange(count)


def divided(problem: Problem, born: Born, count: int, period: int, seed: int, step: int | None) -> list[Island]:
    """What lives on each of the islands when `step` begins (None: in the end).

    They begin anew before each step that is a multiple of `period`; 0: never.
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
    """Its kernels by the lower bound of their speedup, best first."""
    return sorted(island.values(), key=lambda entry: entry.low, reverse=True)


def _begin_anew(islands: list[Island], rng: random.Random) -> None:
    """The worse half, the smaller where their number is odd; equal ones are worse by chance."""
    bests = [max((entry.low for entry in island.values()), default=0.0) for island in islands]
    order = sorted(range(len(islands)), key=lambda number: (bests[number], rng.random()))
    half = len(islands) // 2
    for worse in order[:half]:
        founders = ranked(islands[rng.choice(order[half:])])[:1]
        islands[worse] = {founder.source: founder for founder in founders}
