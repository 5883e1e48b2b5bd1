"""The sm_80 families: all different, within the contract, and correct on any shape in an emulation of the GPU."""

import random
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from families import emulated
from families.contract import check_knobs, check_sources, some_settings
from thorough import only_thorough, some

from cudal2 import corpus
from cudal2.arch import ARCHITECTURES
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem
from cudal2.target import Target, find

SM_80 = find("sm_80")
FAMILIES = corpus.families(SM_80)
CASES = [(family, layout) for family in FAMILIES for layout in family.layouts]
each_family = pytest.mark.parametrize(("family", "layout"), CASES, ids=[f"{f.name}-{layout}" for f, layout in CASES])
EMULATED = [case for case in CASES if case[0].name != "cute"]
each_emulated, some_emulated = (
    pytest.mark.parametrize(("family", "layout"), cases, ids=[f"{f.name}-{layout}" for f, layout in cases])
    for cases in (EMULATED, some(EMULATED, 3))
)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def on(target: str, name: str) -> Family:
    return next(family for family in corpus.families(find(target)) if family.name == name)


@pytest.mark.sampled(3)
@each_family
def test_sources_meet_the_contract_and_stay_readable(family: Family, layout: Layout) -> None:
    check_sources(family, layout, SM_80, lines=360, width=135)


@each_family
def test_no_two_settings_write_the_same_source_and_every_knob_shows(family: Family, layout: Layout) -> None:
    check_knobs(family, layout, 150)


@pytest.mark.sampled(3)
@each_emulated
def test_correct_on_shapes_of_any_multiple_of_eight(family: Family, layout: Layout) -> None:
    """In turn with copies that arrive early and late, on devices of few and of many multiprocessors."""
    rng = random.Random(f"shapes {family.name} {layout}")
    for round, knobs in enumerate(some_settings(family, layout, 2, seed=2)):
        runs = []
        for most, deep in ((3, 3), (16, 8), (4, 90)):
            m, n = rng.randint(1, 8 * most), 8 * rng.randint(1, most)
            problem = Problem(m, n, 8 * rng.randint(1, deep), layout)
            runs.append(emulated.Run(problem, eager=round == 0, multiprocessors=rng.choice((1, 5, 13))))
        found = emulated.judge(emulated.build(corpus.render(family, knobs, layout)), runs)
        assert not found, f"{knobs}: {found}"


@pytest.mark.sampled(3)
@each_emulated
def test_types_and_epilogues_on_any_rows(family: Family, layout: Layout) -> None:
    rng = random.Random(f"types {family.name} {layout}")
    for like in (Problem(7, 8, 8, layout, "f32", "bf16", "bias_gelu"), Problem(7, 8, 8, layout, "f32", "fp16", "bias")):
        knobs = corpus.allowed(family, like, "f32", rng)
        assert knobs is not None
        runs = []
        for m in (rng.choice((1, 2, 3, 7)), rng.randint(1, 100)):
            problem = msgspec.structs.replace(like, m=m, n=8 * rng.randint(1, 9), k=8 * rng.randint(1, 20))
            runs.append(emulated.Run(problem, eager=False, multiprocessors=rng.choice((1, 5, 13))))
        found = emulated.judge(emulated.build(corpus.render(family, knobs, like)), runs)
        assert not found, f"{knobs}: {found}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("broken", "instead"),
    [
        ("__syncthreads();\n", ";\n"),
        ("wait_copies<STAGES - 2>();", "wait_copies<STAGES - 1>();"),
        ("(chunk ^ (row / (8 / SPAN) % SPAN))", "chunk"),
        ("col * 8 < left", "true"),
        ("min(chunk / (BK / 8), M - 1 - m0)", "chunk / (BK / 8)"),
        ("row < M && col < N", "col < N"),
        ("lane % 8 + lane / 16 * 8", "lane % 16"),
        ("if (step + STAGES - 1 < last) load(step + STAGES - 1, write);", "load(step, write);"),
        ("(split + 1LL) * steps / splits", "(split + 1LL) * (steps / splits)"),
        ("split < splits - 1 ? split + 1 : 0", "split + 1"),
        ("while (read_flag(semaphores + tile) != split) {}", ";"),
    ],
)
def test_the_emulation_notices(broken: str, instead: str) -> None:
    """One fault at a time in a kernel that is right without it."""
    knobs: Knobs = {"bm": 64, "bn": 32, "bk": 32, "warps_m": 2, "warps_n": 2, "stages": 3, "shared": "swizzled"}
    knobs |= {"fragments": "double", "splits": 3, "reduction": "turns", "order": "splits first", "raster": "rows"}
    knobs |= {"epilogue": "direct", "l2": 0, "blocks": 1, "style": "plain"}
    source = corpus.render(on("sm_80", "splitk"), knobs, "tn")
    problem = Problem(72, 48, 520, "tn")
    assert source.count(broken)
    if instead == ";":  # without waiting, the order of the blocks must be another for it to show
        source = source.replace("split = blockIdx.x % splits", "split = splits - 1 - blockIdx.x % splits")
    runs = [emulated.Run(problem, eager) for eager in (False, True)]
    assert emulated.judge(emulated.build(source.replace(broken, instead)), runs)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("name", ["multistage", "splitk", "streamk", "wmma"])
def test_settings_ask_for_no_more_shared_memory_than_there_is(target: str, name: str) -> None:
    """The rule and the source must count alike: the largest of many settings is launched."""
    family = on(target, name)
    settings = some_settings(family, "nn", 60, seed=3)
    largest = max(settings, key=lambda k: int(k.get("stages", k.get("buffers", 1))) * (int(k["bm"]) + int(k["bn"])))
    library = emulated.build(corpus.render(family, largest, "nn"))
    runs = [emulated.Run(Problem(8, 8, 8, "nn"), eager=True)]
    assert not emulated.judge(library, runs, shared_limit=ARCHITECTURES[target].shared_memory), largest


def test_what_fits_a_large_device_may_be_refused_on_a_small_one() -> None:
    knobs: Knobs = {"bm": 128, "bn": 128, "bk": 64, "warps_m": 2, "warps_n": 4, "stages": 4, "shared": "swizzled"}
    knobs |= {"fragments": "double", "raster": "rows", "epilogue": "direct", "l2": 0, "blocks": 1}
    knobs |= {"accumulate": "f32", "style": "plain"}
    assert not corpus.refusal(on("sm_90a", "multistage"), knobs, "tn")
    assert "shared memory" in corpus.refusal(on("sm_86", "multistage"), knobs, "tn")
    assert "registers" in corpus.refusal(on("sm_90a", "multistage"), knobs | {"warps_n": 1}, "tn")


def compile_cubin(source: str, target: Target, folder: Path) -> str:
    """What the compiler says; AssertionError with it where the source does not compile."""
    path = folder / "kernel.cu"
    path.write_text(source)
    cutlass = pytest.importorskip("cutlass_library") if "cute/" in source else None
    headers = ["-I", Path(cutlass.__file__).parent / "source" / "include"] if cutlass else []
    command = ["nvcc", *target.flags, *headers, "-Xptxas", "-v", "-cubin", path, "-o", path.with_suffix(".cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.sampled(3)
@needs_nvcc
@each_emulated
def test_sources_compile_without_a_warning(family: Family, layout: Layout, tmp_path: Path) -> None:
    for knobs in some_settings(family, layout, 1, seed=4):
        log = compile_cubin(corpus.render(family, knobs, layout), SM_80, tmp_path)
        assert "warning" not in log, log


@needs_nvcc
@pytest.mark.slow
@some_emulated
def test_other_types_and_operators_compile_without_a_warning(family: Family, layout: Layout, tmp_path: Path) -> None:
    for like in (Problem(7, 8, 8, layout, "f32", "bf16", "bias_gelu"), Problem(7, 8, 8, layout, "f32", "fp16", "bias")):
        knobs = corpus.allowed(family, like, "f32", random.Random(family.name))
        assert knobs is not None
        log = compile_cubin(corpus.render(family, knobs, like), SM_80, tmp_path)
        assert "warning" not in log, log


@pytest.mark.sampled(2)
@needs_nvcc
@pytest.mark.parametrize(
    ("target", "name"),
    [("sm_86", "wmma"), ("sm_89", "skinny"), ("sm_90a", "streamk"), ("sm_100a", "multistage"), ("sm_120a", "splitk")],
)
def test_sources_compile_for_newer_devices(target: str, name: str, tmp_path: Path) -> None:
    family = on(target, name)
    (knobs,) = some_settings(family, "nn", 1, seed=5)
    compile_cubin(corpus.render(family, knobs, "nn"), find(target), tmp_path)


@needs_nvcc
@pytest.mark.slow
@only_thorough
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_cute_compiles(layout: Layout, tmp_path: Path) -> None:
    family = on("sm_80", "cute")
    (knobs,) = some_settings(family, layout, 1, seed=6)
    compile_cubin(corpus.render(family, knobs, layout), SM_80, tmp_path)
