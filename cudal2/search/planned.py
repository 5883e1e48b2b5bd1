"""Kernels of a policy that plans first: its likeliest plans, those written out that the cost model likes most."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from cudal2 import corpus
from cudal2.policy.writer import Planner
from cudal2.problem import Problem
from cudal2.search import rerank
from cudal2.search.asked import Asked, Way
from cudal2.search.proposer import Setting
from cudal2.target import Target

if TYPE_CHECKING:  # beam search needs torch
    from cudal2.policy.plans import Plan

ROUNDS = 3
"""So often plans are written out: in the place of what came to nothing the next ones are."""

Planned = tuple[Problem, Way, "Plan"]


def write_out(
    planner: Planner,
    count: int,
    target: Target,
    written: Mapping[Problem, Sequence[Way]],
    asked: Asked,
    rng: random.Random,
) -> None:
    """Has `asked` take kernels of the `count` likeliest plans of each prompt in the order of `rerank.liked`.

    A text that is another kernel than its plan says is passed over: of 669 kernels that a policy wrote for an H200 16
    failed, and they were among the 21 that were such.
    """
    families = {family.name: family for family in corpus.families(target)}
    ways = [(problem, way) for problem, some in written.items() for way in some]
    of_each = defaultdict[Problem, list[Planned]](list)
    for (problem, way), plans in zip(ways, planner.plans([way[0] for _, way in ways], count), strict=True):
        of_each[problem] += [(problem, way, plan) for plan in plans]

    def new(some: Sequence[Planned]) -> Iterator[Planned]:
        problem, *_ = some[0]
        for place in rerank.liked(target, problem, [Setting(plan.family, plan.knobs) for *_, plan in some]):
            plan = some[place][2]
            if asked.is_new(problem, corpus.render(families[plan.family], plan.knobs, problem)):
                yield some[place]

    queues = {problem: new(some) for problem, some in of_each.items() if some}
    for _ in range(ROUNDS):
        prompted = [one for problem, queue in queues.items() for one in islice(queue, asked.lacking(problem))]
        if not prompted:
            return
        finished = asked.building([problem for problem, *_ in prompted])
        prompts, plans = [prompt for _, (prompt, _), _ in prompted], [plan for *_, plan in prompted]
        completions = planner.write_out(prompts, plans, rng.getrandbits(32), finished)
        for (problem, (_, made), _), one in zip(prompted, completions, strict=True):
            if corpus.keeps_its_plan(one.source, target, problem):
                asked.take(problem, one.source, made)
