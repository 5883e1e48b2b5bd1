"""The sm_90a families: within the contract, compiled to Hopper's instructions, right in an emulation of the block.

The emulation (`hopper.py`) runs the rendered source itself, inline PTX and all, on shapes of a few tiles.
"""

import ctypes
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from families import hopper
from families.contract import check_knobs, check_sources, some_settings

from cudal2 import corpus
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem
from cudal2.target import find
from cudal2.worker.cuda.compile import toolchain

SM_90A = find("sm_90a")
FAMILIES = [family for family in corpus.families(SM_90A) if family.folder == "sm_90a"]
CASES = [(family, layout) for family in FAMILIES for layout in family.layouts]
each_family = pytest.mark.parametrize(("family", "layout"), CASES, ids=[f"{f.name}-{layout}" for f, layout in CASES])
RAW = [(family, layout) for family, layout in CASES if family.name != "cute_wgmma"]
each_raw_family = pytest.mark.parametrize(("family", "layout"), RAW, ids=[f"{f.name}-{layout}" for f, layout in RAW])
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

BEST_GUESS: dict[str, Knobs] = {
    "warp_specialised": {"tile_m": 128, "tile_n": 256, "consumers": 2, "producer": "warpgroup", "cluster": "2x1"}
    | {"raster": "rows 8", "epilogue": "tma", "in_flight": 1},
    "split_k": {"tile_m": 128, "tile_n": 128, "consumers": 2, "stages": 4, "splits": 4, "raster": "rows 8"},
    "stream_k": {"tile_m": 128, "tile_n": 128, "consumers": 2, "stages": 5, "tiles": "two waves shared"},
    "store_bound": {"tile_m": 128, "tile_n": 128, "step": 128, "groups": 2, "blocks": 2},
    "resident": {"tile_m": 128, "tile_n": 256, "k_resident": 256, "stages": 4},
    "small_cluster": {"tile_n": 32, "splits": 4, "stages": 2},
    "cute_wgmma": {},
}
"""What one would try first, over the first value of every other knob."""


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def setting(family: Family, **knobs: int | str) -> Knobs:
    return {knob: values[0] for knob, values in family.knobs.items()} | BEST_GUESS.get(family.name, {}) | knobs


def test_a_best_guess_for_every_family() -> None:
    assert BEST_GUESS.keys() == {family.name for family in FAMILIES}
    for member in FAMILIES:
        for layout in member.layouts:
            assert not corpus.refusal(member, setting(member), layout)


@each_family
def test_sources_meet_the_contract_and_stay_readable(family: Family, layout: Layout) -> None:
    check_sources(family, layout, SM_90A, lines=420, width=120)


@each_family
def test_no_two_settings_write_the_same_source_and_every_knob_shows(family: Family, layout: Layout) -> None:
    check_knobs(family, layout, 100)


@pytest.mark.parametrize(
    ("name", "layout", "knobs", "reason"),
    [
        ("warp_specialised", "tn", {"stages": 8}, "do not fit shared memory"),
        ("warp_specialised", "tn", {"tile_m": 256, "tile_n": 256}, "do not fit the registers"),
        ("warp_specialised", "nn", {"tile_n": 96, "epilogue": "direct"}, "boxes of 64 columns"),
        ("warp_specialised", "tn", {"schedule": "ping-pong", "consumers": 3}, "played by two"),
        ("split_k", "tn", {"reduce": "cluster", "splits": 16, "cluster": "2x1"}, "at most 16 blocks"),
        ("resident", "tn", {"k_resident": 512}, "do not fit shared memory"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, layout: Layout, knobs: Knobs, reason: str) -> None:
    assert reason in corpus.refusal(family(name), setting(family(name), **knobs), layout)


@needs_nvcc
@each_raw_family
def test_sources_compile_to_tensor_core_and_copy_engine_instructions(
    family: Family, layout: Layout, tmp_path: Path
) -> None:
    """No spills where one would start; nowhere wgmma serialised (ptxas C75xx)."""
    for knobs in (setting(family), *some_settings(family, layout, 1, seed=2)):
        path, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
        path.write_text(corpus.render(family, knobs, layout))
        command = ["nvcc", *SM_90A.flags, "-cubin", "-Xptxas", "-v", str(path), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True)
        log = done.stdout + done.stderr
        assert done.returncode == 0, log
        assert "(C75" not in log and "warning" not in log, (knobs, log)
        if knobs == setting(family):
            assert all(int(size) == 0 for size in re.findall(r"(\d+) bytes spill", log)), log
        sass = disassemble(cubin)
        expected = {"HGMMA"} | ({"UTMALDG", "SYNCS"} if knobs.get("load") != "cp.async" else {"LDGSTS"})
        assert all(name in sass for name in expected), knobs


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_cute_compiles_to_tensor_core_and_copy_engine_instructions(layout: Layout, tmp_path: Path) -> None:
    if not toolchain.cutlass():
        pytest.skip("needs nvidia-cutlass")
    path, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    path.write_text(corpus.render(family("cute_wgmma"), setting(family("cute_wgmma")), layout))
    includes = [f"-I{folder}" for folder in toolchain.cutlass()]
    command = ["nvcc", *SM_90A.flags, *includes, "-cubin", "-Xptxas", "-v", str(path), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    assert done.returncode == 0 and "(C75" not in log, log
    assert all(int(size) == 0 for size in re.findall(r"(\d+) bytes spill", log)), log
    sass = disassemble(cubin)
    assert all(name in sass for name in ("HGMMA", "UTMALDG", "SYNCS"))


def disassemble(cubin: Path) -> str:
    import nvidia

    found = shutil.which("nvdisasm") or next(
        (str(path) for root in nvidia.__path__ for path in Path(root).glob("*/bin/nvdisasm")), None
    )
    if found is None:
        pytest.skip("needs nvdisasm")
    return subprocess.run([found, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout


@each_raw_family
def test_sources_are_correct_on_shapes_of_any_multiple_of_eight(family: Family, layout: Layout) -> None:
    rng = random.Random(f"shapes {family.name} {layout}")
    (knobs,) = some_settings(family, layout, 1, seed=3)
    library = hopper.build(corpus.render(family, knobs, layout))
    for shape in (shape_of_some_tiles(rng, knobs), (8, 8, 8)):
        problem = Problem(*shape, layout)
        assert hopper.run(library, problem, seed=rng.randint(0, 999), processors=rng.randint(1, 6)) == "", (
            shape,
            knobs,
        )


@pytest.mark.slow
@each_raw_family
def test_many_settings_are_correct(family: Family, layout: Layout) -> None:
    rng = random.Random(f"many {family.name} {layout}")
    for knobs in some_settings(family, layout, 10, seed=4):
        library = hopper.build(corpus.render(family, knobs, layout))
        for _ in range(3):
            shape = shape_of_some_tiles(rng, knobs)
            assert hopper.run(library, Problem(*shape, layout), rng.randint(0, 999), rng.randint(1, 6)) == "", (
                shape,
                knobs,
            )


def shape_of_some_tiles(rng: random.Random, knobs: Knobs) -> tuple[int, int, int]:
    return tuple(8 * rng.randint(1, most // 8) for most in (3 * int(knobs["tile_m"]), 3 * int(knobs["tile_n"]), 480))


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


@pytest.mark.parametrize(
    ("name", "knobs", "large"),
    [
        ("small_cluster", {"tile_n": 32, "splits": 16}, True),
        ("small_cluster", {"tile_n": 32, "splits": 8}, False),
        ("split_k", {"tile_n": 64, "splits": 12, "stages": 2}, True),
        ("split_k", {"tile_n": 64, "splits": 8, "stages": 2, "cluster": "2x1"}, True),
        ("split_k", {"tile_n": 64, "splits": 4, "stages": 2, "cluster": "2x1"}, False),
    ],
)
def test_only_clusters_of_more_than_eight_are_asked_for(name: str, knobs: Knobs, large: bool) -> None:
    member = family(name)
    source = corpus.render(member, setting(member, **knobs), "tn")
    assert ("cudaFuncAttributeNonPortableClusterSizeAllowed" in source) == large


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


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "knobs"),
    [("small_cluster", {"splits": 16}), ("split_k", {}), ("split_k", {"cluster": "2x1", "splits": 2})],
    ids=["small_cluster", "split_k", "split_k multicast"],
)
def test_no_fence_of_the_whole_gpu_stands_in_the_way_of_pushed_sums(name: str, knobs: Knobs, tmp_path: Path) -> None:
    path, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    path.write_text(corpus.render(family(name), setting(family(name), **knobs), "tn"))
    subprocess.run(["nvcc", *SM_90A.flags, "-cubin", str(path), "-o", str(cubin)], check=True)
    sass = disassemble(cubin)
    assert "STAS" in sass and "MEMBAR.ALL.GPU" not in sass


def test_every_raster_visits_every_tile_once(tmp_path: Path) -> None:
    """The function as the sources have it, compiled for the processor, over grids that no group divides."""
    member = family("warp_specialised")
    path = tmp_path / "place.cpp"
    code = ["#include <algorithm>\nusing std::min;\n#define __device__\n#define __forceinline__ inline\n"]
    for i, raster in enumerate(member.knobs["raster"]):
        source = corpus.render(member, setting(member, raster=raster) | {"style": "plain"}, "tn")
        function = re.search(r"__device__ __forceinline__ void place_tile\(.*?\n}\n", source, re.DOTALL)
        assert function is not None
        code.append(f'namespace n{i} {{ {function.group()} }}\nextern "C" void place{i}(int i, int m, int n, int* at) ')
        code.append(f"{{ n{i}::place_tile(i, m, n, at[0], at[1]); }}\n")
    path.write_text("".join(code))
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", path, "-o", path.with_suffix(".so")], check=True)
    library = ctypes.CDLL(str(path.with_suffix(".so")))
    for i in range(len(member.knobs["raster"])):
        place = getattr(library, f"place{i}")
        for tiles_m, tiles_n in ((1, 1), (1, 19), (19, 1), (8, 8), (16, 8), (7, 9), (21, 13), (33, 32)):
            at = np.zeros((tiles_m * tiles_n, 2), np.int32)
            for tile in range(len(at)):
                place(tile, tiles_m, tiles_n, ctypes.c_void_p(at[tile].ctypes.data))
            seen = {(int(m), int(n)) for m, n in at}
            assert seen == {(m, n) for m in range(tiles_m) for n in range(tiles_n)}, member.knobs["raster"][i]
