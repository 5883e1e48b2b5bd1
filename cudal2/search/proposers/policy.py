"""Samples of a language model, so that what it learnt is compared with a search at the same number of kernels.

It is prompted as in training, but for one thing: exemplars and failed attempts are those of this search for the same
problem, not of all that the archive holds. A completion without a source, and a source tried before, is not judged
and counts for nothing.
"""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.archive import selection
from cudal2.policy import model as policy
from cudal2.policy import prompts, writer
from cudal2.policy.sampling import Prompt
from cudal2.problem import Problem
from cudal2.records import Candidate, digest
from cudal2.search.history import History
from cudal2.search.proposer import Task, Trial, Trials, refuse_help, seeded
from cudal2.target import find

PATIENCE = 8
"""So many batches without enough that is new mean that the policy has hardly anything left to say."""


class Policy:
    """The model is loaded when it is first asked; ValueError where it cannot be, or has no word for the target.

    All problems of a search are sampled together, whoever is asked for first: a small model takes as long for one
    completion as for hundreds.
    """

    def __init__(self, history: History) -> None:
        refuse_help(history.config)
        self._history, self._config = history, history.config
        self._loaded = cache(self._load)
        # All problems are asked for one generation before the next: older samples would only take memory.
        self._generation = lru_cache(maxsize=1)(self._sample)

    def _load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        model, tokenizer = policy.load(self._config.policy, self._config.target)
        policy.check(tokenizer, self._config.target)
        return model, tokenizer

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        return dict(islice(self._generation(generation)[task.problem].items(), count))

    def _sample(self, generation: int) -> dict[Problem, dict[Candidate, str]]:
        """New candidates for every problem of the search, a generation of each as far as there are so many."""
        size, target = self._config.search.generation, find(self._config.target)
        problems = list(dict.fromkeys(self._config.shapes.problems()))
        earlier = {problem: self._earlier(problem, generation) for problem in problems}
        written = {problem: self._prompt(problem, earlier[problem], generation) for problem in problems}
        tried = {problem: {trial.source_hash for trial in earlier[problem]} for problem in problems}
        found: dict[Problem, dict[Candidate, str]] = {problem: {} for problem in problems}
        # One seed for a whole generation: a search that is continued samples the same batches again.
        rng = seeded(self._config, Task(problems[0]), generation)
        for _ in range(PATIENCE):
            lacking = [problem for problem in problems for _ in range(size) if len(found[problem]) < size]
            if not lacking:
                break
            batch = [written[problem] for problem in lacking]

            def finished(place: int, source: str, asked: Sequence[Problem] = lacking) -> None:
                self._history.ahead([Candidate(source, asked[place], target.name)])

            sources = writer.write(*self._loaded(), batch, self._config.policy, target, rng.getrandbits(32), finished)
            for problem, source in zip(lacking, sources):
                if source and digest(source) not in tried[problem]:
                    found[problem][Candidate(source, problem, target.name)] = writer.text(written[problem])
        return found

    def _earlier(self, problem: Problem, generation: int) -> list[Trial]:
        return [trial for trial in self._history.trials(problem) if trial.generation < generation]

    def _prompt(self, problem: Problem, trials: Sequence[Trial], generation: int) -> Prompt:
        config, wanted = self._config, self._config.prompt
        shown = self._history.entries(problem, trials) if wanted.exemplars + wanted.failures else []
        timed = [entry for entry in shown if entry.verdict.timing]
        exemplars = selection.contrasting(timed, wanted.exemplars, seeded(config, Task(problem), generation))
        failed = [entry for entry in reversed(shown) if entry.verdict.status in selection.EXPLAINED]
        what = wanted, config.policy.chat, problem, find(config.target)
        return prompts.render(*what, exemplars, self._history.environment, failed[: wanted.failures])


make = Policy
