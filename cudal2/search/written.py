"""The settings that a policy writes for a search to begin with (`search.prior=policy`).

Evolution breeds from settings, so of a text the setting is taken, and its family renders it: that in its plan, else the
one whose rendering the text is, letter for letter. A text of the policy's own, or with a plan that a rule refuses,
brings nothing; `search.method=policy` is the search that judges what was written.
"""

from functools import cache
from typing import cast

from cudal2 import corpus
from cudal2.config import SearchConfig
from cudal2.corpus import Family
from cudal2.corpus.nearest import nearest
from cudal2.policy import prompts, writer
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.proposer import Setting, Task, seeded
from cudal2.search.rerank import liked
from cudal2.search.settings import allowed, plain, searched
from cudal2.target import Target, find

BATCHES = 3
"""So often the policy is asked: for one text a problem, maybe at a lower temperature, then for what lacks."""


@cache
def written(config: SearchConfig) -> dict[Problem, list[Setting]]:
    """For each problem of the search up to half a generation of distinct settings, in the order written.

    Raises ValueError where the policy cannot be loaded or asked, and where none of its texts has a setting.
    """
    wanted, target, families = max(1, config.search.generation // 2), find(config.target), searched(config)
    model = writer.make(config.policy, config.prompt, config.target, config.run)
    rng = seeded(config, Task(min(families)), generation=0)
    found: dict[Problem, dict[str, Setting]] = {problem: {} for problem in sorted(families)}
    asked_with = {
        problem: prompts.render(config.prompt, config.policy.chat, problem, target, worker=config.worker)
        for problem in found
    }
    if config.search.rerank > 1:
        planner = cast(writer.Planner, model)  # `rerank.check` was passed
        for problem, plans in zip(found, planner.plans(list(asked_with.values()), config.search.rerank), strict=True):
            settings = [Setting(plan.family, plan.knobs) for plan in plans]
            for setting in (settings[place] for place in liked(target, problem, settings)):
                if len(found[problem]) < wanted and (mine := served(setting, problem, families[problem])):
                    found[problem].setdefault(to_json(mine), mine)
    for batch in range(BATCHES):
        ends = {problem: wanted if batch else 1 for problem in found}
        lacking = [problem for problem, some in found.items() for _ in range(ends[problem] - len(some))]
        if not lacking:
            continue
        texts = model.write(
            [asked_with[problem] for problem in lacking],
            [f"prior {one.name} {batch} {place}" for place, one in enumerate(lacking)],
            rng.getrandbits(32),
            further=batch > 0,
        )
        for problem, text in zip(lacking, texts, strict=True):
            if mine := meant(text.source or "", problem, target, families[problem]):
                found[problem].setdefault(to_json(mine), mine)
    if not any(found.values()):
        raise ValueError(
            "search.prior=policy begins with the settings of a policy's texts, and this one wrote none that a kernel "
            "family renders: search.method=policy judges its kernels as they are"
        )
    return {problem: list(some.values()) for problem, some in found.items()}


def meant(source: str, problem: Problem, target: Target, families: tuple[Family, ...]) -> Setting | None:
    """The setting of a source, if one of these families renders it for the problem."""
    stated = corpus.stated(source, target)
    if stated is None and source:
        near = nearest(source, target, problem)
        stated = (near.family, near.knobs) if near.is_it else None
    return served(Setting(*stated), problem, families) if stated else None


def served(setting: Setting, problem: Problem, families: tuple[Family, ...]) -> Setting | None:
    """The setting in the style that searches try, if one of these families renders it for the problem."""
    family = next((family for family in families if family.name == setting.family), None)
    if family is None:
        return None
    knobs = plain(family, setting.knobs)
    return Setting(family.name, knobs) if allowed(problem, family, knobs) else None
