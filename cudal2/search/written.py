"""The settings that a policy writes for a search to begin with (`search.prior=policy`).

Evolution breeds from settings, so of a text the setting is taken, and its family renders it: that in its plan, else the
one whose rendering the text is, letter for letter. A text of the policy's own, or with a plan that a rule refuses,
brings nothing; `search.method=policy` is the search that judges what was written.
"""

from functools import cache

from cudal2 import corpus
from cudal2.config import SearchConfig
from cudal2.corpus import Family
from cudal2.corpus.nearest import nearest
from cudal2.policy import prompts, writer
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.proposer import Setting, Task, seeded
from cudal2.search.rerank import order
from cudal2.search.settings import allowed, searched
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
    for batch in range(BATCHES):
        ends = {problem: wanted if batch else 1 for problem in found}
        lacking = [problem for problem, some in found.items() for _ in range(ends[problem] - len(some))]
        asked = [problem for problem in lacking for _ in range(config.search.rerank)]
        if not asked:
            break
        texts = model.write(
            [prompts.render(config.prompt, config.policy.chat, one, target, worker=config.worker) for one in asked],
            [f"prior {one.name} {batch} {place}" for place, one in enumerate(asked)],
            rng.getrandbits(32),
            further=batch > 0,
        )
        sources = [text.source or "" for text in texts]
        for problem, source in ((asked[place], sources[place]) for place in order(config, asked, sources)):
            setting = meant(source, problem, target, families[problem])
            if setting and len(found[problem]) < ends[problem]:
                found[problem].setdefault(to_json(setting), setting)
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
    name, knobs = stated or ("", {})
    family = next((family for family in families if family.name == name), None)
    if family is None:
        return None
    knobs = knobs | {"style": family.knobs["style"][0]}  # a search tries one style: they are equally fast
    return Setting(name, knobs) if allowed(problem, family, knobs) else None
