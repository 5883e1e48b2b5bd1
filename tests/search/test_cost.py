"""A model of speed orders settings on shapes that it never saw, and leaves alone what was never measured."""

import random
import sys

import msgspec
import numpy as np
import pytest

from cudal2 import arch, cli, corpus
from cudal2.config import SearchConfig, SearchMethodConfig
from cudal2.problem import grid, parse
from cudal2.records import to_json
from cudal2.search import cost, prior
from cudal2.search.cost import Measured, Row
from cudal2.search.proposer import Setting
from cudal2.search.settings import draw
from cudal2.split import unseen
from cudal2.target import find

DEVICE = "NVIDIA H200, 132 multiprocessors"
UNITS = 132
FAMILIES = {family.name: family for family in corpus.families(find("sm_90a"))}
HERE = next(problem for problem in grid() if problem.mnk == "2048_2048_2048")


@pytest.fixture
def forget():
    """Nothing that another test fitted is kept."""
    yield
    cost._measured.cache_clear()
    cost._fitted.cache_clear()


def drawn(count: int, *names: str) -> list[Setting]:
    rng = random.Random(0)
    found = [draw(HERE, FAMILIES[names[place % len(names)]], rng) for place in range(count)]
    return [setting for setting in found if setting]


def truth(row: Row) -> float:
    """A landscape: waves that are full, little traffic, and one family that is slower than its tiles say."""
    facts = cost.facts(row, UNITS)
    slow = row.setting.family == "stream_k"
    return 0.5 * np.log(facts["filled"]) - 0.1 * facts["traffic"] - 0.2 * slow


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values))


@pytest.mark.parts
def test_what_was_fitted_on_some_shapes_orders_settings_on_others():
    settings, shapes = drawn(40, "warp_specialised", "stream_k"), grid()[::12]
    seen = [Row(problem, setting, "H200") for problem in shapes[::2] for setting in settings]
    model = cost.fit([msgspec.structs.replace(row, speed=truth(row)) for row in seen], UNITS)
    found = []
    for problem in shapes[1::2]:
        rows = [Row(problem, setting, "H200") for setting in settings]
        found.append(np.corrcoef(ranks(model.speeds(rows)), ranks(np.array([truth(row) for row in rows])))[0, 1])
    assert np.mean(found) > 0.8


@pytest.mark.parts
def test_a_search_begins_with_the_same_settings_in_another_order(forget):
    families = [family for family in FAMILIES.values() if corpus.applies(family, HERE)]
    orders = {}
    for order in ("nearest", "cost"):
        config = SearchConfig(run="here", target="sm_90a", search=SearchMethodConfig(order=order))
        orders[order] = [to_json(one) for one in prior.start(config, DEVICE, HERE, families, random.Random(0))]
    assert sorted(orders["nearest"]) == sorted(orders["cost"]) and orders["nearest"] != orders["cost"]
    assert prior.known_settings("sm_90a", HERE, families) == [
        msgspec.json.decode(one, type=Setting) for one in orders["nearest"]
    ]


@pytest.mark.parts
def test_families_that_were_never_measured_come_last(forget):
    new = Setting("decode", {name: values[0] for name, values in FAMILIES["decode"].knobs.items()})
    assert cost.order("sm_90a", DEVICE, HERE, [new, *drawn(4, "warp_specialised")])[-1] == new


@pytest.mark.parametrize(
    ("target", "device", "name"),
    [
        ("cpu", DEVICE, "2048_2048_2048"),
        ("sm_90a", "NVIDIA TITAN X", "2048_2048_2048"),
        ("sm_90a", DEVICE, "2048_2048_2048_nn_f32"),
        ("sm_90a", DEVICE, "2048_2048_2048_tn_f32_bf16"),
        ("sm_90a", DEVICE, "8_4096_4096"),
    ],
)
def test_what_was_never_measured_is_left_in_its_order(target, device, name, monkeypatch, forget):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)  # it is not even asked for
    settings = drawn(6, "warp_specialised", "stream_k")
    assert cost.order(target, device, parse(name), settings) == settings


def test_a_missing_library_is_one_line_that_says_what_to_install(monkeypatch, forget):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError) as raised:
        cost.order("sm_90a", DEVICE, HERE, drawn(2, "warp_specialised"))
    said = cli.extra(raised.value)
    assert said.endswith('pip install "cudal2[cost]"') and "\n" not in said


def test_an_order_without_known_settings_is_refused():
    with pytest.raises(ValueError, match="prior=known"):
        SearchMethodConfig(order="cost", prior="none")


def test_nothing_is_learnt_of_shapes_that_results_are_reported_on(forget):
    every = cost.read(cost.shipped("sm_90a"))
    assert any(unseen(row.problem) for row in every)
    assert not any(unseen(row.problem) for row in cost._measured("sm_90a"))
    assert len(cost._measured("sm_90a")) > len(every) / 2


def test_what_ships_is_of_families_and_devices_that_are_known():
    rows = cost.read(cost.shipped("sm_90a"))
    assert {row.setting.family for row in rows} <= set(FAMILIES) and {row.device for row in rows} <= set(arch.STATED)
    assert all(row.setting.knobs.keys() == FAMILIES[row.setting.family].knobs.keys() for row in rows)


def test_facts_are_finite_and_tell_a_full_wave_from_an_empty_one(tmp_path):
    setting = drawn(1, "warp_specialised")[0]
    tiles = msgspec.structs.replace(setting, knobs=setting.knobs | {"tile_m": 128, "tile_n": 128, "blocks": 1})
    full = cost.facts(Row(parse("1408_1536_512"), tiles, "H200"), UNITS)  # 132 tiles
    over = cost.facts(Row(parse("1408_1664_512"), tiles, "H200"), UNITS)  # 143
    assert full["filled"] == 1 and full["rounds"] == 1 and over["filled"] < 0.6 and over["rounds"] == 2
    assert full["padding"] == 0 and over["busy"] > full["busy"]
    path = tmp_path / "some.jsonl"
    path.write_text(to_json(Measured("warp_specialised", tiles.knobs, {"H200": {"64_64_64": 2.0}})) + "\n")
    assert [(row.problem.mnk, row.speed) for row in cost.read(path)] == [("64_64_64", pytest.approx(np.log(2)))]
    assert cost.read(tmp_path / "none.jsonl") == []
