"""What TRL's GRPOTrainer learns from, in front of `cudal2 serve`: a reward for its `reward_funcs`, and an environment
for its `environment_factory`. It needs Python's standard library; neither torch nor TRL is imported.

A fault of the harness is no reward: None, whose rows TRL leaves out. Where a whole batch has none, training ends with
the remedy, for there is nothing to learn.
"""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from cudal2.serving.client import NOTHING, Client, Episode, Judged, NoService, connect

log = logging.getLogger(__name__)

AUTHOR = "trl"
"""Who wrote these kernels, by the server's archive."""
FAILED = "The judge failed. This says nothing about your kernel."
TOOL = "\n\nHand in your kernel with the tool `submit`. You may do so again after you have seen its verdict."

client = cache(connect)


def prompts(problems: Iterable[str], chat: bool = True) -> list[dict[str, Any]]:
    """A row for each problem, as `reward` needs them: `datasets.Dataset.from_list(prompts([…]))`.

    Without `chat` a prompt is bare text, for a model that was taught so.
    """
    asked = [client().prompt(problem) for problem in problems]
    words = [[{"role": "user", "content": one.text}] if chat else one.text for one in asked]
    return [{"prompt": prompt, "problem": one.problem} for prompt, one in zip(words, asked)]


def reward(
    completions: list[Any],
    problem: list[str],
    prompts: list[Any] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """What each completion's kernel is worth, None where it has no verdict; by `reward.name` of the server.

    All are asked for at once, so that the server judges them as a batch. Raises NoService where none has a verdict.
    """
    texts = [_text(one) for one in completions]
    asked = [_text(one) for one in prompts or [""] * len(texts)]
    judge, faults = client(), []

    def one(text: str, name: str, prompt: str) -> Judged | None:
        try:
            return judge.completion(name, text, author=AUTHOR, prompt=prompt)
        except NoService as fault:
            faults.append(fault)
            return None

    with ThreadPoolExecutor(max(1, len(texts))) as threads:
        found = list(threads.map(one, texts, problem, asked))
    verdicts = [judged for judged in found if judged]
    if faults and not verdicts:
        raise faults[0]
    if faults:
        log.warning("%d of %d kernels have no verdict, so no reward: %s", len(faults), len(texts), faults[0])
    if log_metric and verdicts:
        log_metric("right", sum(judged.status == "ok" for judged in verdicts) / len(verdicts))
        log_metric("speedup", sum(judged.metrics.get("speedup", 0.0) for judged in verdicts) / len(verdicts))
    return [judged.reward if judged else None for judged in found]


def _text(said: Any) -> str:
    """The last message of a chat, or the bare text."""
    return said if isinstance(said, str) else said[-1]["content"]


class Kernels:
    """`GRPOTrainer(…, environment_factory=Kernels)` for models that call tools: any number of submissions for a
    problem, of which the best counts. Each row of the dataset needs a column `problem`.

    What TRL calls: `reset` for each rollout, `submit` as the model's tool, `get_reward` at the end.
    """

    def __init__(self) -> None:
        self._client: Client = client()
        self._episode: Episode | None = None
        self._fault: NoService | None = None

    def reset(self, problem: str, step: int = 0, **_: Any) -> str:
        """Begins a rollout; TRL adds what this gives to the user's message. What is raised ends the training."""
        self._episode, self._fault = Episode(self._client, problem, AUTHOR, step), None
        return self._episode.prompt.text + TOOL

    def submit(self, code: str) -> str:
        """Judges a kernel: says what is wrong with it, or how fast it is.

        Args:
            code: The whole source of the kernel.

        Returns:
            What the judge says.
        """
        assert self._episode is not None
        try:
            return self._episode.submit(code)[0].message
        except NoService as fault:  # raised, TRL would show it to the model as its own mistake
            self._fault = fault
            log.warning("a kernel has no verdict, so its rollout no reward: %s", fault)
            return FAILED

    def get_reward(self) -> float | None:
        """The best reward of this rollout; None where the harness failed in it."""
        if self._fault:
            return None
        assert self._episode is not None
        return NOTHING if self._episode.best is None else self._episode.best
