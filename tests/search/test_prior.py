"""Known settings reach the first generation, nearest shapes first, and never one that does not render; what a library
advises reaches the knobs of the families, as far as they go."""

import json
import random

import msgspec
import pytest
from landscape import BEST, FAMILIES, family

from cudal2 import corpus
from cudal2.corpus import Family
from cudal2.files import asset
from cudal2.problem import parse
from cudal2.search import prior
from cudal2.search.prior import ENOUGH, NEAREST
from cudal2.target import find


def test_advice_is_followed_as_far_as_the_knobs_go():
    able = family("good", splits=(1, 2, 4), cluster=("1x1", "2x1"), step=(32, 64))
    advice = {"cta_tile_m": 100, "cta_tile_n": 128, "cta_tile_k": 64, "stages": 9, "split_k": 5, "cluster": "2x1"}
    problem, rng = parse("256_256_256"), random.Random(0)
    other = Family(summary="", layouts=("tn",), knobs={"rows": (1, 2), "style": ("plain",)}, name="other")
    assert prior.follow([advice], problem, (other,), rng) == []
    (setting,) = prior.follow([advice], problem, (other, able), rng)
    wanted = {"tile_m": 128, "tile_n": 128, "step": 64, "stages": 6, "splits": 4, "cluster": "2x1"}
    assert wanted.items() <= setting.knobs.items()
    assert prior.follow([advice | {"cta_tile_m": 256, "cta_tile_n": 256}], problem, (able,), rng) == []


@pytest.mark.parametrize(
    ("device", "name"),
    [
        *[("NVIDIA H200", "H200_SXM"), ("NVIDIA H20", "H20_SXM"), ("NVIDIA H100 PCIe", "H100_PCIE")],
        *[("NVIDIA H100 80GB HBM3", "H100_SXM"), ("NVIDIA GeForce RTX 4090", "RTX_4090")],
    ],
)
def test_the_heuristics_know_a_gpu_by_its_driver_name(device, name):
    known = ["A100_SXM_80GB", "RTX_4090", "H100_SXM", "H100_PCIE", "H200_SXM", "H20_SXM"]
    assert prior._gpu(device, known) == name
    with pytest.raises(ValueError, match="TITAN"):
        prior._gpu("NVIDIA TITAN X", known)


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_nvidias_heuristics_advise_without_a_gpu(accumulate):
    pytest.importorskip("nvMatmulHeuristics", reason="nvMatmulHeuristics is not installed")
    advice = prior.advise(parse("4096_4096_512", "tn", accumulate), "NVIDIA H200", 4)
    assert 1 <= len(advice) <= 4
    for fields in advice:
        assert fields["cta_tile_m"] * fields["cta_tile_n"] >= 64 * 16 and "x" in fields["cluster"]


HERE = parse("256_256_256")
KNOBS = BEST | {"accumulate": "f32", "style": "plain"}


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """Ship these for the target `cpu`: each a problem, and the knobs in which its setting differs from `KNOBS`."""

    def write(*settings):
        path = tmp_path / "settings" / "cpu.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as file:
            for problem, knobs in settings:
                setting = {"family": "good", "knobs": KNOBS | knobs}
                print(json.dumps({"problem": problem, "layout": "tn"} | setting), file=file)
        prior._shipped.cache_clear()

    monkeypatch.setattr(prior, "asset", lambda name: tmp_path)
    prior._shipped.cache_clear()
    yield write
    prior._shipped.cache_clear()


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
    assert stages(parse("256_256_256_nn_f32")) == []


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


def test_no_file_is_no_error(ship):
    assert prior.known_settings("cpu", HERE, FAMILIES) == []


@pytest.mark.parametrize("path", sorted(asset("data").glob("settings/*.jsonl")), ids=lambda path: path.stem)
def test_what_ships_is_of_use(path):
    """On the very shapes that it is of, whatever has become of some settings since."""
    among = corpus.families(find(path.stem))
    shipped = prior._shipped(path.stem)
    assert shipped
    for problem in list(shipped)[:20]:
        able = [family for family in among if problem.layout in family.layouts]
        assert prior.known_settings(path.stem, problem, able)
