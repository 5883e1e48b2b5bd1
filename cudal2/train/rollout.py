"""Turns in training: TRL's trainer asks for completions, and each is judged before the next turn of its series.

Each turn is a sample of its own, as in Kevin (arXiv:2507.11948): its prompt is the conversation so far, its completion
what the policy writes. TRL (1.16) could also train on a whole series as one sequence, with a mask over the verdicts
and an advantage for every token. But then no earlier attempt could be dropped, and most series of kernels are longer
than a model's context. Since verdicts are only in prompts, the loss never counts them.

A TRL group holds all turns of all series of a problem: `trainer.group_size` series of `turns.count` rows, the turns of
a series one after the other. Advantages compare the returns in a group. It is no bias that the return of a first turn
sums more rewards than that of a last one: a baseline that does not depend on the action leaves the expected gradient
unchanged.
"""

from collections.abc import Sequence
from typing import Any

from cudal2.config import ReturnsConfig
from cudal2.policy import turns
from cudal2.policy.prompts import Prompt
from cudal2.policy.turns import Attempt, Written
from cudal2.problem import Problem
from cudal2.target import find
from cudal2.train.judge import Judge

Rewards = Sequence[float | None]
"""The rewards of a series' turns; None where the harness gave no verdict."""


def earn(rewards: Rewards, config: ReturnsConfig) -> list[float | None]:
    """The return of each turn, as `ReturnsConfig` says; None where a reward that it counts is None, as a fault of the
    harness is worth nothing, neither good nor bad."""
    if config.reward == "best":
        known = [value for value in rewards if value is not None]
        return [max(known) if len(known) == len(rewards) else None for _ in rewards]
    returns: list[float | None] = []
    later: float | None = 0.0
    for own in reversed(rewards):
        later = None if own is None or later is None else own + config.discount * later
        returns.append(later)
    return returns[::-1]


def earned(prompts: list, completions: list, returns: list[float | None], **_: Any) -> list[float | None]:
    """The reward function that TRL calls: it passes on the returns that `play` computed."""
    return returns


def play(
    trainer: Any, judge: Judge, step: int, firsts: Sequence[Prompt], problems: Sequence[Problem]
) -> dict[str, Any]:
    """The result of TRL's `rollout_func` for the series that begin with these prompts: one row per turn of each series.

    All processes must call this together, as `judge` gathers the candidates of all. Raises ValueError where a first
    prompt is too long, HarnessFault where no kernel of a turn could be judged.
    """
    config, words = judge.config, trainer._tokenizer
    target, room = find(config.target), turns.room(trainer.accelerator.unwrap_model(trainer.model), config.policy)
    attempts: list[list[Attempt]] = [[] for _ in firsts]
    written: list[list[Written]] = []
    completions: list[Any] = []
    scores: list[Any] = []
    rewards: list[Rewards] = []
    for turn in range(config.turns.count):
        written.append([turns.fitted(words, *what, target, room) for what in zip(firsts, attempts)])
        trainer.begin_turn(turn, [(one.ids, problem) for one, problem in zip(written[-1], problems)])
        ids, logprobs = trainer._generate_single_turn([one.ids for one in written[-1]], None, {}, num_generations=1)
        texts = words.batch_decode(ids, skip_special_tokens=True)
        candidates = [judge.candidate(*what) for what in zip(texts, problems)]
        told, shown = zip(*((one.told, one.shown) for one in written[-1]))
        verdicts = judge.turn(step, turn, candidates, told, shown, judge.cut(ids))
        for some, candidate, verdict in zip(attempts, candidates, verdicts):
            some.append(Attempt(candidate.source, verdict))
        completions.append(ids)
        scores.append(logprobs)
        rewards.append([judge.score(*what) for what in zip(candidates, verdicts)])
    judge.close(step)
    return {
        "prompt_ids": _rows([[one.ids for one in some] for some in written]),
        "completion_ids": _rows(completions),
        "logprobs": None if scores[0] is None else _rows(scores),
        "returns": [value for series in zip(*rewards) for value in earn(series, config.turns)],
    }


def _rows(by_turn: Sequence[Sequence[Any]]) -> list[Any]:
    """Reorders values from [turn][series] to one list, with the turns of each series one after the other."""
    return [one for series in zip(*by_turn) for one in series]
