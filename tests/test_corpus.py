"""The families: enough of them, all different, all correct on any shape, and blind to the shape."""

import ctypes
import random
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from thorough import count

from cudal2 import corpus, split
from cudal2.completion import check_source, extract
from cudal2.config import WorkerConfig
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem
from cudal2.records import Candidate, Status
from cudal2.target import CPU, find, targets
from cudal2.worker.worker import Worker

LAYOUTS: tuple[Layout, ...] = ("nn", "tn")
FAMILIES = corpus.families(CPU)
CASES = [(family, layout) for family in FAMILIES for layout in family.layouts]
IDS = [f"{family.name}-{layout}" for family, layout in CASES]
each_family = pytest.mark.parametrize(("family", "layout"), CASES, ids=IDS)


@cache
def all_settings(family: str, layout: Layout) -> list[Knobs]:
    return list(corpus.settings(next(f for f in FAMILIES if f.name == family), layout))


def some_settings(family: Family, layout: Layout, count: int, seed: int) -> list[Knobs]:
    rng = random.Random(f"{family.name} {layout} {seed}")
    return rng.sample(all_settings(family.name, layout), count)


def random_problem(rng: random.Random, layout: Layout, most: int) -> Problem:
    m, n, k = (8 * rng.randint(1, most) for _ in range(3))
    return Problem(m, n, k, layout)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Verifies in full, times nothing. Two threads, so that sharing among threads is tried as well."""
    with Worker(WorkerConfig(cache=str(tmp_path_factory.mktemp("cache")), threads=2, protocols=())) as judge:
        yield judge


@pytest.fixture(scope="module")
def timing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Times what it verified, on one thread, so that other tests may run meanwhile; with one process of baselines."""
    cache = str(tmp_path_factory.mktemp("timed"))
    with Worker(WorkerConfig(cache=cache, threads=1, batch_ms=8, min_pairs=2, max_pairs=2, disturbed=1e3)) as judge:
        yield judge


@pytest.mark.parametrize("layout", ["tn", pytest.param("nn", marks=pytest.mark.slow)])
def test_at_least_six_families_and_ten_thousand_kernels(layout: Layout) -> None:
    counts = [len(all_settings(family.name, layout)) for family in FAMILIES if layout in family.layouts]
    assert len(counts) >= 6
    assert sum(counts) >= 10_000


@pytest.mark.sampled(3)
@each_family
def test_no_two_settings_write_the_same_source(family: Family, layout: Layout) -> None:
    settings = some_settings(family, layout, 300, seed=0)
    assert len({corpus.render(family, knobs, layout) for knobs in settings}) == len(settings)


@pytest.mark.sampled(3)
@each_family
def test_every_knob_shows_in_the_source(family: Family, layout: Layout) -> None:
    """Changing one knob alone changes the source, for every value of every knob."""
    for knobs in some_settings(family, layout, 5, seed=1):
        for knob, values in family.knobs.items():
            neighbours = [{**knobs, knob: value} for value in values]
            allowed = [other for other in neighbours if not corpus.refusal(family, other, layout)]
            assert len({corpus.render(family, other, layout) for other in allowed}) == len(allowed), knob


@pytest.mark.sampled(3)
@each_family
def test_sources_meet_the_contract_and_stay_readable(family: Family, layout: Layout) -> None:
    for knobs in some_settings(family, layout, 50, seed=2):
        source = corpus.render(family, knobs, layout)
        check_source(source, CPU)
        assert extract(source, CPU) == source
        assert len(source.splitlines()) <= 160
        assert max(map(len, source.splitlines())) <= 130
        assert "{{" not in source and "{%" not in source and "///" not in source
        assert "#include <immintrin.h>" not in source or source.startswith("#include <immintrin.h>")
        assert ("//" in source) == (knobs["style"] != "terse")


@pytest.mark.sampled(3)
@each_family
def test_sources_are_correct_on_shapes_of_any_multiple_of_eight(worker: Worker, family: Family, layout: Layout) -> None:
    rng = random.Random(f"shapes {family.name} {layout}")
    for knobs in some_settings(family, layout, 2, seed=3):
        source = corpus.render(family, knobs, layout)
        tiny, odd = (random_problem(rng, layout, most) for most in (3, 24))
        for problem in (tiny, odd):
            verdict = worker.evaluate(Candidate(source, problem))
            assert verdict.status is Status.OK, f"{problem.name} {knobs} {verdict.reason} {verdict.log}"


@pytest.mark.slow
@each_family
def test_many_settings_are_correct_in_timed_calls_too(timing: Worker, family: Family, layout: Layout) -> None:
    rng = random.Random(f"many {family.name} {layout}")
    for knobs in some_settings(family, layout, count(8, 1), seed=5):
        problem = random_problem(rng, layout, most=24)
        verdict = timing.evaluate(Candidate(corpus.render(family, knobs, layout), problem))
        assert verdict.status is Status.OK, f"{problem.name} {knobs} {verdict.reason} {verdict.log}"


@pytest.mark.parametrize("name", ["shared", "private"])
def test_sums_stay_in_float_over_many_passes_and_blocks(worker: Worker, name: str) -> None:
    """K, M and N beyond every blocking constant: what is carried from pass to pass is not rounded to half."""
    family = next(family for family in FAMILIES if family.name == name)
    knobs = next(iter(corpus.settings(family, "tn"))) | {"kc": 128, "mc": family.knobs["mc"][0]}
    verdict = worker.evaluate(Candidate(corpus.render(family, knobs, "tn"), Problem(200, 968, 1048, "tn")))
    assert verdict.status is Status.OK, verdict.reason
    assert verdict.rho is not None and verdict.rho < 1.02


@pytest.mark.sampled(5)
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
@each_family
def test_sources_are_correct_on_processors_with_less(
    family: Family, layout: Layout, march: str, tmp_path: Path
) -> None:
    """Without AVX-512, and without AVX, F16C and FMA: other branches of the same source."""
    if march == "x86-64-v3" and not {"avx2", "f16c", "fma"} <= set(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip("this processor has no AVX2")
    (knobs,) = some_settings(family, layout, 1, seed=4)
    path = tmp_path / "kernel.cpp"
    path.write_text(corpus.render(family, knobs, layout))
    flags = ["-O1", f"-march={march}"] + [flag for flag in CPU.flags if flag not in ("-O3", "-march=native")]
    subprocess.run(["g++", *flags, "-shared", "-fPIC", path, "-o", path.with_suffix(".so")], check=True)
    a, b, c = multiply(ctypes.CDLL(str(path.with_suffix(".so"))), Problem(40, 72, 136, layout))
    exact = a.astype(np.float64) @ (b if layout == "nn" else b.T).astype(np.float64)
    rounding = np.sqrt(np.mean((exact.astype(np.float16) - exact) ** 2))
    assert np.sqrt(np.mean((c - exact) ** 2)) <= 1.05 * rounding


def multiply(library: ctypes.CDLL, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B and the C a kernel of ours makes of them, in this process; C and workspace start as NaN."""
    rng = np.random.default_rng(0)
    bytes_needed = 0
    if hasattr(library, "hgemm_workspace"):
        library.hgemm_workspace.restype = ctypes.c_size_t
        bytes_needed = library.hgemm_workspace(problem.m, problem.n, problem.k)
    a, b, c = (
        aligned(shape, np.float16) for shape in ((problem.m, problem.k), problem.b_shape, (problem.m, problem.n))
    )
    a[:], b[:], c[:] = rng.standard_normal(a.shape), rng.standard_normal(b.shape), np.nan
    workspace = aligned((bytes_needed // 4 + 1,), np.float32)
    workspace[:] = np.nan
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, c, workspace)]
    assert library.hgemm(*addresses[:3], problem.m, problem.n, problem.k, addresses[3]) == 0
    return a, b, c


def aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An array that starts at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def test_an_unknown_or_refused_setting_says_why() -> None:
    shared = next(family for family in FAMILIES if family.name == "shared")
    knobs = next(iter(corpus.settings(shared, "nn")))
    with pytest.raises(ValueError, match="registers"):
        corpus.render(shared, knobs | {"mr": 16, "nv": 4}, "nn")
    with pytest.raises(ValueError, match="kc=100 is not one of 128, 256, 512"):
        corpus.render(shared, knobs | {"kc": 100}, "nn")
    with pytest.raises(ValueError, match="has the knobs"):
        corpus.render(shared, {"mr": 8}, "nn")
    dot = next(family for family in FAMILIES if family.name == "dot")
    with pytest.raises(ValueError, match="no nn kernel"):
        corpus.render(dot, next(iter(corpus.settings(dot, "tn"))), "nn")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_repeat_with_their_seed_and_reach_every_family(layout: Layout) -> None:
    def draws(seed: int) -> list[corpus.Sample]:
        rng = random.Random(seed)
        return [corpus.draw(CPU, layout, rng) for _ in range(100)]

    assert draws(1) == draws(1) != draws(2)
    assert {sample.family for sample in draws(1)} == {f.name for f in FAMILIES if layout in f.layouts}
    for sample in draws(1)[:10]:
        family = next(family for family in FAMILIES if family.name == sample.family)
        assert sample.source == corpus.render(family, sample.knobs, layout)


@pytest.mark.parametrize("name", targets())
def test_draws_for_every_target_are_quick_and_name_their_family(name: str) -> None:
    target, rng = targets()[name], random.Random(0)
    names = [family.name for family in corpus.families(target)]
    assert len(set(names)) == len(names)
    for layout in LAYOUTS:
        for _ in range(25):
            sample = corpus.draw(target, layout, rng)
            family = next(family for family in corpus.families(target) if family.name == sample.family)
            assert family.suffix == target.suffix
            check_source(sample.source, target)


@pytest.mark.parametrize("name", [name for name in targets() if name != "cpu"])
def test_kernels_that_sum_in_half_are_drawn_only_for_problems_content_with_it(name: str) -> None:
    rng = random.Random(0)
    f32 = [corpus.draw(targets()[name], "tn", rng) for _ in range(60)]
    assert all(sample.knobs.get("accumulate") != "f16" for sample in f32)
    f16 = [corpus.draw(targets()[name], "tn", rng, "f16") for _ in range(60)]
    assert any(sample.knobs.get("accumulate") == "f16" for sample in f16)


def test_about_a_tenth_of_shapes_is_held_out_and_drawn_only_when_asked_for() -> None:
    rng = random.Random(0)
    shapes = [Problem(8 * m, 8 * n, 256) for m in range(1, 65) for n in range(1, 65)]
    share = sum(map(split.held_out, shapes)) / len(shapes)
    assert 0.08 < share < 0.12
    assert all(not split.held_out(corpus.draw_problem(rng, "tn")) for _ in range(300))
    assert all(split.held_out(corpus.draw_problem(rng, "nn", held_out=True)) for _ in range(50))
    assert split.held_out(Problem(64, 64, 64, "nn")) == split.held_out(Problem(64, 64, 64, "tn", "f16"))


def test_drawn_shapes_are_small_more_often_and_not_only_powers_of_two() -> None:
    rng = random.Random(0)
    sizes = [size for _ in range(500) for p in [corpus.draw_problem(rng, "tn")] for size in (p.m, p.n, p.k)]
    assert all(size % 8 == 0 and 64 <= size <= 2048 for size in sizes)
    assert sum(size <= 512 for size in sizes) > len(sizes) / 2
    powers = sum(size & (size - 1) == 0 for size in sizes) / len(sizes)
    assert 0.3 < powers < 0.8


def test_no_try_is_spent_on_a_style_or_a_sum_that_was_not_asked_for(monkeypatch):
    """Where rules let one setting in hundreds pass, such tries left none for what was."""
    monkeypatch.setattr(corpus.drawing, "TRIES", 1)
    monkeypatch.setattr(corpus.drawing, "refusal", lambda *_: "")
    rng = random.Random(0)
    for family in corpus.families(find("sm_90a")):
        if drawn := corpus.drawing.allowed(family, family.layouts[0], "f32", rng, ("terse",)):
            assert drawn.get("style") in (None, "terse") and drawn.get("accumulate") in (None, "f32")
        else:
            assert "f32" not in family.knobs.get("accumulate", ("f32",)), family.name
