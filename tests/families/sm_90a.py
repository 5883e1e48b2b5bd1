"""The sm_90a families, and a setting of each to begin with."""

import pytest
from thorough import some

from cudal2 import corpus
from cudal2.corpus import Family, Knobs
from cudal2.target import find

SM_90A = find("sm_90a")
FAMILIES = [family for family in corpus.families(SM_90A) if family.folder == "sm_90a"]
CASES = [(family, layout) for family in FAMILIES for layout in family.layouts]
each_family = pytest.mark.parametrize(("family", "layout"), CASES, ids=[f"{f.name}-{layout}" for f, layout in CASES])
RAW = [(family, layout) for family, layout in CASES if family.name != "cute_wgmma"]
each_raw_family, some_raw_families = (
    pytest.mark.parametrize(("family", "layout"), cases, ids=[f"{f.name}-{layout}" for f, layout in cases])
    for cases in (RAW, some(RAW, 3))
)

BEST_GUESS: dict[str, Knobs] = {
    "warp_specialised": {"tile_m": 128, "tile_n": 256, "consumers": 2, "producer": "warpgroup", "cluster": "2x1"}
    | {"raster": "rows 8", "epilogue": "tma", "in_flight": 1},
    "split_k": {"tile_m": 128, "tile_n": 128, "consumers": 2, "stages": 4, "splits": 4, "raster": "rows 8"},
    "stream_k": {"tile_m": 128, "tile_n": 128, "consumers": 2, "stages": 5, "tiles": "two waves shared"},
    "store_bound": {"tile_m": 128, "tile_n": 128, "step": 128, "groups": 2, "blocks": 2},
    "resident": {"tile_m": 128, "tile_n": 256, "k_resident": 256, "stages": 4},
    "small_cluster": {"tile_n": 32, "splits": 4, "stages": 2},
    "cute_wgmma": {},
    "decode": {},
    "stationary": {},
    "by_parity": {"tile_m": 128, "tile_n": 256, "cluster": "2x1"},
    "swap_ab": {"tile_m": 144, "tile_n": 128, "cluster": "1x2", "raster": "column"},
    "swap_ab_stream_k": {"tile_m": 144, "tile_n": 128, "consumers": 2},
    "swap_ab_split_k": {"tile_m": 144, "tile_n": 128, "consumers": 2, "splits": 4},
}
"""What one would try first, over the first value of every other knob."""


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def setting(family: Family, **knobs: int | str) -> Knobs:
    return {knob: values[0] for knob, values in family.knobs.items()} | BEST_GUESS.get(family.name, {}) | knobs
