"""Of several texts of a policy for each kernel the cost model says which is judged (`search.rerank`).

A text costs a policy little, a verdict takes the device. Choosing among samples by a learnt value is best-of-n with a
verifier (K. Cobbe et al., arXiv:2110.14168). A text is valued by the setting that its plan states; one without a plan,
with another kernel than its plan says, or of a family that the model has not seen, comes last. (Of 669 kernels that a
policy wrote for an H200 16 failed; they were among the 21 that were not what their plans said.) As with known settings
(`prior.varied`), of those that are much alike the first comes before all others: the second to fourth would else be the
first in slight variations.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cudal2 import corpus, cost_model
from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.search.proposer import Setting
from cudal2.search.settings import first_of_each, shape_of
from cudal2.target import Target, find


def check(config: SearchConfig) -> None:
    """Raises ValueError where a search is to choose among texts, and cannot."""
    if config.search.rerank == 1:
        return
    if not config.search.asks_policy:
        raise ValueError("search.rerank chooses among a policy's texts: it needs search.method=policy or prior=policy")
    if config.policy.sampler == "endpoint":
        raise ValueError(
            "with policy.sampler=endpoint search.rerank would pay for texts that nobody judges; leave it at 1"
        )
    if cost_model.shipped(config.target) is None:
        raise ValueError(f"search.rerank needs a cost model, and none ships for {config.target}; leave it at 1")


def order(config: SearchConfig, problems: Sequence[Problem], sources: Sequence[str | None]) -> Sequence[int]:
    """The places of these texts, those first that are to be judged: as they came, where none is chosen."""
    return most_liked_first(find(config.target), problems, sources) if config.search.rerank > 1 else range(len(sources))


def most_liked_first(target: Target, problems: Sequence[Problem], sources: Sequence[str | None]) -> list[int]:
    """The places of these sources, each for its problem, in the order of how fast the target's cost model thinks them;
    of equals the first comes first, and what is much like an earlier one comes after all others of its problem."""
    model = cost_model.shipped(target.name)
    assert model is not None, "`check` was passed"
    by_problem = defaultdict[Problem, list[tuple[int, cost_model.Setting]]](list)
    for place, (problem, source) in enumerate(zip(problems, sources, strict=True)):
        setting = corpus.stated(source, target) if source else None
        if setting and model.knows(setting[0]) and corpus.keeps_its_plan(source or "", target, problem):
            by_problem[problem].append((place, setting))
    valued = list[int]()
    for problem, some in by_problem.items():
        speeds = model.speeds(problem, [setting for _, setting in some])
        liked = (some[number] for number in np.argsort(-speeds, kind="stable"))
        valued += [place for place, _ in first_of_each(liked, lambda one: shape_of(Setting(*one[1])))]
    return [*valued, *sorted(set(range(len(sources))) - set(valued))]
