"""What an expert works out of a shape and a setting: tiles, waves, how full the last one is, traffic, alignment.

Logarithms to the base 2, so that twice as much is one more; times are ratios to the time that the device's peak rates
would take. The numbers of the GPU on which settings were measured stand in for those of its kin.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from cudal2.arch import MULTIPROCESSORS, STATED
from cudal2.corpus import Knobs
from cudal2.problem import Problem

Setting = tuple[str, Knobs]
"""A family's name and its knobs."""
Codes = Mapping[str, Mapping[str, int]]
"""For each knob that is no number, the family among them, a number from 1 for each of its values; 0 is none of them."""

UNITS = MULTIPROCESSORS["sm_90a"]
FLOPS, BANDWIDTH = STATED["H200"]
AUTO = 16
"""A family that chooses its splits itself makes at most so many."""
LINE, SECTOR = 64, 16
"""Where the length of a row is a multiple of so many numbers (128 and 32 bytes), each begins at a line of the caches or
at a sector. Where not, a box of 64 touches two lines instead of one, and five sectors instead of four."""
PARITY = "by_parity"
"""The family whose tiles hold rows of one parity: each half of the rows is padded by itself, to whole clusters, and all
rows of a tile begin at a sector."""
CLUSTERS = (0, 132, 66, 39, 30, 22, 17, 15, 15)
"""How many clusters of so many blocks an H200 holds at once, one block to a multiprocessor
(`cudaOccupancyMaxActiveClusters`, experiments/h200/kernels.md); MORE of larger ones."""
MORE = 7
NUMBERS = (
    *("step", "bk", "stages", "depth", "splits", "warps", "blocks", "consumers", "side", "share", "k_resident"),
    *("groups", "least", "buffers", "in_flight", "ahead"),
)


class Columns:
    """Settings as columns of numbers, which `facts` puts together with a shape."""

    def __init__(self, settings: Sequence[Setting], codes: Codes) -> None:
        self._count = count = len(settings)
        knobs = [knobs for _, knobs in settings]
        words = [named(one) for one in settings]
        coded = [[codes[name].get(found.get(name, ""), 0) for found in words] for name in codes]
        self._words = np.array(coded, dtype=float).T.reshape(count, len(codes))

        def size(*names: str, default: float = math.nan) -> np.ndarray:
            picked = [next((v for n in names if isinstance(v := one.get(n), int)), default) for one in knobs]
            return np.array(picked, dtype=float)

        self._tile_m, self._tile_n = size("tile_m", "bm", default=64), size("tile_n", "bn", default=64)
        self._step, self._depth = size("step", "bk", default=64), size("stages", "depth", default=4)
        self._blocks, self._splits = size("blocks", default=1), size("splits", default=1)
        groups = size("warps_m", default=1) * size("warps_n", default=1)
        in_groups = np.array(["warps_m" in one for one in knobs], dtype=bool)
        warps = size("warps")
        usual = np.where(in_groups, groups, 4 * size("consumers", default=1))
        self._warps = np.where(np.isnan(warps), usual, warps)
        self._width = self._tile_n * np.maximum(1, size("side", default=0))
        self._sides = np.maximum(1, size("side", default=0))
        self._parity = np.array([family == PARITY for family, _ in settings], dtype=bool)
        self._auto = np.array([one.get("splits") == "auto" for one in knobs], dtype=bool)
        self._pong = np.array([one.get("schedule") == "ping-pong" for one in knobs], dtype=bool)
        clusters = [re.fullmatch(r"(\d)x(\d)", str(one.get("cluster", "1x1"))) for one in knobs]
        self._cluster_m, self._cluster_n = (np.array([float(c[at]) for c in clusters if c]) for at in (1, 2))
        share_k = [family == "small_cluster" or one.get("reduce") == "cluster" for family, one in settings]
        blocks = self._cluster_m * self._cluster_n * np.where(share_k, self._splits, 1)
        held = np.array(CLUSTERS)[np.minimum(blocks, len(CLUSTERS) - 1).astype(int)]
        self._at_once = blocks * np.where(blocks < len(CLUSTERS), held, MORE)
        self._numbers = np.array([size(name, default=-1) for name in NUMBERS]).T.reshape(count, len(NUMBERS))

    def facts(self, problem: Problem) -> np.ndarray:
        """A line of floats for each setting; its last columns are codes, as many as knobs were numbered."""
        m, n, k = problem.m, problem.n, problem.k
        log, ceil, ones = np.log2, np.ceil, np.ones(self._count)
        width = self._width
        high, wide = self._tiles_high(m), ceil(n / width)
        tiles = high * wide
        splits = np.where(self._auto, np.clip(UNITS // tiles, 1, AUTO), self._splits)
        waves = tiles * splits / (UNITS * self._blocks)
        rounds = ceil(waves)
        steps = ceil(k / (splits * self._step))
        compute, memory = 2 * m * n * k / FLOPS, 2 * (m * k + n * k + m * n) / BANDWIDTH
        floor = max(compute, memory)
        each = rounds * self._blocks * steps * self._step * 2 * UNITS
        busy, read = each * self._tile_m * width / FLOPS, each * (self._tile_m + width) / BANDWIDTH
        traffic = tiles * (self._tile_m + width) * k / (m * k + n * k + m * n)
        shape = [log(m), log(n), log(k), log(m * n), log(m * k), log(n * k), log(floor), log(compute / memory)]
        columns = [
            *(value * ones for value in shape),
            *(log(self._tile_m), log(self._tile_n), log(width), log(self._tile_m * width), log(self._tile_m / width)),
            *(self._step, self._depth, self._blocks, log(self._warps), log(self._tile_m * width / self._warps)),
            *(log((self._tile_m + width) * self._step * self._depth), log(splits), self._cluster_m, self._cluster_n),
            *(log(tiles), log(waves), np.minimum(rounds, 12), waves / rounds, log(steps)),
            *(high * self._tile_m / m, wide * width / n, high, np.minimum(wide, 1000), log(traffic)),
            *(log(busy / floor), log(read / floor), log(np.minimum(tiles * splits, UNITS * self._blocks))),
            *(log(k * self._sides / splits / self._warps), log(splits * m / k)),
            log(np.minimum(waves, 1) * UNITS * self._warps * self._blocks * self._tile_n * self._depth),
            *(log(math.gcd(k, LINE)) * ones, log(math.gcd(n, LINE)) * ones),
            *((high % self._cluster_m == 0) * 1.0, (wide % self._cluster_n == 0) * 1.0),
            *self._sharing(problem, high, wide, splits, rounds, steps, floor),
            *(np.where(self._pong, ceil(waves * 2) / 2 / np.maximum(waves, 1e-9), 1), (m % 8 > 0) * ones),
        ]
        return np.column_stack([*columns, self._numbers, self._words])

    def _tiles_high(self, rows: int, each: np.ndarray | float = 1) -> np.ndarray:
        """How many tiles lie one below the other, padded to multiples of `each`; the rows of each parity apart, where
        a family parts them."""

        def padded(some: int) -> np.ndarray:
            return np.ceil(np.ceil(some / self._tile_m) / each) * each

        return np.where(self._parity, padded((rows + 1) // 2) + padded(rows // 2), padded(rows))

    def _sharing(
        self,
        problem: Problem,
        high: np.ndarray,
        wide: np.ndarray,
        splits: np.ndarray,
        rounds: np.ndarray,
        steps: np.ndarray,
        floor: float,
    ) -> list[np.ndarray]:
        """What clusters, edges and sectors make of traffic and waves: a cluster fetches once what its blocks share, a
        box ends where the matrix does, rows that cross sectors cost more, and few large clusters run at once."""
        m, n, k = problem.m, problem.n, problem.k
        log, ceil, width, tile = np.log2, np.ceil, self._width, self._tile_m * self._width
        sectors, lines = np.where(self._parity, 1, 1.25 if k % SECTOR else 1), 2 if k % LINE else 1
        high_each, wide_each = np.minimum(self._tile_m, m), np.minimum(width, n)
        shared = self._tile_m / self._cluster_n + width / self._cluster_m
        clipped = high_each / self._cluster_n + wide_each / self._cluster_m
        tiles = self._tiles_high(m, self._cluster_m) * ceil(wide / self._cluster_n) * self._cluster_n
        turns = tiles * splits / (self._at_once * self._blocks)
        # Of k, by all multiprocessors: in rounds of blocks, and in turns of clusters.
        in_rounds, in_turns = (ceil(one) * self._blocks * steps * self._step for one in (rounds, turns))
        fetch = 2 * UNITS / BANDWIDTH / floor
        sums = np.where(splits > 1, high * wide * splits * tile * 8, 0) / BANDWIDTH
        return [
            *(log(shared), log(high * wide * shared * k / (m * k + n * k + m * n)), log(shared * self._step * sectors)),
            *(log(fetch * in_rounds * shared * factor) for factor in (1, sectors, lines)),
            *(log(clipped), log(fetch * in_rounds * clipped * sectors), log(fetch * in_turns * clipped * sectors)),
            *(log(turns), np.minimum(ceil(turns), 12), turns / ceil(turns), tiles / (high * wide)),
            *(
                log(1 + sums / floor),
                log(in_turns * tile / FLOPS / floor),
                log(rounds * steps),
                log(steps / self._depth),
            ),
            log(np.minimum(tiles * splits, UNITS * self._blocks) * (high_each + wide_each) * self._step * self._depth),
        ]


def numbered(settings: Sequence[Setting]) -> dict[str, dict[str, int]]:
    """The codes of what occurs in these settings."""
    values: dict[str, set[str]] = defaultdict(set)
    for one in settings:
        for name, value in named(one).items():
            values[name].add(value)
    return {
        name: {value: code for code, value in enumerate(sorted(found), 1)} for name, found in sorted(values.items())
    }


def named(setting: Setting) -> dict[str, str]:
    """The family and the knobs that are words; a style does not change the speed."""
    family, knobs = setting
    return {"family": family} | {name: v for name, v in knobs.items() if isinstance(v, str) and name != "style"}
