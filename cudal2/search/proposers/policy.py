"""Samples of a language model, so that a policy can be compared with other searches at the same number of kernels.

It is prompted as in training, with one difference: exemplars and failed attempts come from this search for the same
problem only, not from the whole archive. A completion without a source, or with a kernel tried before, is not judged
and does not count in the budget. Kernels are told apart by what is built (`cudal2.form`): a policy writes one kernel
with many comments, names and plans.

The first kernel for each prompt is drawn at `policy.temperature`, where it is best, and the others, if there is one, at
`policy.further_temperature`, where they differ: four of the likeliest kernels may be one. With `search.rerank` so many
of the likeliest plans are found for each prompt, and the cost model says which are written out, and judged first.

Of a policy whose answers are paid for (`policy/endpoint`) no more are asked for than the budget covers.

With `turns` a generation is a turn: the first is written from the prompt, the next one from the verdict on each kernel
of the first, and so on; after `turns.count` generations a first turn follows again.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import cast

from cudal2.archive import selection
from cudal2.archive.records import Entry
from cudal2.policy import prompts, writer
from cudal2.policy.prompts import Prompt
from cudal2.policy.turns import Attempt
from cudal2.problem import Problem
from cudal2.records import Candidate, to_json
from cudal2.search import drawn, planned
from cudal2.search.asked import Asked, Way
from cudal2.search.proposer import Revised, Task, Trial, Trials, answered, refuse_prior_and_neighbours, seeded
from cudal2.search.trials import History, affordable_now, seconds
from cudal2.target import find


class Policy:
    """The model is loaded, or asked, at the first proposal; ValueError where it cannot be, or does not know the target.

    All problems of a search are sampled together at the first request for a generation: a small model takes as long
    for one completion as for hundreds.
    """

    def __init__(self, history: History) -> None:
        refuse_prior_and_neighbours(history.config)
        self._history, self._config = history, history.config
        self._writer = writer.make(self._config.policy, self._config.prompt, self._config.target, self._config.run)
        # All problems ask for one generation before the next, so older samples would only take memory.
        self._generation = lru_cache(maxsize=1)(self._sample)

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        return dict(islice(self._generation(generation)[task.problem].items(), count))

    def _sample(self, generation: int) -> dict[Problem, dict[Candidate, str]]:
        """New candidates for every problem of the search: a whole generation of each, if the policy writes so many.

        It is whole even if the budget ends within it, so that a search whose budget is raised later samples the same.
        """
        search, paid = self._config.search, self._writer.paid
        problems = list(dict.fromkeys(self._config.shapes.problems()))
        earlier = {problem: self._earlier(problem, generation) for problem in problems}
        written = {problem: self._written(problem, earlier[problem], generation) for problem in problems}
        tried = {problem: self._history.forms(problem, earlier[problem]) for problem in problems}
        # One seed for a whole generation: a search that is continued samples the same batches again.
        rng = seeded(self._config, Task(problems[0]), generation)
        affordable = {problem: max(0, affordable_now(search, before)) for problem, before in earlier.items()}
        over = {problem for problem, before in earlier.items() if 0 < search.seconds <= seconds(before)}
        affordable |= dict.fromkeys(over, 0)
        wanted = affordable if paid else dict.fromkeys(problems, search.generation)
        asked = Asked(wanted, affordable, tried, self._config.target, self._history.ahead)
        if search.rerank > 1:
            planner = cast(writer.Planner, self._writer)  # `rerank.check` was passed
            planned.write_out(planner, search.rerank, find(self._config.target), written, asked, rng)
        apart = self._config.policy.further_temperature is not None and not paid

        def name(problem: Problem) -> str:
            return f"{self._history.name(problem)} {generation}"

        drawn.write_out(self._writer, written, asked, name, rng, apart)
        return asked.new

    def _written(self, problem: Problem, trials: Sequence[Trial], generation: int) -> list[Way]:
        """The prompts of this generation of the problem, which are used in rotation.

        A first turn has one prompt. A later turn has one for each kernel of the generation before it: the conversation
        that led to that kernel, and its verdict.
        """
        turn = generation % self._config.turns.count
        begun = generation - turn
        first = self._prompt(problem, [trial for trial in trials if trial.generation < begun], begun)
        if self._config.turns.count > 1:
            self._writer.fits(first, ())
        if not turn:
            return [(first, prompts.text(first))]
        ways = []
        for trial in trials:
            if trial.generation == generation - 1:
                written = self._writer.fits(first, self._line(problem, trial, trials, turn))
                made = Revised(trial.source_hash, written.told if written.shown else "")
                ways.append((written.prompt, to_json(made)))
        return ways

    def _line(self, problem: Problem, trial: Trial, trials: Sequence[Trial], count: int) -> list[Attempt]:
        """The last `count` attempts of the conversation that ends with this trial."""
        by_hash = {one.source_hash: one for one in trials}
        line = [trial]
        while len(line) < count and (before := answered(line[0].prompt)) and before.parent in by_hash:
            line.insert(0, by_hash[before.parent])
        return [Attempt(entry.source, entry.verdict) for entry in self._history.entries(problem, line)]

    def _earlier(self, problem: Problem, generation: int) -> list[Trial]:
        return [trial for trial in self._history.trials(problem) if trial.generation < generation]

    def _prompt(self, problem: Problem, trials: Sequence[Trial], generation: int) -> Prompt:
        config, wanted = self._config, self._config.prompt
        asked = wanted.exemplars + wanted.failures + wanted.parent
        tried = [(one.generation, entry) for one in trials for entry in self._entries(problem, one)] if asked else []
        timed = [(born, entry) for born, entry in tried if entry.verdict.timing]
        fast = [entry for _, entry in timed]
        if wanted.islands > 1:
            place = selection.island_number(config.seed, generation, problem, wanted.islands)
            how = wanted.islands, wanted.island_steps, config.seed, generation
            fast = selection.fastest_first(selection.all_islands(problem, timed, *how)[place])
        rng = seeded(config, Task(problem), generation)
        exemplars = selection.contrasting(fast, wanted.exemplars, rng)
        parent = selection.among_best(fast, wanted.parent, rng) if wanted.parent else None
        failed = [entry for _, entry in reversed(tried) if entry.verdict.status in selection.EXPLAINED]
        what = wanted, config.policy.chat, problem, find(config.target)
        past = exemplars, self._history.environment, failed[: wanted.failures]
        return prompts.render(*what, *past, parent=parent, worker=config.worker)

    def _entries(self, problem: Problem, trial: Trial) -> list[Entry]:
        return self._history.entries(problem, [trial])


make = Policy
