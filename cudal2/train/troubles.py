"""What is wrong with a step of training, by its line of metrics: in one sentence each, with the remedy.

A run that learns nothing looks like one that does: rewards come, and the loss is a number. These are the causes that
the figures show.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def of(row: Row) -> dict[str, str]:
    """What is wrong with this step, by its kind."""
    return {kind: text for kind, told in KINDS.items() if (text := told(row))}


def over(rows: Sequence[Row]) -> list[str]:
    """What was wrong with a run, each in a sentence: in how many steps, and what the last of them said."""
    steps: dict[str, list[str]] = {}
    for row in rows:
        for kind, text in of(row).items():
            steps.setdefault(kind, []).append(text)
    return [f"In {len(said)} of {len(rows)} steps: {said[-1]}" for said in steps.values()]
