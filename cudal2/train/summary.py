"""A step of training in figures: statistics of its verdicts, for a line of metrics.jsonl, and what such a line says is
wrong with it, in one sentence each, with the remedy.

A run that learns nothing looks like one that does: rewards come, and the loss is a number. These are the causes that
the figures show.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import msgspec

from cudal2 import corpus
from cudal2.records import Candidate, Verdict
from cudal2.target import find


class Turn(msgspec.Struct, frozen=True):
    """One turn of all series of a step, in their order. `shown` is how many earlier attempts each prompt showed; a
    verdict and its reward are None where the harness failed.
    """

    candidates: Sequence[Candidate]
    verdicts: Sequence[Verdict | None]
    rewards: Sequence[float | None]
    shown: Sequence[int]


def by_turn(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Statistics for each turn, of the candidates with a verdict. A failure counts as 0 in `speedup_mean`.

    `better` is the share whose reward is greater, however little, than that of the turn before; None for the first.
    `shown_mean` is the mean number of earlier attempts in the prompt, which may be fewer than there were.
    """
    statistics = []
    for number, turn in enumerate(turns):
        judged = [verdict for verdict in turn.verdicts if verdict is not None]
        earned = [value for value in turn.rewards if value is not None]
        pairs = zip(turns[number - 1].rewards, turn.rewards) if number else ()
        rises = [now > before for before, now in pairs if now is not None and before is not None]
        statistics.append(
            {
                "reward_mean": fmean(earned) if earned else None,
                "speedup_mean": fmean(verdict.speedup or 0.0 for verdict in judged) if judged else None,
                "ok": fmean(verdict.ok for verdict in judged) if judged else None,
                "better": fmean(rises) if rises else None,
                "shown_mean": fmean(turn.shown),
            }
        )
    return statistics


def summarize(
    step: int,
    verdicts: Sequence[Verdict | None],
    rewards: Sequence[float | None],
    candidates: Sequence[Candidate],
) -> dict[str, Any]:
    """Statistics of one step's verdicts. Masked samples (None) are counted, and left out of all other figures.

    `reward_room` is how far the best reward of a problem is above the mean of its rewards, in the mean of the problems:
    what the policy could gain if it always wrote the best that it writes. Once it is down to what measurements differ
    by, there is nothing to learn from its own samples.
    `speedup_mean` counts a failure as 0, `speedup_ok_mean` leaves it out; both are over the best baseline. The keys of
    `speedup_by_decade` are decades of FLOP: 6 is 10⁶ to 10⁷. `outside_corpus` is the share of the
    sources with a plan that differ from what their family renders; None where no source has a plan.
    """
    judged = [verdict for verdict in verdicts if verdict is not None]
    earned = [value for value in rewards if value is not None]
    speedups = [verdict.speedup or 0.0 for verdict in judged]
    planned = [candidate for candidate in candidates if candidate.source.startswith(corpus.PLAN)]
    decades: dict[int, list[float]] = {}
    for verdict in judged:
        decades.setdefault(len(str(verdict.problem.flop)) - 1, []).append(verdict.speedup or 0.0)
    working = [verdict.speedup or 0.0 for verdict in judged if verdict.ok]
    return {
        "step": step,
        "samples": len(verdicts),
        "masked": len(verdicts) - len(judged),
        "reward_mean": fmean(earned),
        "reward_std": pstdev(earned),
        "reward_room": _room(candidates, rewards),
        "speedup_mean": fmean(speedups),
        "speedup_ok_mean": fmean(working) if working else 0.0,
        "speedup_best": max(speedups),
        "speedup_by_decade": {decade: {"mean": fmean(of), "best": max(of)} for decade, of in sorted(decades.items())},
        "outside_corpus": 1 - fmean(corpus.keeps_its_plan(one.source, find(one.target)) for one in planned)
        if planned
        else None,
        "statuses": dict(Counter(verdict.status.value for verdict in judged).most_common()),
        "cached_share": fmean(verdict.cached for verdict in judged),
        "unique": len({candidate.key for candidate in candidates}),
        "problems": sorted({candidate.problem.name for candidate in candidates}),
    }


def _room(candidates: Sequence[Candidate], rewards: Sequence[float | None]) -> float:
    groups: dict[str, list[float]] = {}
    for candidate, value in zip(candidates, rewards):
        if value is not None:
            groups.setdefault(candidate.problem.name, []).append(value)
    return fmean(max(group) - fmean(group) for group in groups.values())


def tabulate(
    candidates: Sequence[Candidate], verdicts: Sequence[Verdict | None], rewards: Sequence[float | None], limit: int
) -> list[dict[str, Any]]:
    """Up to `limit` distinct kernels with source and verdict, evenly spaced from the best reward to the worst."""
    judged = {
        one.key: (one, verdict, reward)
        for one, verdict, reward in zip(candidates, verdicts, rewards)
        if verdict is not None and reward is not None
    }
    ranked = sorted(judged.values(), key=lambda row: row[2], reverse=True)
    shown = ranked[:: max(1, -(-len(ranked) // limit))] if limit else []
    return [
        {
            "problem": candidate.problem.name,
            "reward": reward,
            "status": verdict.status.value,
            "speedup": verdict.speedup,
            "low": verdict.timing.low if verdict.timing else None,
            "high": verdict.timing.high if verdict.timing else None,
            "reason": verdict.reason,
            "source": candidate.source,
        }
        for candidate, verdict, reward in shown
    ]


MANY_CUT, MANY_LEFT_OUT = 0.1, 0.5
"""Shares of a step's samples from which on a sentence is said."""

Row = Mapping[str, Any]


def _cut(row: Row) -> str:
    share = row.get("cut_share") or 0.0
    if share < MANY_CUT:
        return ""
    return (
        f"{share:.0%} of the answers were cut off at policy.max_new_tokens={row.get('max_new_tokens')}: raise it, as a "
        "kernel that is cut off earns nothing"
    )


def _equal(row: Row) -> str:
    if row.get("groups_equal") != 1.0:
        return ""
    return (
        "in each group all rewards are equal, so that they give no gradient: raise trainer.group_size or "
        "policy.temperature, or begin with a policy that sometimes writes a right kernel (`cudal2 sft`)"
    )


def _still(row: Row) -> str:
    norm = row.get("grad_norm")
    if norm is None or (norm == 0 and row.get("groups_equal") == 1.0):
        return ""
    if not math.isfinite(norm):
        return "the gradient is not a finite number: lower trainer.learning_rate, or set policy.dtype=float32"
    if norm == 0:
        return (
            "no parameter got a gradient: are all samples left out, or the weights that train outside of what the "
            "model computes? Try policy.lora.rank=0, trainer.gradient_checkpointing=false, policy.vllm.correction=none"
        )
    return ""


def _left_out(row: Row) -> str:
    share = row.get("vllm_left_out") or 0.0
    if share < MANY_LEFT_OUT:
        return ""
    return (
        f"policy.vllm.correction left out {share:.0%} of the samples, for what vLLM and the trainer compute differs "
        "too much: take policy.vllm.correction=token_truncate, raise policy.vllm.correction_most, or set "
        "policy.dtype=float32"
    )


KINDS: dict[str, Callable[[Row], str]] = {
    "answers cut off": _cut,
    "equal rewards": _equal,
    "no gradient": _still,
    "samples left out": _left_out,
}
"""What may be wrong, and what says so of a step."""


def troubles_of(row: Row) -> dict[str, str]:
    """What is wrong with this step, by its kind."""
    return {kind: text for kind, told in KINDS.items() if (text := told(row))}


def troubles_over(rows: Sequence[Row]) -> list[str]:
    """What was wrong with a run, each in a sentence: in how many steps, and what the last of them said."""
    steps: dict[str, list[str]] = {}
    for row in rows:
        for kind, text in troubles_of(row).items():
            steps.setdefault(kind, []).append(text)
    return [f"In {len(said)} of {len(rows)} steps: {said[-1]}" for said in steps.values()]
