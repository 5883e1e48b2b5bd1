"""Turns in training: TRL's trainer asks for completions, and each is judged before its series goes on.

Each turn is a sample of its own, as in Kevin (arXiv:2507.11948): its prompt is what came before, its completion what
the policy wrote then. TRL (1.16) could also learn a whole series as one sequence, with a mask over what the judge said
and an advantage for every token; but then nothing that was written may be left out of a later turn, and most series of
kernels are longer than what a model reads at once. So what the judge says is never learnt: it only stands in prompts.

A group of TRL's holds all turns of all series of a problem: `trainer.group_size` series of `turns.count` rows, a
series' turns one after the other. Returns are compared within it. That the first turn has more turns after it than the
last is no bias: what is taken off for a state, whatever is done in it, changes the mean gradient by nothing.
"""

from collections.abc import Sequence
from typing import Any

from cudal2.config import ReturnsConfig
from cudal2.policy import turns
from cudal2.policy.sampling import Prompt
from cudal2.policy.turns import Attempt, Written
from cudal2.problem import Problem
from cudal2.target import find
from cudal2.train.judge import Judge

Rewards = Sequence[float | None]
"""Of the turns of one series; None where the harness gave no verdict."""


def earn(rewards: Rewards, config: ReturnsConfig) -> list[float | None]:
    """The return of each turn, as `ReturnsConfig` says. A reward that is None has no return and adds to no other."""
    known = [value for value in rewards if value is not None]
    found: list[float | None] = []
    later = 0.0
    for own in reversed(rewards):
        later = (own or 0.0) + config.discount * later
        total = max(known) if known and config.reward == "best" else later
        found.append(None if own is None else total)
    return found[::-1]


def earned(prompts: list, completions: list, returns: list[float | None], **_: Any) -> list[float | None]:
    """The reward function that TRL calls: what `play` found."""
    return returns


def play(
    trainer: Any, judge: Judge, step: int, firsts: Sequence[Prompt], problems: Sequence[Problem]
) -> dict[str, Any]:
    """What TRL wants of a `rollout_func`, for the series that begin with these prompts: a row for each turn of each.

    On every process at once: `judge` gathers what all of them wrote in a turn. Raises ValueError where a first prompt
    is too long, HarnessFault where no kernel of a turn could be judged.
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
        verdicts = judge.turn(step, turn, candidates, told, shown)
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
    """From what each turn has of each series: each series' turns one after the other."""
    return [one for series in zip(*by_turn) for one in series]
