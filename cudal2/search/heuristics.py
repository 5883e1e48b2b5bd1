"""What NVIDIA's heuristics propose to begin a search with (`search.prior=nvidia`).

nvMatmulHeuristics is a closed library under NVIDIA's own licence
(https://docs.nvidia.com/cuda/nvidia-matmul-heuristics), which users who accept it install themselves. It needs no GPU
and answers within milliseconds.
"""

import math
import random
import re
from collections.abc import Sequence
from typing import Any

from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.search.proposer import Setting
from cudal2.search.settings import draw, space_of

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
