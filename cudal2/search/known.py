"""What is known to be fast: settings that earlier searches found, and that ship.

`data/settings/TARGET.jsonl`, if it exists, holds one `Known` per line, several for a problem, the fastest first. A line
does not state the accumulator; the family's knob `accumulate` does.
"""

import lzma
from functools import cache
from pathlib import Path

import msgspec

from cudal2.archive.selection import by_distance
from cudal2.corpus import Knobs
from cudal2.files import asset
from cudal2.problem import Layout, Problem, parse
from cudal2.search.proposer import Setting
from cudal2.split import kept_apart


class Known(msgspec.Struct, frozen=True):
    """One setting; `problem` is written M_N_K."""

    problem: str
    layout: Layout
    family: str
    knobs: Knobs
    dtype: str = "fp16"
    epilogue: str = "none"


def knows(target: str) -> bool:
    """Whether settings for this target ship."""
    return bool(shipped_settings(target))


@cache
def shipped_settings(target: str) -> dict[Problem, list[Setting]]:
    """The target's file, by problem. What is kept apart to measure on is passed over."""
    path = asset("data").joinpath("settings", f"{target}.jsonl")
    known: dict[Problem, list[Setting]] = {}
    for problem, setting in listed(path):
        if not kept_apart(problem):
            known.setdefault(problem, []).append(setting)
    return known


def listed(path: Path) -> list[tuple[Problem, Setting]]:
    """What such a file holds, line by line; all problems are given as f32."""
    return [
        (parse(line.problem, line.layout, dtype=line.dtype, epilogue=line.epilogue), Setting(line.family, line.knobs))
        for line in read_known(path)
    ]


def read_known(path: Path) -> list[Known]:
    """The lines of such a file, which may be packed (.xz); none where there is no file."""
    if not path.exists():
        return []
    stored = path.read_bytes()
    return msgspec.json.Decoder(Known).decode_lines(lzma.decompress(stored) if path.suffix == ".xz" else stored)


def nearest_problems(target: str, problem: Problem) -> list[Problem]:
    """Problems for which settings are known, nearest first: of the same kind, but for the accumulator; else of fp16
    without an epilogue; else of that with B as N×K."""
    same = msgspec.structs.replace(problem, accumulate="f32")
    plain = msgspec.structs.replace(same, dtype="fp16", epilogue="none")
    every = list(shipped_settings(target))
    kinds = same, plain, msgspec.structs.replace(plain, layout="tn")
    return next(filter(None, (by_distance(one, every) for one in kinds)), [])
