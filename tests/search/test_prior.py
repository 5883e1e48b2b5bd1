"""Known settings reach the first generation, nearest shapes or what the cost model likes first, and never one that does
not render."""

import json
import random

import msgspec
import numpy as np
import pytest
from landscape import BEST, FAMILIES

from cudal2 import corpus, cost_model
from cudal2.config import SearchConfig, SearchMethodConfig
from cudal2.files import asset
from cudal2.problem import parse
from cudal2.records import to_json
from cudal2.search import known, prior
from cudal2.search.known import shipped_settings
from cudal2.search.prior import ENOUGH, NEAREST
from cudal2.search.proposer import Setting
from cudal2.target import find

HERE, LARGE = parse("256_256_256"), parse("2048_2048_1536")
KNOBS = BEST | {"accumulate": "f32", "style": "plain"}


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """Ship these for the target `cpu`: each a problem, and the knobs in which its setting differs from `KNOBS`."""

    def write(*settings):
        path = tmp_path / "settings" / "cpu.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as file:
            for problem, knobs in settings:
                setting = {"family": "good", "knobs": KNOBS | {k: v for k, v in knobs.items() if k != "layout"}}
                print(json.dumps({"problem": problem, "layout": knobs.get("layout", "tn")} | setting), file=file)
        shipped_settings.cache_clear()

    monkeypatch.setattr(known, "asset", lambda name: tmp_path)
    shipped_settings.cache_clear()
    yield write
    shipped_settings.cache_clear()


def stages(problem=HERE, among=FAMILIES) -> list:
    return [setting.knobs["stages"] for setting in prior.known_settings("cpu", problem, among)]


def test_the_best_of_each_shape_come_before_the_second_best(ship):
    ship(("2048_2048_2048", {"stages": 1}), ("2048_2048_2048", {"stages": 2}), ("256_256_512", {"stages": 3}))
    assert stages() == [3, 1, 2]
    assert stages(parse("2048_2048_1024")) == [1, 3, 2]


def test_the_shape_itself_is_the_nearest(ship):
    ship(("256_256_512", {"stages": 1}), ("256_256_256", {"stages": 2}))
    assert stages() == [2, 1]


def test_shapes_whose_rows_are_as_aligned_lend_first(ship):
    """Rows of K = 520 are no whole sectors: what is fast there is another setting than where they are."""
    ship(("256_256_512", {"stages": 1}), ("256_256_1032", {"stages": 2}))
    assert stages(parse("256_256_520")) == [2, 1]
    assert stages(parse("256_256_528")) == [1, 2]


DISTINCT = [{"tile_k": tile, "stages": number} for tile in (32, 64) for number in range(1, 7)]


def lent(problem=HERE) -> list[dict]:
    return [setting.knobs for setting in prior.known_settings("cpu", problem, FAMILIES)]


def test_only_the_nearest_shapes_that_have_anything_lend(ship):
    useless = [(f"256_256_{256 + 16 * number}", {"stages": 7}) for number in range(NEAREST)]
    shapes = [f"512_512_{512 + 16 * number}" for number in range(NEAREST)]
    best, second = ([knobs | {"tile_n": width} for knobs in DISTINCT[:NEAREST]] for width in (128, 64))
    ship(*useless, *zip(shapes * 2, best + second), ("2048_2048_2048", {"tile_n": 32}))
    assert lent() == [KNOBS | knobs for knobs in best + second]


def test_farther_shapes_lend_until_there_are_enough_distinct_settings(ship):
    """Each once: near shapes of few rows share theirs, and what a search tries beyond them is drawn at random."""
    same = [(f"256_256_{256 + 16 * number}", {"stages": 6}) for number in range(2 * NEAREST)]
    far = [("2048_2048_2048", {"stages": 5}), ("4096_4096_4096", {"stages": 4}), ("4096_4096_4096", {"stages": 6})]
    ship(*same, (same[0][0], {"stages": 3}), *far)
    assert stages() == [6, 3, 5, 4], "all there are, behind what the nearest have"
    other = [knobs | {"raster": raster} for raster in ("row", "column") for knobs in DISTINCT]
    ship(*same, *((f"2048_2048_{2048 + 16 * number}", knobs) for number, knobs in enumerate(other)))
    assert lent() == [KNOBS | knobs for knobs in ({"stages": 6}, *other[: ENOUGH - 1])]


def test_what_no_longer_renders_is_passed_over(ship):
    good = ("512_256_256", {"stages": 5})
    for gone in ({"stages": 7}, {"gone": 1}, {"tile_m": 256, "tile_n": 256}, {"accumulate": "f16"}):
        ship(("256_256_256", gone), good)
        assert stages() == [5]
    assert stages(among=FAMILIES[1:]) == [], "that family is not searched"


def test_layouts_keep_apart_and_accumulators_do_not(ship):
    ship(("256_256_256", {"stages": 1, "accumulate": "f16"}), ("256_256_256", {"stages": 2}))
    assert stages(parse("256_256_256_tn_f16")) == [1, 2]
    assert stages() == [2]
    other = parse("256_256_256_nn_f32")
    assert stages(other) == [2], "nothing is known of its layout"
    ship(("256_256_256", {"stages": 2}), ("512_512_512", {"stages": 3, "layout": "nn"}))
    assert stages(other) == [3] and stages() == [2]


def test_what_wastes_a_wave_comes_last_unless_it_did_so_where_it_was_found(ship, monkeypatch):
    monkeypatch.setattr(prior, "MULTIPROCESSORS", {"cpu": 16})
    whole = [msgspec.structs.replace(FAMILIES[0], whole_tiles=True)]
    tiles = {"tile_m": 64, "tile_n": 64}
    narrow = tiles | {"tile_n": 32}
    found, here = ("256_256_256", tiles | {"stages": 1}), parse("256_384_256")  # 16 tiles fill a wave, 24 half of two
    ship(found, ("256_256_256", narrow | {"stages": 2}), ("256_512_256", tiles | {"stages": 3}))
    assert stages(here, whole) == [2, 1], (
        "48 narrow tiles fill three waves; the second shape lends nothing, as all waste"
    )
    ship(found, ("256_384_256", tiles | {"stages": 4}))
    assert stages(here, whole) == [4], "found here, for all that it wastes"
    ship(found)
    assert stages(here, whole) == [1], "but where nothing else is known"


def test_what_differs_in_details_alone_comes_after_all_others():
    tiled = [Setting("tiled", {"tile_m": m, "tile_n": 64, "stages": stages}) for m in (64, 128) for stages in (3, 4)]
    plain = [Setting("plain", {"warps": warps}) for warps in (4, 8)]
    first, detail, second, another = tiled
    assert list(prior.varied([first, detail, plain[0], second, another, plain[1]])) == [
        *(first, plain[0], second, plain[1]),
        *(detail, another),
    ]


def test_the_cost_model_chooses_among_what_many_shapes_know():
    families = [family for family in corpus.families(find("sm_90a")) if corpus.applies(family, LARGE)]
    nearest = prior.known_settings("sm_90a", LARGE, families)
    liked = prior.liked_settings("sm_90a", LARGE, families)
    model = cost_model.shipped("sm_90a")
    pairs = [[(one.family, one.knobs) for one in some] for some in (liked, nearest)]
    speeds = [model.speeds(LARGE, some) for some in pairs]
    assert len(liked) == ENOUGH == len({to_json(one) for one in liked}) and (np.diff(speeds[0]) <= 0).all()
    assert speeds[0][:4].mean() > speeds[1][:4].mean() and speeds[0][0] >= speeds[1].max()  # later ones are varied
    others = [family for family in families if family.name != liked[0].family]
    assert {one.family for one in prior.liked_settings("sm_90a", LARGE, others)} <= {one.name for one in others}
    both = prior.alternating(liked, nearest)
    begin = {to_json(one): one for one in (liked[0], nearest[0], liked[1], nearest[1])}
    assert both[: len(begin)] == list(begin.values()) and len(both) > ENOUGH
    assert {to_json(one) for one in both} == {to_json(one) for one in [*liked, *nearest]}
    for order, first in (("cost", both), ("nearest", nearest)):
        config = SearchConfig(run="here", target="sm_90a", search=SearchMethodConfig(order=order))
        assert prior.start(config, "", LARGE, families, random.Random(0)) == first


def test_without_a_cost_model_the_nearest_come_first(ship):
    ship(("512_256_256", {"stages": 1}), ("256_256_256", {"stages": 2}))
    known = prior.known_settings("cpu", HERE, FAMILIES)
    assert prior.liked_settings("cpu", HERE, FAMILIES) == known == prior.alternating(known, known)


def test_no_file_is_no_error(ship):
    assert prior.known_settings("cpu", HERE, FAMILIES) == []


@pytest.mark.parametrize("path", sorted(asset("data").glob("settings/*.jsonl")), ids=lambda path: path.stem)
def test_what_ships_is_of_use(path):
    """On the very shapes that it is of, whatever has become of some settings since."""
    among = corpus.families(find(path.stem))
    shipped = shipped_settings(path.stem)
    assert shipped
    for problem in list(shipped)[:20]:
        able = [family for family in among if problem.layout in family.layouts]
        assert prior.known_settings(path.stem, problem, able)
