"""Verifies a policy after supervised training: the worker judges its samples on shapes that it has not seen."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cudal2 import corpus, judging
from cudal2.archive.records import Origin
from cudal2.config import SftConfig
from cudal2.policy import prompts, sampling, writer
from cudal2.policy.model import load
from cudal2.records import digest
from cudal2.target import Target, find

ENUMERABLE = 1 << 20
"""Sampled sources are looked up among all renderings only if a target's families have at most so many settings."""


def verify(config: SftConfig, trained_on: set[str]) -> dict[str, Any]:
    """Judge `config.verify` samples of the saved policy, at `policy.temperature`, on shapes it was not trained on.

    `ok` is the share of the judged samples that are correct; `statuses` counts their verdicts. `in_training_set` and
    `in_families` are the shares of the samples that equal, letter for letter, a source it was trained on (`trained_on`
    holds their digests) or any source that the families render. The second is null where the families render millions,
    as those of CUDA targets do, unless each source states its plan.
    """
    target, folder = find(config.target), Path(config.run)
    rng = random.Random(f"verify {config.seed}")
    problems = [
        corpus.draw_problem(rng, rng.choice(config.corpus.layouts), held_out=True) for _ in range(config.verify)
    ]
    chosen = replace(config.policy, path=str(folder / "policy"))
    if not config.policy.path:
        chosen = replace(chosen, max_new_tokens=config.context)
    asked = [prompts.render(config.prompt, chosen.chat, problem, target) for problem in problems]
    answers = writer.write(*load(chosen), asked, chosen, target, config.seed)
    written = [one.source for one in answers]
    run, policy = folder.resolve().name, chosen.path
    samples = [
        (
            one.candidate(problem, target.name),
            Origin(kind="sft", run=run, step=0, index=index, policy=policy, prompt=sampling.text(prompt)),
        )
        for index, (one, problem, prompt) in enumerate(zip(answers, problems, asked))
    ]
    with judging.opened(folder, config.target, config.worker) as (archive, [pool]):
        verdicts = judging.judge(pool, archive, samples)
    judged = [verdict for verdict in verdicts if verdict is not None]
    return {
        "samples": len(samples),
        "judged": len(judged),
        "ok": sum(verdict.ok for verdict in judged) / max(len(judged), 1),
        "statuses": dict(Counter(verdict.status.value for verdict in judged).most_common()),
        "distinct": len(set(written)),
        "in_training_set": sum(digest(source) in trained_on for source in written) / len(written),
        "in_families": _share_of_families(written, config.plan, target),
    }


def _share_of_families(written: Sequence[str], plan: bool, target: Target) -> float | None:
    """The share of the sources `written` that a family renders; None where there are too many settings to look up."""
    if plan:
        return sum(corpus.keeps_its_plan(text, target) for text in written) / len(written)
    families = corpus.families(target)
    if sum(math.prod(map(len, family.knobs.values())) for family in families) > ENUMERABLE:
        return None
    wanted = set(written)
    renderings = (
        corpus.render(family, knobs, layout)
        for family in families
        for layout in family.layouts
        for knobs in corpus.settings(family, layout)
    )
    rendered = {text for text in renderings if text in wanted}
    return sum(text in rendered for text in written) / len(written)
