"""A model of speed fitted to the rounds of exploring (layers.py), which says what to write for a shape nobody measured.

What it learns is how far a setting stays behind the fastest measured of its shape, so that no baseline's whims are
learnt. Its facts are those of `cost.facts` and rows.py and a few more, worked out for all settings of a shape at once.
"""

import lzma
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from layers import Line, today
from sklearn.ensemble import HistGradientBoostingRegressor

from cudal2.arch import MULTIPROCESSORS
from cudal2.problem import Problem, parse
from cudal2.records import to_json
from cudal2.search.cost import AUTO
from cudal2.search.proposer import Setting

ROUNDS = ("first", "second", "third", "fourth", "fifth", "cover", "unaligned")
MENDED = ("warp_specialised", "split_k", "small_cluster", "stream_k", "store_bound")
"""Families that were made faster, between the second round and the third, where a tile reaches over an edge."""
UNITS = MULTIPROCESSORS["sm_90a"]
BEHIND = 1.0
"""A setting that is further behind (in logarithms) is as bad as this."""
SLOW = 0.3
"""What was dropped after its one cold run is behind by so much at least, and by BEHIND at most: with short kernels such
a run can take ten times too long."""
FEW = 64
"""Up to so many rows is one model, above another: other kernels, and other reasons."""
FLOPS, BANDWIDTH = 989.4e12, 4.8e12
ALIGNED = 64
"""Where the length of a row is a multiple of so many numbers (128 bytes), each begins at a line of the caches."""
NUMBERS = ("step", "bk", "stages", "depth", "splits", "warps", "blocks", "consumers", "side", "share", "k_resident")
NUMBERS += ("groups", "least", "buffers", "in_flight", "ahead")

Measured = dict[Problem, dict[str, float]]
"""For each shape how far each setting, as JSON, is behind the fastest; at most 0."""


def measured(folder: Path) -> Measured:
    """What the rounds hold of settings as the families are now; a slow one is compared by its one cold run."""
    timed: dict[tuple[str, str], list[float]] = defaultdict(list)
    slow: dict[tuple[str, str], float] = {}
    for name in ROUNDS:
        lines = msgspec.json.Decoder(Line).decode_lines(lzma.decompress((folder / f"{name}.jsonl.xz").read_bytes()))
        lines = [line for line in lines if not outdated(name, line)]
        bases: dict[str, list[float]] = defaultdict(list)
        for line in lines:
            if line.speedup:
                bases[line.problem].append(line.us * line.speedup)
        for line in lines:
            if setting := today(line):
                key = line.problem, to_json(setting)
                if line.speedup:
                    timed[key].append(math.log(line.speedup))
                elif line.us and line.problem in bases:
                    slow[key] = math.log(median(bases[line.problem]) / line.us)
    found: Measured = defaultdict(dict)
    for (mnk, setting), speeds in timed.items():
        found[parse(mnk)][setting] = float(np.mean(speeds))
    best = {problem: max(some.values()) for problem, some in found.items()}
    for (mnk, setting), speed in slow.items():
        if (problem := parse(mnk)) in best:
            found[problem].setdefault(setting, best[problem] - min(max(best[problem] - speed, SLOW), BEHIND))
    return {problem: {one: speed - best[problem] for one, speed in some.items()} for problem, some in found.items()}


def outdated(name: str, line: Line) -> bool:
    """Whether the family has been made faster since for such a shape, or was slowed down by a fault."""
    if name == "first" and line.family == "stationary":
        return True
    m, n, _ = map(int, line.problem.split("_"))
    small = m < int(line.knobs.get("tile_m", 0)) or n < int(line.knobs.get("tile_n", 0))
    moved = line.family != "small_cluster" or line.knobs["load"] == "tma"
    return name in ("first", "second") and line.family in MENDED and small and moved


class Pool:
    """Settings as columns of numbers."""

    def __init__(self, settings: Sequence[str], codes: dict[str, dict[str, int]] | None = None) -> None:
        self.settings = list(settings)
        made = [msgspec.json.decode(one, type=Setting) for one in settings]
        self.codes = numbered(made) if codes is None else codes
        words = [named(one) for one in made]
        columns = [[self.codes[name].get(found.get(name, ""), 0) for found in words] for name in self.codes]
        self.words = np.array(columns, dtype=float).T.reshape(len(made), len(self.codes))

        def size(*names: str, default: float = math.nan) -> np.ndarray:
            picked = [next((v for n in names if isinstance(v := one.knobs.get(n), int)), default) for one in made]
            return np.array(picked, dtype=float)

        self.tile_m, self.tile_n = size("tile_m", "bm", default=64), size("tile_n", "bn", default=64)
        self.step, self.depth = size("step", "bk", default=64), size("stages", "depth")
        self.blocks, self.consumers = size("blocks", default=1), size("consumers", default=1)
        groups = size("warps_m", default=1) * size("warps_n", default=1)
        in_groups = np.array(["warps_m" in one.knobs for one in made])
        warps = size("warps")
        self.warps = np.where(np.isnan(warps), np.where(in_groups, groups, 4 * self.consumers), warps)
        self.side, self.splits = size("side", default=0), size("splits", default=1)
        self.auto = np.array([one.knobs.get("splits") == "auto" for one in made])
        self.pong = np.array([one.knobs.get("schedule") == "ping-pong" for one in made])
        clusters = [re.fullmatch(r"(\d)x(\d)", str(one.knobs.get("cluster", "1x1"))) for one in made]
        self.cluster_m, self.cluster_n = (np.array([float(c[at]) for c in clusters if c]) for at in (1, 2))
        self.numbers = np.array([size(name, default=-1) for name in NUMBERS]).T.reshape(len(made), len(NUMBERS))

    def facts(self, problem: Problem) -> np.ndarray:
        """A line for each setting."""
        m, n, k = problem.m, problem.n, problem.k
        log, ceil, ones = np.log2, np.ceil, np.ones(len(self.settings))
        width = self.tile_n * np.maximum(1, self.side)
        high, wide = ceil(m / self.tile_m), ceil(n / width)
        tiles = high * wide
        splits = np.where(self.auto, np.clip(UNITS // tiles, 1, AUTO), self.splits)
        waves = tiles * splits / (UNITS * self.blocks)
        rounds = ceil(waves)
        steps = ceil(k / (splits * self.step))
        compute, memory = 2 * m * n * k / FLOPS, 2 * (m * k + n * k + m * n) / BANDWIDTH
        floor = max(compute, memory)
        busy = rounds * self.blocks * self.tile_m * width * steps * self.step * 2 * UNITS / FLOPS
        read = rounds * self.blocks * (self.tile_m + width) * steps * self.step * 2 * UNITS / BANDWIDTH
        depth = np.where(np.isnan(self.depth), 4, self.depth)
        shape = [log(m), log(n), log(k), log(m * n), log(m * k), log(n * k), log(floor), log(compute / memory)]
        columns = [
            *(value * ones for value in shape),
            *(log(self.tile_m), log(self.tile_n), log(width), log(self.tile_m * width), log(self.tile_m / width)),
            *(self.step, depth, self.blocks, log(self.warps), log(self.tile_m * width / self.warps)),
            *(log((self.tile_m + width) * self.step * depth), log(splits), self.cluster_m, self.cluster_n),
            *(log(tiles), log(waves), np.minimum(rounds, 12), waves / rounds, log(steps)),
            *(high * self.tile_m / m, wide * width / n, high, np.minimum(wide, 1000)),
            log(tiles * (self.tile_m + width) * k / (m * k + n * k + m * n)),
            *(log(busy / floor), log(read / floor), log(np.minimum(tiles * splits, UNITS * self.blocks))),
            *(log(k * np.maximum(1, self.side) / splits / self.warps), log(splits * m * n / (n * k))),
            log(np.minimum(waves, 1) * UNITS * self.warps * self.blocks * self.tile_n * depth),
            *(log(math.gcd(k, ALIGNED)) * ones, log(math.gcd(n, ALIGNED)) * ones),
            *((high % self.cluster_m == 0) * 1.0, (wide % self.cluster_n == 0) * 1.0),
            *(np.where(self.pong, ceil(waves * 2) / 2 / np.maximum(waves, 1e-9), 1), m % 8 > 0 * ones),
        ]
        return np.column_stack([*columns, self.numbers, self.words])


def numbered(settings: Sequence[Setting]) -> dict[str, dict[str, int]]:
    """A number for each value of each knob that is no number; 0 is none of them."""
    values: dict[str, set[str]] = defaultdict(set)
    for one in settings:
        for name, value in named(one).items():
            values[name].add(value)
    return {
        name: {value: code for code, value in enumerate(sorted(found), 1)} for name, found in sorted(values.items())
    }


def named(setting: Setting) -> dict[str, str]:
    words = {name: value for name, value in setting.knobs.items() if isinstance(value, str) and name != "style"}
    return {"family": setting.family} | words


class Model:
    """Trees for few rows and trees for more, each several that saw other parts of the facts."""

    def __init__(self, seen: Measured, trees: int = 2, behind: float = BEHIND, weight: float = 2.0) -> None:
        every = sorted({one for some in seen.values() for one in some})
        self.codes = Pool(every).codes
        self.models: dict[bool, list] = {}
        for few in (True, False):
            here = {problem: some for problem, some in seen.items() if (problem.m <= FEW) == few}
            made = np.vstack([Pool(list(some), self.codes).facts(problem) for problem, some in here.items()])
            wanted = np.maximum(np.concatenate([list(some.values()) for some in here.values()]), -behind)
            named_ones = range(made.shape[1] - len(self.codes), made.shape[1])
            self.models[few] = [
                HistGradientBoostingRegressor(
                    max_iter=200,
                    learning_rate=0.1,
                    max_leaf_nodes=24,
                    min_samples_leaf=20,
                    l2_regularization=1.0,
                    max_features=0.4,
                    categorical_features=list(named_ones),
                    early_stopping=False,
                    random_state=seed,
                ).fit(made, wanted, np.exp(weight * wanted))
                for seed in range(trees)
            ]

    def speeds(self, asked: Sequence[tuple[Problem, Pool]]) -> list[np.ndarray]:
        """How far behind the fastest each setting of each pool is, for its problem."""
        found: list[np.ndarray] = [np.zeros(0)] * len(asked)
        for few in (True, False):
            here = [place for place, (problem, _) in enumerate(asked) if (problem.m <= FEW) == few]
            for start in range(0, len(here), 50):  # trees take long to begin
                some = here[start : start + 50]
                facts = [asked[place][1].facts(asked[place][0]) for place in some]
                speeds = np.mean([model.predict(np.vstack(facts)) for model in self.models[few]], axis=0)
                ends = np.cumsum([len(one) for one in facts])
                for place, part in zip(some, np.split(speeds, ends[:-1])):
                    found[place] = part
        return found
