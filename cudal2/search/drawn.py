"""Kernels of a policy that draws texts: prompt by prompt in turn, until enough of what it wrote is new."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice

from cudal2.policy.writer import Writer
from cudal2.problem import Problem
from cudal2.search.asked import Asked, Way

PATIENCE = 8
"""After so many batches that are paid for a generation stays incomplete: the policy writes hardly anything new."""
TIMES = 1, 2, 4
"""How often each missing kernel is asked for, batch after batch, where answers cost nothing: a small model takes as
long for one completion as for hundreds, so three batches are sooner done than eight with about as many texts."""


def write_out(
    writer: Writer,
    written: Mapping[Problem, Sequence[Way]],
    asked: Asked,
    name: Callable[[Problem], str],
    rng: random.Random,
    first_apart: bool,
) -> None:
    """Has `asked` take new kernels of texts that are drawn for these prompts, the prompts of a problem in rotation.

    `name` begins the names that `Writer.write` asks for. With `first_apart` the first text for each prompt is drawn
    before all others, which are asked for as `further` ones.
    """
    asked_before: Counter[tuple[Problem, int]] = Counter()

    def ask(prompted: Sequence[tuple[Problem, Way]], further: bool = True) -> list[tuple[Problem, Way]]:
        """What of this brought no new kernel, as far as one is wanted."""
        names = []
        for problem, way in prompted:
            which = written[problem].index(way)
            names.append(f"{name(problem)} {which} {asked_before[problem, which]}")
            asked_before[problem, which] += 1
        finished = asked.building([problem for problem, _ in prompted])
        batch = [prompt for _, (prompt, _) in prompted]
        completions = writer.write(batch, names, rng.getrandbits(32), finished, further)
        failed: dict[Problem, list[tuple[Problem, Way]]] = {problem: [] for problem in written}
        for (problem, way), one in zip(prompted, completions):
            if not asked.take(problem, one.source, way[1]):
                failed[problem].append((problem, way))
        return [one for problem, some in failed.items() for one in some[: asked.lacking(problem)]]

    firsts = [(problem, way) for problem, ways in written.items() for way in ways[: asked.lacking(problem)]]
    if firsts and first_apart:
        ask(firsts, further=False)
    left = [(each, way) for each, ways in written.items() for way in islice(cycle(ways), asked.lacking(each))]
    for times in (1,) * PATIENCE if writer.paid else TIMES:
        if left:
            left = ask(left * times)
