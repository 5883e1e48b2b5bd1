"""Mutations of the text of this search's best kernels, which can leave what the kernel families render.

A genetic algorithm on lines of source: the winner of a tournament is changed in one or two places, each by a kind of
mutation from `search/mutations/`, chosen by probability matching. Like `evolution` it begins with `search.prior` or
random settings, takes over the best kernels of the nearest problems, and draws some settings at random.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import chain

from cudal2.problem import Problem
from cudal2.records import Candidate, to_json
from cudal2.search.mutations import KINDS
from cudal2.search.prior import start
from cudal2.search.proposer import Mutated, Setting, Task, Trial, Trials, made, origin, seeded
from cudal2.search.settings import EXPLORE, PARENTS, draw, elite, gather, lent, matched, rendered, searched, tournament
from cudal2.search.trials import History


class Mutation:
    """Raises ValueError where the configuration names no family that can serve its problems."""

    def __init__(self, history: History) -> None:
        self._config, self._history = history.config, history
        self._families = searched(history.config)

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        config, problem, families = self._config, task.problem, self._families[task.problem]
        rng = seeded(config, task, generation)
        borrowed = lent(task, trials)[: config.search.generation // 2]
        device = self._history.environment.device
        settings = start(config, device, problem, families, rng) if generation == 0 else []
        first = chain(map(self._again, borrowed), (self._render(setting, problem) for setting in settings))
        earlier = trials[problem]

        def suggest() -> tuple[str, str] | None:
            begun = next(first, None)
            return begun or self._child(earlier, rng) or self._render(draw(problem, rng.choice(families), rng), problem)

        return gather(suggest, problem, config.target, earlier, count)

    def _again(self, trial: Trial) -> tuple[str, str]:
        """Another problem's kernel, as it was made there."""
        return self._history.archive.source(trial.source_hash), trial.prompt

    def _render(self, setting: Setting | None, problem: Problem) -> tuple[str, str] | None:
        source = rendered(setting, problem, self._families[problem]) if setting else None
        return (source, to_json(setting)) if setting and source else None

    def _child(self, trials: Sequence[Trial], rng: random.Random) -> tuple[str, str] | None:
        """A mutated good kernel; None where a setting is to be drawn at random, or no change was found."""
        ranked = sorted((trial for trial in trials if trial.low), key=lambda trial: -trial.low)
        if not ranked or rng.random() < EXPLORE:
            return None
        best = ranked[:PARENTS]
        parent, mate = (best[tournament(len(best), rng)] for _ in range(2))
        archive = self._history.archive
        source, other = archive.source(parent.source_hash), archive.source(mate.source_hash)
        tried, succeeded = _kinds(trials), _kinds(ranked[: elite(len(ranked))])
        done = []
        for _ in range(rng.choice((1, 2))):
            left = dict(KINDS)
            while left:
                kind = matched(list(left), tried, succeeded, rng)
                if changed := left.pop(kind)(source, other, rng):
                    source = changed
                    done.append(kind)
                    break
        if not done:
            return None
        return source, to_json(Mutated(tuple(done), parent.source_hash[:12], origin(parent.prompt)))


def _kinds(trials: Sequence[Trial]) -> list[str]:
    """The kinds of all mutations of these trials."""
    makings = [made(trial.prompt) for trial in trials]
    return [kind for one in makings if isinstance(one, Mutated) for kind in one.kinds]


make = Mutation
