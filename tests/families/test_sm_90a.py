"""The sm_90a families: all different, within the contract, compiled to Hopper's instructions."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from families.contract import check_knobs, check_sources, some_settings
from families.sm_90a import (
    BEST_GUESS,
    FAMILIES,
    SM_90A,
    each_family,
    each_raw_family,
    family,
    setting,
    some_raw_families,
)
from thorough import some

from cudal2 import corpus
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.cuda.compile.build import faults

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def test_a_best_guess_for_every_family() -> None:
    assert BEST_GUESS.keys() == {family.name for family in FAMILIES}
    for member in FAMILIES:
        for layout in member.layouts:
            assert not corpus.refusal(member, setting(member), layout)


@pytest.mark.sampled(3)
@each_family
def test_sources_meet_the_contract_and_stay_readable(family: Family, layout: Layout) -> None:
    check_sources(family, layout, SM_90A, lines=450, width=120)


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
        ("decode", "nn", {}, "no nn kernel"),
        ("decode", "tn", {"work": "shares", "splits": 2}, "cut by themselves"),
        ("decode", "tn", {"side": 3}, "has as many"),
        ("decode", "tn", {"tile_m": 64, "depth": 8, "warps": 16}, "do not fit shared memory"),
        ("decode", "tn", {"tile_m": 64, "tile_n": 64, "depth": 8, "load": "registers"}, "do not fit the registers"),
        ("stationary", "tn", {"splits": 2, "share": 2}, "not both"),
        ("stationary", "tn", {"warps": 16, "blocks": 2, "tile_n": 32}, "do not fit the registers"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, layout: Layout, knobs: Knobs, reason: str) -> None:
    assert reason in corpus.refusal(family(name), setting(family(name), **knobs), layout)


@pytest.mark.sampled(4)
@needs_nvcc
@pytest.mark.parametrize("best", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["best guess", "random"])
@each_raw_family
def test_sources_compile_to_tensor_core_and_copy_engine_instructions(
    family: Family, layout: Layout, best: bool, tmp_path: Path
) -> None:
    """No spills where one would start; nowhere wgmma serialised (ptxas C75xx)."""
    knobs = setting(family) if best else some_settings(family, layout, 1, seed=2)[0]
    path, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    path.write_text(corpus.render(family, knobs, layout))
    command = ["nvcc", *SM_90A.flags, "-cubin", "-Xptxas", "-v", str(path), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert "(C75" not in log and "warning" not in log, (knobs, log)
    assert not best or all(int(size) == 0 for size in re.findall(r"(\d+) bytes spill", log)), log
    sass = disassemble(cubin)
    if family.name == "decode":
        loads = {"ring": "LDGSTS.E.BYPASS.LTC128B.128", "registers": "LDG.E.NA.LTC128B.128"}[str(knobs["load"])]
        assert all(name in sass for name in ("HMMA.16816.F32", loads)), knobs
        return
    if family.name == "stationary":
        assert all(name in sass for name in ("HMMA.16816.F32", "LDG.E.NA.LTC128B.128", "UBLKCP")), knobs
        return
    expected = {"HGMMA"} | ({"UTMALDG", "SYNCS"} if knobs.get("load") != "cp.async" else {"LDGSTS"})
    assert all(name in sass for name in expected), knobs


@needs_nvcc
@pytest.mark.slow
@each_raw_family
def test_no_register_is_read_that_nothing_wrote(family: Family, layout: Layout, tmp_path: Path) -> None:
    """The gate refuses what might find there what another left: `sum = first ? 0 : sum` of a sum without a value."""
    for knobs in some_settings(family, layout, 4 if family.name == "stationary" else 1, seed=5):
        path = tmp_path / "kernel.cu"
        path.write_text(corpus.render(family, knobs, layout))
        command = ["nvcc", *SM_90A.flags, "-ptx", str(path), "-o", str(path.with_suffix(".ptx"))]
        subprocess.run(command, check=True)
        assert faults(path.with_suffix(".ptx").read_text()) == ((), (), ()), knobs


@needs_nvcc
@pytest.mark.slow
@some_raw_families
def test_other_types_and_operators_compile_as_well(family: Family, layout: Layout, tmp_path: Path) -> None:
    """What one would try first, with bf16 and the operator that takes most registers: no spills, wgmma in parallel."""
    like = Problem(7, 8, 8, layout, "f32", "bf16", "bias_gelu")
    path = tmp_path / "kernel.cu"
    path.write_text(corpus.render(family, setting(family), like))
    command = ["nvcc", *SM_90A.flags, "-cubin", "-Xptxas", "-v", str(path), "-o", str(path.with_suffix(".cubin"))]
    done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert "(C75" not in log and "warning" not in log, log
    assert all(int(size) == 0 for size in re.findall(r"(\d+) bytes spill", log)), log
    sass = disassemble(path.with_suffix(".cubin"))
    streams = family.name in ("decode", "stationary")
    assert ("HMMA.16816.F32.BF16" if streams else "HGMMA") in sass and "BF16" in sass


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("layout", some(["tn", "nn"], 2))
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


@pytest.mark.sampled(3)
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
