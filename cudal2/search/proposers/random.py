"""Settings of the kernel families by chance: a family uniformly, then its allowed settings uniformly."""

from collections.abc import Mapping

from cudal2.records import Candidate
from cudal2.search.proposer import Task, Trials, refuse_prior_and_neighbours, seeded
from cudal2.search.settings import collect, draw, searched
from cudal2.search.trials import History


class Random:
    """Raises ValueError where the configuration names no family that can serve its problems."""

    def __init__(self, history: History) -> None:
        refuse_prior_and_neighbours(history.config)
        self._config = history.config
        self._families = searched(history.config)

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        rng, families = seeded(self._config, task, generation), self._families[task.problem]

        def suggest():
            return draw(task.problem, rng.choice(families), rng)

        return collect(suggest, task.problem, self._config.target, families, trials[task.problem], count)


make = Random
