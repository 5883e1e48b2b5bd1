"""Kernels that a policy writes for an evaluation, sampled and judged a batch of problems at a time, and archived.

A small model takes as long for one completion as for hundreds, and a large one's engine half a minute to start.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

import msgspec

from cudal2 import judging
from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Origin
from cudal2.config import EvalConfig, identity
from cudal2.evaluation.sources import Ask
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, digest
from cudal2.target import find
from cudal2.worker.pool import Pool

log = logging.getLogger(__name__)

Sampler = Callable[[Sequence[Problem], Comparable, Environment, Callable[[int, str], None]], Sequence[str]]
"""A new source for each of these problems from a policy ("" where a completion holds none), which may be shown what is
archived. A problem stands there as often as it wants kernels. The last argument is told the place of each source while
others are still being written."""


def sampler(config: EvalConfig) -> Sampler:
    """Kernels from `config.policy`, prompted as in training; loaded when first asked."""
    from cudal2.policy import model, prompts, writer

    target = find(config.target)
    loaded = cache(partial(model.load, config.policy, config.target))

    def sample(
        problems: Sequence[Problem],
        kernels: Comparable,
        environment: Environment,
        finished: Callable[[int, str], None] = lambda place, source: None,
    ) -> list[str]:
        def prompt(problem: Problem):
            what = config.prompt, config.policy.chat, problem, kernels
            return prompts.from_archive(*what, environment, config.seed, 0)

        shown = {problem: prompt(problem) for problem in dict.fromkeys(problems)}
        asked = [shown[one] for one in problems]
        return writer.write(*loaded(), asked, config.policy, target, config.seed, finished)

    return sample


def asking(config: EvalConfig, sampler: Sampler, select: Pool, kernels: Comparable, environment: Environment) -> Ask:
    """Has `sampler` write `config.samples` kernels a problem, as far as they are not there already: an evaluation that
    was killed had asked for some.
    """
    series = ""
    if config.source == "policy":  # what another policy wrote, or this one with another seed, is another series
        what = identity(config.policy) | identity(config.prompt) | {"seed": config.seed}
        series = " " + digest(msgspec.json.encode(what, order="sorted").decode())[:12]
    here = msgspec.structs.replace(kernels, fingerprint=environment.fingerprint)

    def there(problem: Problem) -> dict[int, str]:
        """Hashes of its samples by their index."""
        samples = kernels.archive.samples("eval", problem.name + series)
        return {sample.origin.index: sample.source_hash for sample in samples}

    def ask(problems: Sequence[Problem]) -> dict[Problem, set[str]]:
        missing = {problem: set(range(config.samples)) - set(there(problem)) for problem in problems}
        lacking = [problem for problem in problems if missing[problem]]
        wanted = [problem for problem in lacking for _ in range(config.samples)]
        asked = []

        def finished(place: int, source: str) -> None:
            select.ahead([Candidate(source, wanted[place], kernels.target)])

        for place, source in enumerate(sampler(wanted, here, environment, finished) if wanted else ()):
            problem, index = wanted[place], place % config.samples
            if index in missing[problem]:
                origin = Origin(kind="eval", run=problem.name + series, step=0, index=index, policy=config.policy.path)
                asked.append((Candidate(source, problem, kernels.target), origin))
        with suppress(judging.NothingJudged):  # the pool has said why
            judging.judge(select, kernels.archive, asked)
        return {problem: set(found.values()) for problem in problems if (found := there(problem))}

    return ask
