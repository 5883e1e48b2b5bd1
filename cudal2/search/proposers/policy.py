"""Samples of a language model, so that what it learnt is compared with a search at the same number of kernels.

It is prompted as in training, but for one thing: exemplars and failed attempts are those of this search for the same
problem, not of all that the archive holds. A completion without a source, and a source tried before, is not judged
and counts for nothing.
"""

from collections.abc import Mapping
from functools import cache
from itertools import islice

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.archive import selection
from cudal2.policy import model as policy
from cudal2.policy import prompts, writer
from cudal2.policy.sampling import Prompt
from cudal2.records import Candidate, digest
from cudal2.search.history import History
from cudal2.search.proposer import Task, Trials, refuse_help, seeded
from cudal2.target import find

PATIENCE = 8
"""So many batches without enough that is new mean that the policy has hardly anything left to say."""


class Policy:
    """The model is loaded when it is first asked; ValueError where it cannot be, or has no word for the target."""

    def __init__(self, history: History) -> None:
        refuse_help(history.config)
        self._history, self._config = history, history.config
        self._loaded = cache(self._load)

    def _load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        model, tokenizer = policy.load(self._config.policy, self._config.target)
        policy.check(tokenizer, self._config.target)
        return model, tokenizer

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        config, target = self._config, find(self._config.target)
        rng = seeded(config, task, generation)
        prompt = self._prompt(task, trials, generation)
        tried = {trial.source_hash for trial in trials[task.problem]}
        found: dict[Candidate, str] = {}
        for _ in range(PATIENCE):
            # Always a whole generation: of a smaller batch the samples would be others.
            batch = [prompt] * config.search.generation
            for source in writer.write(*self._loaded(), batch, config.policy, target, rng.getrandbits(32)):
                if source and digest(source) not in tried:
                    found[Candidate(source, task.problem, target.name)] = writer.text(prompt)
            if len(found) >= count:
                break
        return dict(islice(found.items(), count))

    def _prompt(self, task: Task, trials: Trials, generation: int) -> Prompt:
        config, wanted = self._config, self._config.prompt
        shown = self._history.entries(task.problem, trials[task.problem]) if wanted.exemplars + wanted.failures else []
        timed = [entry for entry in shown if entry.verdict.timing]
        exemplars = selection.contrasting(timed, wanted.exemplars, seeded(config, task, generation))
        failed = [entry for entry in reversed(shown) if entry.verdict.status in selection.EXPLAINED]
        what = wanted, config.policy.chat, task.problem, find(config.target)
        return prompts.render(*what, exemplars, self._history.environment, failed[: wanted.failures])


make = Policy
