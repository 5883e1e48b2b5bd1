"""Facts of kernels for few rows, beside those of the model: tried, not in fitted.py (README.md)."""

import math

import fitted
from fitted import Row


def facts_of_rows(one: Row, multiprocessors: int, facts=fitted.facts) -> dict[str, float]:
    """Those of the model, and what counts where B is read once: its columns by blocks, and the bytes on the way."""
    found, knobs, (n, k) = facts(one, multiprocessors), one.setting.knobs, (one.problem.n, one.problem.k)
    tile_n, warps, splits = (2 ** found[name] for name in ("tile_n", "warps", "splits"))
    side = int(knobs.get("side", 0))
    width, slots = tile_n * max(1, side), multiprocessors * found["blocks"]
    waves = math.ceil(n / width) * math.ceil(one.problem.m / 2 ** found["tile_m"]) * splits / slots
    depth = found["stages"] if found["stages"] > 0 else 4
    return found | {
        "side": side,
        "copies": copies if isinstance(copies := knobs.get("share"), int) else 1,
        "width": math.log2(width),
        "column waves": math.log2(waves),
        "columns filled": waves / math.ceil(waves),
        "column rounds": math.ceil(waves),
        "k of a warp": math.log2(k * side / splits / warps) if side else math.nan,
        "on the way": math.log2(warps * found["blocks"] * tile_n * depth),
        "share of B": math.log2(math.ceil(waves) * slots * width / splits / n),
    }
