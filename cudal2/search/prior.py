"""The settings that a search begins with (`search.prior`): known ones, with a policy's before them on request, or what
NVIDIA's heuristics propose.

*known*: earlier searches found them fast, and they ship. `data/settings/TARGET.jsonl`, if it exists, holds one `Known`
per line, several for a problem, the fastest first. A line does not state the accumulator; the family's knob
`accumulate` does. Where nothing is known for a problem's dtype and epilogue, what is known for fp16 alone is tried:
what a kernel waits for is the same.

A setting that is fast for one shape may waste a wave on a near one: 192 tiles on 132 multiprocessors take as long as
264. A campaign on an H200 measured 129 pairs of kernels of one shape of which one left 10% more of the multiprocessors
idle: it was the slower one 121 times (experiments/h200/campaign/waves.py). So such settings come last.

*nvidia*: nvMatmulHeuristics, a closed library under NVIDIA's own licence
(https://docs.nvidia.com/cuda/nvidia-matmul-heuristics), which users who accept it install themselves. It needs no GPU
and answers within milliseconds.
"""

import lzma
import math
import random
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from cudal2.arch import MULTIPROCESSORS
from cudal2.archive.selection import by_distance
from cudal2.config import SearchConfig
from cudal2.corpus import Family, Knobs
from cudal2.files import asset
from cudal2.problem import Layout, Problem, parse
from cudal2.records import to_json
from cudal2.search import cost
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed, draw, space_of
from cudal2.search.written import written
from cudal2.split import kept_apart

NEAREST = 8
"""How many problems settings are taken from at least."""
ENOUGH = 16
"""How many distinct settings are taken if there are: near problems of few rows share theirs, and what a search tries
beyond them is drawn at random."""
FILLED = 0.85
"""A setting comes last if it fills less than this share of what it filled where it was found."""


def start(
    config: SearchConfig,
    device: str,
    problem: Problem,
    families: Sequence[Family],
    rng: random.Random,
) -> list[Setting]:
    """The settings that a search begins with, by `search.prior`.

    `device` is the environment's. Raises ValueError where NVIDIA's heuristics are asked for but missing, or do not
    know the device, and as `written` does; ImportError where a model is to order known settings but its library is
    missing.
    """
    if config.search.tries_known:
        known = known_settings(config.target, problem, families)
        known = cost.order(config.target, device, problem, known) if config.search.order == "cost" else known
        first = written(config)[problem] if config.search.prior == "policy" else []
        return [*first, *(setting for setting in known if setting not in first)]
    if config.search.prior == "nvidia":
        advice = advise(problem, device, max(1, config.search.generation // 2))
        return follow(advice, problem, families, rng)
    return []


class Known(msgspec.Struct, frozen=True):
    """One setting; `problem` is written M_N_K."""

    problem: str
    layout: Layout
    family: str
    knobs: Knobs
    dtype: str = "fp16"
    epilogue: str = "none"


def known_settings(target: str, problem: Problem, families: Sequence[Family]) -> list[Setting]:
    """Settings of the nearest problems of that layout, dtype and epilogue, else of fp16 without one.

    First the fastest of each problem, nearest first, then the second of each, and so on; those that waste a wave after
    all others. Empty where nothing is known. Settings that `families` do not render (any more) are passed over.
    """
    by_name = {family.name: family for family in families}
    shipped, multiprocessors = _shipped(target), MULTIPROCESSORS.get(target, 0)

    def lent(other: Problem) -> list[tuple[bool, int, Setting]]:
        """Whether each setting wastes a wave here, its rank there, and the setting."""
        rendered = [setting for setting in shipped[other] if setting.family in by_name]
        able = [setting for setting in rendered if allowed(problem, by_name[setting.family], setting.knobs)]
        here, there = (
            [filled(where, by_name[one.family], one.knobs, multiprocessors) for one in able]
            for where in (problem, other)
        )
        wasteful = [share < FILLED * before for share, before in zip(here, there)]
        return [(wasteful[rank], rank, setting) for rank, setting in enumerate(able)]

    def fits(found: list[tuple[bool, int, Setting]]) -> bool:
        return not all(wasteful for wasteful, *_ in found)

    twin = msgspec.structs.replace(problem, accumulate="f32")
    alike = [other for other in shipped if (other.dtype, other.epilogue) == (twin.dtype, twin.epilogue)]
    if not alike:
        twin = msgspec.structs.replace(twin, dtype="fp16", epilogue="none")
        alike = [other for other in shipped if (other.dtype, other.epilogue) == (twin.dtype, twin.epilogue)]
    others = by_distance(twin, alike)
    nearest = _enough(filter(fits, map(lent, others))) or _enough(filter(None, map(lent, others)))
    ranked = [
        ((wasteful, place >= NEAREST, rank), setting)
        for place, found in enumerate(nearest)
        for wasteful, rank, setting in found
    ]
    ranked.sort(key=lambda one: one[0])  # keeps the nearest first
    return list({to_json(setting): setting for _, setting in ranked}.values())


def _enough(lent: Iterable[list[tuple[bool, int, Setting]]]) -> list[list[tuple[bool, int, Setting]]]:
    """What NEAREST problems lend, or as many more as it takes to have ENOUGH distinct settings."""
    found, distinct = [], set[str]()
    for one in lent:
        found.append(one)
        distinct.update(to_json(setting) for *_, setting in one)
        if len(found) >= NEAREST and len(distinct) >= ENOUGH:
            break
    return found


def filled(problem: Problem, family: Family, knobs: Knobs, multiprocessors: int) -> float:
    """The share of the multiprocessors' time that is used: 192 tiles on 132 take two waves, so 0.73.

    1 for one wave or less, where smaller tiles are not always faster, and where it is not known how a family shares out
    its work.
    """
    slots = multiprocessors * int(knobs.get("blocks", 1))
    if not family.whole_tiles or not slots:
        return 1.0
    tiles = math.ceil(problem.m / int(knobs["tile_m"])) * math.ceil(problem.n / int(knobs["tile_n"]))
    return tiles / (math.ceil(tiles / slots) * slots) if tiles > slots else 1.0


def knows(target: str) -> bool:
    """Whether settings for this target ship."""
    return bool(_shipped(target))


@cache
def _shipped(target: str) -> dict[Problem, list[Setting]]:
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


Advice = dict[str, Any]
"""What a library proposes for a problem: values by the field names of nvMatmulHeuristics, and `cluster` as MxN."""

ADVISED = {
    **{"bm": "cta_tile_m", "bn": "cta_tile_n", "bk": "cta_tile_k"},
    **{"tile_m": "cta_tile_m", "tile_n": "cta_tile_n", "step": "cta_tile_k"},
    **{"stages": "stages", "cluster": "cluster", "splits": "split_k"},
}
"""Knobs by the names that the CUDA families give them, and the field that advises on each."""


def advise(problem: Problem, device: str, count: int) -> list[Advice]:
    """What nvMatmulHeuristics thinks fastest on `device`; ValueError where it is absent or knows no such GPU."""
    try:
        import nvMatmulHeuristics as nv
    except ImportError as error:
        raise ValueError("search.prior=nvidia needs nvMatmulHeuristics: pip install 'cudal2[heuristics]'") from error
    gpu = nv.NvMatmulHeuristicsNvidiaGpu[_gpu(device, list(nv.NvMatmulHeuristicsNvidiaGpu.__members__))]
    backend = nv.NvMatmulHeuristicsTarget["CUTLASS3" if gpu >= 9000 else "CUTLASS"]
    model = nv.NvMatmulHeuristicsInterfaceEx(backend=backend, gpu=gpu)
    # Its layouts say of A, then B, whether it is transposed; B stored as N×K is.
    layout = nv.NvMatmulHeuristicsMatmulLayout["NT_ROW_MAJOR" if problem.layout == "tn" else "NN_ROW_MAJOR"]
    asked = model.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout)
    # Types of A and B, of the sum, of C: H is half, T bf16, S single.
    # More than `count`, as many differ only in what no knob follows.
    letter = problem.type.letter
    answers = model.get(asked, 8 * count, f"{letter}{'S' if problem.accumulate == 'f32' else letter}{letter}")
    kernels = [vars(answer["kernel"]) for answer in answers]
    advice = [kernel | {"cluster": f"{kernel['cluster_m']}x{kernel['cluster_n']}"} for kernel in kernels]
    distinct = {tuple(one[field] for field in ADVISED.values()): one for one in reversed(advice)}
    return list(reversed(distinct.values()))[:count]


def _gpu(device: str, known: Sequence[str]) -> str:
    """Which of `known`, such as H200_SXM, the driver calls `device`, such as NVIDIA H200; ValueError for none."""
    words = set(re.split(r"[^A-Za-z0-9]+", device.upper()))
    # The first word with a digit is the model; the others tell its variants apart.
    of_model = [name for name in known if next((w for w in name.split("_") if re.search(r"\d", w)), "") in words]
    if not of_model:
        raise ValueError(f"nvMatmulHeuristics does not know {device}; choose another search.prior")
    return max(of_model, key=lambda name: len(words.intersection(name.split("_"))))


def follow(advice: Sequence[Advice], problem: Problem, families: Sequence[Family], rng: random.Random) -> list[Setting]:
    """For each advice a setting as near to it as a family with such knobs allows, its other knobs at random."""
    able = [family for family in families if len(_advised(family)) >= 3]
    settings = []
    for fields in advice if able else []:
        family = rng.choice(able)
        space = space_of(problem, family)
        for knob, field in _advised(family).items():
            space[knob] = (min(space[knob], key=lambda value: _distance(value, fields[field])),)
        if setting := draw(problem, family, rng, space):
            settings.append(setting)
    return settings


def _advised(family: Family) -> dict[str, str]:
    return {knob: field for knob, field in ADVISED.items() if knob in family.knobs}


def _distance(value: int | str, wanted: int | str) -> float:
    if isinstance(value, int) and isinstance(wanted, int):
        return abs(math.log2(max(value, 1) / max(wanted, 1)))
    return 0.0 if value == wanted else math.inf
