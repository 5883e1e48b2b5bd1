"""Which of a policy's plans are written out and judged: those that the cost model likes most (`search.rerank`).

A plan costs a policy little, a verdict takes the device. Choosing among samples by a learnt value is best-of-n with a
verifier (K. Cobbe et al., arXiv:2110.14168); here the samples are the beginnings of texts (`policy/plans.py`), for
their plans say how fast the kernels will be. As with known settings (`prior.varied`), of those that are much alike the
first comes before all others: the second to fourth would else be the first in slight variations.
"""

from collections.abc import Sequence

from cudal2 import corpus, cost_model
from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.liked import fastest_first
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed, first_of_each, plain, shape_of
from cudal2.target import Target


def check(config: SearchConfig) -> None:
    """Raises ValueError where a search is to choose among plans, and cannot."""
    if config.search.rerank == 1:
        return
    if not config.search.asks_policy:
        raise ValueError("search.rerank chooses among a policy's plans: it needs search.method=policy or prior=policy")
    if config.policy.sampler == "endpoint":
        raise ValueError("search.rerank needs a policy whose weights are here (policy.sampler=endpoint); leave it at 1")
    if cost_model.shipped(config.target) is None:
        raise ValueError(f"search.rerank needs a cost model, and none ships for {config.target}; leave it at 1")


def liked(target: Target, problem: Problem, settings: Sequence[Setting]) -> list[int]:
    """The places of these settings in the order of how fast the target's cost model thinks them; what is much like an
    earlier one comes after all others.

    Left out are those that do not serve the problem, or are of a family that the model has not seen. Of settings that
    differ only in their style, which makes no kernel faster, the first counts.
    """
    model, families = cost_model.shipped(target.name), {family.name: family for family in corpus.families(target)}
    assert model is not None, "`check` was passed"
    able = dict[str, tuple[Setting, int]]()
    for place, setting in enumerate(settings):
        family = families[setting.family]
        one = Setting(family.name, plain(family, setting.knobs))
        if model.knows(family.name) and corpus.applies(family, problem) and allowed(problem, family, one.knobs):
            able.setdefault(to_json(one), (one, place))
    fastest = fastest_first(model, problem, (one for one, _ in able.values()))
    return [able[to_json(one)][1] for one in first_of_each(fastest, shape_of)]
