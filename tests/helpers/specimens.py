"""Verdicts, sources and an environment for tests that need results but no compiler."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cudal2.config import EvalConfig, ShapesConfig
from cudal2.problem import Problem
from cudal2.records import STRICT, Candidate, Edit, Environment, Shift, Status, Timing, Verdict

PROBLEM = Problem(64, 128, 256)
HERE = Environment("a CPU", 2, "g++ 12", "-O3", "torch 2", "1")
ELSEWHERE = Environment("another CPU", 2, "g++ 12", "-O3", "torch 2", "1")


def candidate(text: str = "a", problem: Problem = PROBLEM) -> Candidate:
    """One kernel for each text; a comment alone would not tell them apart."""
    return Candidate(f'// {text}\nint hgemm() {{ return 0; }}\nchar name[] = "{text}";\n', problem)


def edited(text: str = "a", problem: Problem = PROBLEM, end: int = 4) -> Candidate:
    """The candidate of that text with an edit of its built code."""
    return msgspec.structs.replace(candidate(text, problem), edit=Edit("multiply", "ab" * 32, (Shift(3, end),)))


def timing(speedup: float, baseline: str = "torch", spread: float = 0.01) -> Timing:
    low, high = speedup * (1 - spread), speedup * (1 + spread)
    return Timing(baseline, "device", 10.0, 10.0 * speedup, speedup, low, high, 7, 10, confidence=STRICT)


def verdict(
    candidate: Candidate,
    speedup: float | None = 1.0,
    environment: Environment = HERE,
    status: Status = Status.OK,
    log: str = "",
) -> Verdict:
    """An ok verdict with that speedup, or a failure where `speedup` is None."""
    if speedup is None and status is Status.OK:
        status = Status.COMPILE_ERROR
    timings = (timing(speedup), timing(speedup * 2, "torch-fp16")) if speedup is not None else ()
    return Verdict(
        key=candidate.key,
        problem=candidate.problem,
        target=candidate.target,
        status=status,
        environment=environment,
        timings=timings,
        log=log,
    )


def evaluation(folder: Path, problems: Sequence[Problem], **options) -> EvalConfig:
    """The configuration of an evaluation of these problems."""
    shapes = ShapesConfig(names=tuple(problem.name for problem in problems))
    return EvalConfig(run=str(folder), shapes=shapes, **options)
