"""The settings whose speed some archive of this repository holds, as collect.py wrote them to speeds.jsonl."""

import math
from pathlib import Path

import msgspec

from cudal2.corpus import Knobs
from cudal2.problem import Problem, parse
from cudal2.search.proposer import Setting

SPEEDS = Path(__file__).with_name("speeds.jsonl")


class Measured(msgspec.Struct, frozen=True):
    """A setting's speedups over the fastest baseline, by device (a name in `arch.STATED`) and by M_N_K."""

    family: str
    knobs: Knobs
    speeds: dict[str, dict[str, float]]


class Row(msgspec.Struct, frozen=True):
    """One setting on one problem; `speed` is the logarithm of its speedup there."""

    problem: Problem
    setting: Setting
    device: str
    speed: float = 0.0


def read() -> list[Row]:
    """The rows of speeds.jsonl, by problem."""
    lines = msgspec.json.Decoder(Measured).decode_lines(SPEEDS.read_bytes())
    rows = [
        Row(parse(mnk), Setting(line.family, line.knobs), device, math.log(speedup))
        for line in lines
        for device, speeds in line.speeds.items()
        for mnk, speedup in speeds.items()
    ]
    return sorted(rows, key=lambda row: row.problem)
