"""The emulation of the sm_90a families sees faults: one at a time in sources that are right without it."""

import pytest
from families import hopper
from families.sm_90a import family, setting

from cudal2 import corpus
from cudal2.corpus import Knobs
from cudal2.problem import Problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "knobs", "found", "changed"),
    [
        # A stage goes back while products still read it.
        ("warp_specialised", {}, "wgmma_wait<1>();\n        if (step && tells) barrier_arrive(empty + 8 * last, lane);",
         "wgmma_wait<1>();\n        if (step < steps - 1 && tells) barrier_arrive(empty + 8 * stage, lane);"),
        # The other block of the cluster is not told.
        ("warp_specialised", {}, "const bool tells = lane < CLUSTER_M * CLUSTER_N &&",
         "const bool tells = lane == rank &&"),
        # 8 rows are not a KiB.
        ("warp_specialised", {}, "(uint64_t)(1024 >> 4) << 32", "(uint64_t)(512 >> 4) << 32"),
        ("warp_specialised", {}, "((c + lane / 16) ^ lane % 8)", "(c + lane / 16)"),
        ("warp_specialised", {}, 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', ""),
        ("stream_k", {}, "flags[block] = 0;", ""),
    ],
    ids=["early release", "deaf peer", "stride", "swizzle", "proxy fence", "flag"],
)  # fmt: skip
def test_the_emulation_sees_faults(name: str, knobs: Knobs, found: str, changed: str) -> None:
    source = corpus.render(family(name), setting(family(name), step=64, **knobs) | {"style": "plain"}, "tn")
    assert found in source
    library = hopper.build(source.replace(found, changed))
    problem = Problem(264, 520, 712, "tn")
    assert any(hopper.run(library, problem, seed, processors=1 + seed) for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "k", "found", "changed"),
    [
        # A panel is given back before its last rows have been multiplied.
        ({}, 128, "last = streaming || down == rows - 1;", "last = streaming || down == max(rows - 2, 0);"),
        # The next panel comes in before both warpgroups have let go.
        ({}, 128, "barrier_init(empty_b + 8 * s, 8)", "barrier_init(empty_b + 8 * s, 4)"),
        ({"schedule": "free"}, 320, "wgmma_wait<1>();\n                if (step &&", "if (step &&"),
        # Each warpgroup waits for the other's last product, which needs slabs that it holds itself.
        ({}, 320, "if (!streaming) asm", "asm"),
        # A buffer is filled again while it is still being sent.
        ({}, 128, 'if (sends) asm volatile("cp.async.bulk.wait_group.read 0;"', 'if (false) asm volatile(""'),
    ],
    ids=["early release", "one of two", "in flight", "turns while streaming", "buffer"],
)  # fmt: skip
def test_the_emulation_sees_faults_of_a_resident_panel(knobs: Knobs, k: int, found: str, changed: str) -> None:
    member = family("resident")
    small = {"tile_n": 128, "k_resident": 128, "style": "plain"}
    source = corpus.render(member, setting(member, **small | knobs), "tn")
    assert found in source
    library = hopper.build(source.replace(found, changed))
    assert any(hopper.run(library, Problem(520, 264, k, "tn"), seed, processors=1 + seed) for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "knobs", "found", "changed"),
    [
        ("small_cluster", {}, "barrier_wait(arrived, 0);", ""),
        ("small_cluster", {}, "* (SPLITS - 1) * UNIT_BYTES", "* (SPLITS - 2) * UNIT_BYTES"),
        ("small_cluster", {}, "* (SPLITS - 1) * UNIT_BYTES", "* SPLITS * UNIT_BYTES"),
        ("small_cluster", {"splits": 16, "tile_n": 8}, "(UNITS * split + SPLITS - 1) / SPLITS",
         "UNITS * split / SPLITS"),
        ("small_cluster", {}, "cluster_wait();\n    push_sums", "push_sums"),
        ("split_k", {}, "cluster_wait();\n        push_sums", "push_sums"),
        ("split_k", {"cluster": "2x1", "splits": 2}, "cluster_wait();\n    // Tiles", "// Tiles"),
        ("split_k", {}, "RING = STAGES * STAGE_BYTES + SUMS", "RING = STAGES * STAGE_BYTES"),
        ("split_k", {"cluster": "2x1", "reduce": "last"},
         "for (int left = STAGES; left > 0; --left) {\n                barrier_wait",
         "for (int left = 0; left > 0; --left) {\n                barrier_wait"),
    ],
    ids=["impatient", "too few bytes", "too many bytes", "whose", *["early push"] * 3, "no room", "early exit"],
)  # fmt: skip
def test_the_emulation_sees_faults_of_pushed_sums(name: str, knobs: Knobs, found: str, changed: str) -> None:
    member = family(name)
    small = {"tile_n": 64, "stages": 2, "style": "plain"}
    source = corpus.render(member, setting(member, **small | knobs), "tn")
    assert found in source
    library = hopper.build(source.replace(found, changed))
    shapes = [(264, 136, 64), (264, 136, 1096)]
    assert any(hopper.run(library, Problem(*shape, "tn"), seed, 1 + seed % 3) for seed in range(8) for shape in shapes)


SHARES: Knobs = {"work": "shares", "warps": 4, "depth": 2, "blocks": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "found", "changed"),
    [
        ({}, '"n"(DEPTH - 1)', '"n"(DEPTH)'),
        ({}, "(first + warp * DEPTH) * 32", "(first + warp) * 32"),
        ({}, "p.upto = min(last * 32, K)", "p.upto = last * 32"),
        ({"load": "registers"}, "top.x, low.x, top.y, low.y", "top.x, top.y, low.x, low.y"),
        ({"load": "registers"}, "__syncthreads();", ""),
        ({"splits": 4}, "split ? 0 : (SPLITS - 1) * PART", "split ? 0 : (SPLITS - 2) * PART"),
        ({"splits": 4}, "cluster_wait();\n    for", "for"),
        ({"splits": 4}, "barrier_wait(arrived, 0);", ""),
        (SHARES, "share = gridDim.x - 1 - blockIdx.x", "share = blockIdx.x"),
        (SHARES, "flags[share + o] = 0;", ""),
        (SHARES, "while (!there);", "while (false);"),
        (SHARES, "gridDim.x < top) ++others", "gridDim.x <= top) ++others"),
    ],
    ids=[
        *("impatient", "warps overlap", "beyond k", "rows swapped", "no barrier", "too few bytes", "early push"),
        *("does not wait", "waits for later blocks", "flags stay", "does not wait for parts", "waits for nobody"),
    ],
)
def test_the_emulation_sees_faults_of_streamed_weights(knobs: Knobs, found: str, changed: str) -> None:
    source = corpus.render(family("decode"), setting(family("decode"), **knobs), "tn")
    assert found in source
    library = hopper.build(source.replace(found, changed))
    shapes = [(8, 72, 2344), (24, 136, 200), (8, 8, 2344)]
    assert any(hopper.run(library, Problem(*shape, "tn"), seed, 1 + 2 * seed) for seed in range(4) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "k", "found", "changed"),
    [
        ({}, 264, "    barrier_wait(full, 0);\n", ""),
        ({}, 264, "more < (last - first) * 64", "more < bytes"),
        ({}, 264, "here + u * 32 < upto", "true"),
        ({}, 264, "leave(acc, table + turn * SUMS);\n            __syncthreads();", "leave(acc, table + turn * SUMS);"),
        ({}, 9000, "barrier_wait(full, phase ^= 1);", ""),
        ({"share": 2}, 264, "r % SHARE == blockIdx.x % SHARE", "r % SHARE == 0"),
        ({"share": 2}, 9000, "K, false);", "K, true);"),
        ({"splits": 4}, 264, "split ? 0 : (SPLITS - 1) * PART", "split ? 0 : (SPLITS - 2) * PART"),
        ({"splits": 4}, 264, "cluster_wait();\n    for", "for"),
        ({"splits": 4}, 264, "barrier_wait(arrived, 0);", ""),
    ],
    ids=[
        *("impatient", "no zeros beyond k", "beyond k", "no barrier", "piece not awaited"),
        *("a row is missing", "pieces together", "too few bytes", "early push", "does not wait"),
    ],
)
def test_the_emulation_sees_faults_of_rows_that_stay(knobs: Knobs, k: int, found: str, changed: str) -> None:
    """Not that a table or a piece of A is written too early, for a thread runs here until it waits: racecheck does."""
    source = corpus.render(family("stationary"), setting(family("stationary"), tile_m=16, blocks=2, **knobs), "tn")
    assert found in source
    library = hopper.build(source.replace(found, changed))
    shapes = [(16, 136, k), (7, 520, k)]
    assert any(hopper.run(library, Problem(*shape, "tn"), seed, 1 + 2 * seed) for seed in range(4) for shape in shapes)
