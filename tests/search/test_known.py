"""Known settings reach the first generation, nearest shapes first, and never one that does not render."""

import json

import msgspec
import pytest
from landscape import BEST, FAMILIES

from cudal2 import corpus
from cudal2.assets import asset
from cudal2.problem import parse
from cudal2.search import known
from cudal2.search.known import NEAREST
from cudal2.target import find

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
        known._shipped.cache_clear()

    monkeypatch.setattr(known, "asset", lambda name: tmp_path)
    known._shipped.cache_clear()
    yield write
    known._shipped.cache_clear()


def stages(problem=HERE, among=FAMILIES) -> list:
    return [setting.knobs["stages"] for setting in known.settings("cpu", problem, among)]


def test_the_best_of_each_shape_come_before_the_second_best(ship):
    ship(("2048_2048_2048", {"stages": 1}), ("2048_2048_2048", {"stages": 2}), ("256_256_512", {"stages": 3}))
    assert stages() == [3, 1, 2]
    assert stages(parse("2048_2048_1024")) == [1, 3, 2]


def test_the_shape_itself_is_the_nearest(ship):
    ship(("256_256_512", {"stages": 1}), ("256_256_256", {"stages": 2}))
    assert stages() == [2, 1]


def test_only_the_nearest_shapes_that_have_anything_lend(ship):
    useless = [(f"256_256_{256 + 8 * number}", {"stages": 7}) for number in range(NEAREST)]
    useful = [(f"512_512_{512 + 8 * number}", {"stages": 4}) for number in range(2 * NEAREST)]
    ship(*useless, *useful)
    assert stages() == [4] * NEAREST


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
    monkeypatch.setattr(known, "MULTIPROCESSORS", {"cpu": 16})
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
    assert known.settings("cpu", HERE, FAMILIES) == []


@pytest.mark.parametrize("path", sorted(asset("data").glob("settings/*.jsonl")), ids=lambda path: path.stem)
def test_what_ships_is_of_use(path):
    """On the very shapes that it is of, whatever has become of some settings since."""
    among = corpus.families(find(path.stem))
    shipped = known._shipped(path.stem)
    assert shipped
    for problem in list(shipped)[:20]:
        able = [family for family in among if problem.layout in family.layouts]
        assert known.settings(path.stem, problem, able)
