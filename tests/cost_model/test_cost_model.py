"""What ships ranks settings of today's families on shapes of all kinds, and knows what a full wave is."""

import random

import numpy as np
import pytest

from cudal2 import corpus, cost_model
from cudal2.cost_model.facts import PARITY, UNITS, Columns, numbered
from cudal2.problem import parse
from cudal2.search.known import shipped_settings
from cudal2.search.settings import draw
from cudal2.target import find

FAMILIES = {family.name: family for family in corpus.families(find("sm_90a"))}
HERE = parse("2048_2048_2048")


def drawn(name: str, count: int) -> list[cost_model.Setting]:
    rng = random.Random(name)
    found = (draw(HERE, FAMILIES[name], rng) for _ in range(count))
    return [(one.family, one.knobs) for one in found if one]


def test_it_knows_the_families_of_known_settings_and_has_a_figure_for_every_shape():
    model = cost_model.shipped("sm_90a")
    known = {one.family for some in shipped_settings("sm_90a").values() for one in some}
    assert model and all(map(model.knows, known)) and not model.knows("cute"), "which was never among the fastest"
    settings = [setting for name in FAMILIES for setting in drawn(name, 4)]
    for shape in ("1_64_64", "64_64_64", "65_8_24", "8192_8192_8192", "3_152064_8192", "16384_16384_16384_nn_f32"):
        speeds = model.speeds(parse(shape), settings)
        assert np.isfinite(speeds).all() and np.ptp(speeds) > 0


def test_it_tells_a_fast_setting_from_one_that_wastes_half_a_wave_and_from_a_tiny_tile():
    model = cost_model.shipped("sm_90a")
    family, knobs = "warp_specialised", drawn("warp_specialised", 1)[0][1]
    usual = knobs | {"tile_m": 128, "tile_n": 256, "step": 64, "stages": "fit", "consumers": 2, "cluster": "1x1"}
    usual |= {"schedule": "cooperative", "producer": "warp", "grid": "persistent", "blocks": 1, "accumulate": "f32"}
    tiny = usual | {"tile_m": 64, "tile_n": 16, "consumers": 1}
    large, small = model.speeds(parse("8192_8192_8192"), [(family, usual), (family, tiny)])
    assert large > small
    full, over = parse(f"{128 * 11}_{256 * 12}_4096"), parse("1536_3072_4096")
    assert UNITS == 11 * 12, "one wave of tiles, and 144 tiles, which take two"
    assert model.speeds(full, [(family, usual)])[0] > model.speeds(over, [(family, usual)])[0]
    across, down = (usual | {"cluster": cluster} for cluster in ("1x2", "2x1"))
    pairs = model.speeds(full, [(family, across), (family, down)])
    assert pairs[0] > pairs[1], "eleven rows of tiles are no whole pairs: the twelfth takes a second wave"


def test_it_knows_that_rows_of_each_parity_fill_clusters_of_their_own():
    model = cost_model.shipped("sm_90a")
    setting = {"tile_m": 128, "tile_n": 128, "schedule": "cooperative", "in_flight": 1, "accumulate": "f32"}
    wasteful, whole = (
        model.speeds(parse(f"{rows}_4096_4104"), [(PARITY, setting | {"cluster": "2x1", "raster": "rows 4"})])[0]
        for rows in (256, 512)
    )
    assert whole > wasteful + 0.2, "of 128 rows of a parity a pair of tiles leaves one empty"


def test_what_it_does_not_know_is_none_of_what_it_knows():
    codes = numbered([("one", {"load": "tma", "stages": 3, "style": "plain"}), ("two", {"load": "plain"})])
    assert codes == {"family": {"one": 1, "two": 2}, "load": {"plain": 1, "tma": 2}}
    facts = Columns([("three", {"load": "other", "stages": "fit"}), ("one", {"load": "tma"})], codes).facts(HERE)
    assert np.isfinite(facts).all() and facts[:, -2:].tolist() == [[0, 0], [1, 2]]


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_a_target_without_measurements_has_none(target):
    assert cost_model.shipped(target) is None
