"""The sm_90a families are right in an emulation of the block.

The emulation (`hopper.py`) runs the rendered source itself, inline PTX and all, on shapes of a few tiles.
"""

import random
import re

import msgspec
import pytest
from families import hopper
from families.contract import some_settings
from families.sm_90a import each_raw_family, family, setting, some_raw_families
from thorough import THOROUGH, count

from cudal2 import corpus
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem

ROWS = (1, 2, 3, 7, 17, 100)


@pytest.mark.sampled(5)
@each_raw_family
def test_sources_are_correct_on_shapes_of_any_multiple_of_eight(family: Family, layout: Layout) -> None:
    rng = random.Random(f"shapes {family.name} {layout}")
    (knobs,) = some_settings(family, layout, 1, seed=3)
    library = hopper.build(corpus.render(family, knobs, layout))
    for shape in (shape_of_some_tiles(rng, knobs), (8, 8, 8), (rng.choice(ROWS), 72, 40)):
        problem = Problem(*shape, layout)
        assert hopper.run(library, problem, seed=rng.randint(0, 999), processors=rng.randint(1, 6)) == "", (
            shape,
            knobs,
        )


@pytest.mark.sampled(5)
@each_raw_family
def test_types_and_epilogues_on_any_rows(family: Family, layout: Layout) -> None:
    rng = random.Random(f"types {family.name} {layout}")
    like = Problem(7, 8, 8, layout, "f32", "bf16", rng.choice(("bias", "bias_gelu")))
    knobs = corpus.allowed(family, like, "f32", rng)
    assert knobs is not None
    library = hopper.build(corpus.render(family, knobs, like))
    for m in (rng.choice(ROWS), rng.randint(1, 2 * int(knobs["tile_m"]))):
        _, n, k = shape_of_some_tiles(rng, knobs)
        problem = msgspec.structs.replace(like, m=m, n=n, k=k)
        assert hopper.run(library, problem, rng.randint(0, 999), rng.randint(1, 6)) == "", (problem.name, knobs)


@pytest.mark.slow
@some_raw_families
def test_many_settings_are_correct(family: Family, layout: Layout) -> None:
    rng = random.Random(f"many {family.name} {layout}")
    for number, like in enumerate(corpus.forms(family)):
        if like.layout != layout or like.m % 8:
            continue
        for knobs in some_settings(family, layout, count(10 if number < 4 else 4, 1), seed=4):
            if corpus.refusal(family, knobs, like):
                continue
            library = hopper.build(corpus.render(family, knobs, like))
            for _ in range(3):
                m, n, k = shape_of_some_tiles(rng, knobs)
                problem = msgspec.structs.replace(like, m=m - rng.randint(0, 7), n=n, k=k)
                assert hopper.run(library, problem, rng.randint(0, 999), rng.randint(1, 6)) == "", (problem.name, knobs)


def shape_of_some_tiles(rng: random.Random, knobs: Knobs) -> tuple[int, int, int]:
    m, n = int(knobs["tile_m"]), int(knobs["tile_n"]) * int(knobs.get("side", 1))
    return tuple(8 * rng.randint(1, most // 8) for most in (3 * m, 3 * n, 480))


@pytest.mark.parametrize(
    "knobs",
    [
        {"order": "splits", "splits": 4, "tile_m": 128},
        {"order": "tiles", "splits": 3, "tile_n": 32},
        {"order": "tiles", "splits": 2, "consumers": 2, "tile_m": 128, "raster": "columns 4"},
    ],
    ids=lambda knobs: " ".join(map(str, knobs.values())),
)
def test_all_blocks_of_a_tile_add_up_their_share(knobs: Knobs) -> None:
    """Where they all get to run, and where they must do without a split because they would not."""
    member = family("split_k")
    small = {"tile_m": 64, "tile_n": 64, "stages": 2, "consumers": 1, "reduce": "all"}
    library = hopper.build(corpus.render(member, setting(member, **small | knobs), "tn"))
    for seed, (shape, processors) in enumerate([((136, 72, 456), 32), ((136, 72, 456), 5), ((200, 24, 72), 32)]):
        assert hopper.run(library, Problem(*shape, "tn"), seed, processors) == "", (shape, processors)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "knobs",
    [
        {"schedule": "staggered", "epilogue": "tma boxes", "cluster": "2x1"},
        {"schedule": "staggered", "epilogue": "staged", "cluster": "1x1", "in_flight": 0},
        {"schedule": "ping-pong", "epilogue": "tma boxes", "cluster": "1x2"},
    ],
    ids=["staggered", "staggered, nothing in flight", "ping-pong"],
)
def test_two_warpgroups_that_store_at_different_times(knobs: Knobs) -> None:
    """Also where all of k is shorter than the lead of one of them."""
    member = family("warp_specialised")
    library = hopper.build(corpus.render(member, setting(member, tile_n=64, **knobs), "tn"))
    for seed, (shape, processors) in enumerate([((8, 8, 8), 2), ((520, 264, 320), 2), ((648, 200, 128), 5)]):
        assert hopper.run(library, Problem(*shape, "tn"), seed, processors) == "", (shape, processors)


@pytest.mark.parametrize("tiles", ["last wave shared", "two waves shared"])
def test_stream_k_with_fewer_steps_to_share_than_blocks(tiles: str) -> None:
    """A block whose share would be empty must not be waited for."""
    member = family("stream_k")
    knobs = setting(member, tile_n=64, stages=2, least=4, tiles=tiles)
    library = hopper.build(corpus.render(member, knobs, "tn"))
    for seed, (shape, processors) in enumerate([((896, 64, 128), 6), ((1152, 64, 256), 8), ((640, 128, 72), 9)]):
        assert hopper.run(library, Problem(*shape, "tn"), seed, processors) == "", (shape, processors)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("layout", "knobs"),
    [
        ("tn", {"k_resident": 64, "schedule": "ping-pong"}),
        ("nn", {"k_resident": 128, "schedule": "free", "boxes": "warp", "stages": 2}),
        ("tn", {"k_resident": 256, "schedule": "ping-pong", "tile_m": 256, "buffers": 4}),
    ],
    ids=["one slab", "free", "four slabs"],
)
def test_a_panel_of_b_stays_or_streams(layout: Layout, knobs: Knobs) -> None:
    """K up to and beyond what stays; few enough blocks that one walks from panel to panel, mid-panel to mid-panel."""
    member = family("resident")
    library = hopper.build(corpus.render(member, setting(member, **{"tile_n": 64} | knobs), layout))
    seed = 0
    for shape in ((8, 8, 8), (72, 136, 72), (200, 136, 320), (8, 328, 128), (648, 200, 64), (520, 264, 136)):
        for processors in (1, 2, 5):
            seed += 1
            assert hopper.run(library, Problem(*shape, layout), seed, processors) == "", (shape, processors)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "layout", "knobs"),
    [
        # Whole eights: as many for each block, and more for the first.
        ("small_cluster", "nn", {"tile_n": 32, "splits": 4}),
        ("small_cluster", "tn", {"tile_n": 64, "splits": 3, "load": "cp.async"}),
        # Warps' pieces of eights: one for each block, uneven, and none for some.
        ("small_cluster", "tn", {"tile_n": 32, "splits": 16}),
        ("small_cluster", "nn", {"tile_m": 128, "tile_n": 32, "splits": 5}),
        ("small_cluster", "nn", {"tile_n": 16, "splits": 12, "load": "cp.async"}),
        ("split_k", "nn", {"tile_n": 64, "splits": 3}),
        ("split_k", "tn", {"tile_n": 64, "splits": 2, "tile_m": 256, "producer": "warpgroup"}),
        ("split_k", "tn", {"tile_n": 64, "splits": 5, "tile_m": 64, "consumers": 1}),
        ("split_k", "nn", {"tile_n": 64, "splits": 3, "cluster": "2x1"}),
        ("split_k", "tn", {"tile_n": 64, "splits": 2, "cluster": "1x4", "style": "terse"}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.values())),
)
def test_blocks_push_their_sums_to_whoever_owns_them(name: str, layout: Layout, knobs: Knobs) -> None:
    """Also with fewer steps of k than blocks, and with tiles beyond the edges of C."""
    member = family(name)
    library = hopper.build(corpus.render(member, setting(member, stages=2, **knobs), layout))
    for seed, shape in enumerate([(8, 8, 8), (136, 72, 1096), (264, 136, 200)]):
        problem = Problem(*shape, layout)
        assert hopper.run(library, problem, seed, processors=1 + seed) == "", shape


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"tile_n": 48, "deal": "parts", "depth": 2, "style": "tutor"},
        {"tile_m": 24, "splits": 4, "load": "registers", "warps": 4},
        {"tile_m": 16, "tile_n": 32, "splits": 8, "hint": "evict first"},
        {"work": "shares", "depth": 2},
        {"work": "shares", "load": "registers", "deal": "parts", "warps": 4, "blocks": 2, "style": "terse"},
        {"work": "shares", "tile_m": 32, "tile_n": 32, "blocks": 2, "warps": 4},
    ],
    ids=lambda knobs: " ".join(map(str, knobs.values())) or "first",
)
def test_weights_stream_past_few_rows(knobs: Knobs) -> None:
    """K shorter than a step, than a round of the warps, and longer; with more shares than tiles, and fewer; blocks that
    start only when others have ended."""
    member = family("decode")
    library = hopper.build(corpus.render(member, setting(member, **knobs), "tn"))
    shapes = [(8, 8, 8), (8, 72, 40), (16, 136, 1096), (24, 40, 2312), (8, 328, 264), (72, 56, 136)]
    for seed, shape in enumerate(shapes):
        for processors in (1, 3, 13):
            assert hopper.run(library, Problem(*shape, "tn"), seed, processors) == "", (shape, processors)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"tile_m": 16, "warps": 12, "side": 3, "depth": 8, "style": "tutor"},
        {"splits": 4, "side": 2, "warps": 16},
        {"share": 4, "blocks": 2, "side": 8},
        {"tile_m": 16, "share": 2, "tile_n": 32, "style": "terse"},
    ],
    ids=lambda knobs: " ".join(map(str, knobs.values())) or "first",
)
def test_few_rows_stay_while_weights_stream_past(knobs: Knobs) -> None:
    """K shorter than a step, and than a step a block; blocks with many tiles, one and none; more rows than a tile."""
    member = family("stationary")
    library = hopper.build(corpus.render(member, setting(member, **knobs), "tn"))
    shapes = [(8, 8, 8), (8, 72, 40), (16, 136, 1096), (24, 40, 616), (8, 648, 264), (72, 56, 136)]
    for seed, (shape, few) in enumerate(zip(shapes, (1, 3, 13, 13, 3, 1), strict=True)):
        for processors in (1, 3, 13) if THOROUGH else (few,):
            assert hopper.run(library, Problem(*shape, "tn"), seed, processors) == "", (shape, processors)


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{}, {"splits": 2}, {"share": 2}], ids=["alone", "splits", "share"])
def test_more_rows_than_stay_come_piece_by_piece(knobs: Knobs) -> None:
    """Whatever stays: two pieces of A, or a last one of less than a step, for blocks with several tiles."""
    member = family("stationary")
    source = corpus.render(member, setting(member, tile_m=16, blocks=2, **knobs), "tn")
    held = 32 * int(re.search(r"HELD = (\d+)", source).group(1)) * int(knobs.get("splits", 1))  # type: ignore[union-attr]
    library = hopper.build(source)
    for seed, shape in enumerate([(16, 72, held), (16, 72, held + 8), (9, 40, 2 * held + 72)]):
        for processors in (1, 2):
            assert hopper.run(library, Problem(*shape, "tn"), seed, processors) == "", (shape, processors)


@pytest.mark.parametrize("cluster", ["1x1", "1x2"])
def test_rows_of_one_parity_are_fetched_in_whole_sectors(cluster: str) -> None:
    """K is 8 more than a multiple of 16, so every second row of B begins in the middle of a sector, and none of A's."""
    tile: Knobs = {"tile_m": 64, "tile_n": 64, "schedule": "ping-pong", "cluster": cluster}
    m, n, k = 200, 64 * int(cluster[2]), 72  # two tiles of each parity, two steps
    library = hopper.build(corpus.render(family("by_parity"), setting(family("by_parity"), **tile), "tn"))
    assert hopper.run(library, Problem(m, n, k), 0, 2) == ""
    assert library.emulator_astray() == 4 * 2 * n // 2
    whole = {"consumers": 2, "step": 64, "producer": "warpgroup", "stages": "fit"} | tile
    member = family("warp_specialised")
    usual = hopper.build(corpus.render(member, setting(member, **whole, epilogue="tma boxes"), "tn"))
    assert hopper.run(usual, Problem(m, n, k), 0, 2) == ""
    assert usual.emulator_astray() == 2 * library.emulator_astray()  # every second of A's 64 rows, and of B's
