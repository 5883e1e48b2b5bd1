"""Every family is right on the GPU, random settings on random shapes, and can be exported without its host code.

Takes minutes: `pytest -m "gpu and slow" tests/families/test_on_gpu.py`.
"""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from families.contract import ON_GPUS

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.target import Target
from cudal2.worker.pool.pool import Pool, shard
from cudal2.worker.worker import Worker

SETTINGS = 200
EXPORTED = 6
SHAPES = 24
POOLS = 4
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
ROWS = (1, 2, 3, 7, 17, 100)

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def pools(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pool]]:
    """Checks on every GPU there is. Nothing is timed, so several workers may share each."""
    config = WorkerConfig(
        cache=str(tmp_path_factory.mktemp("cache")),
        devices=tuple(range(torch.cuda.device_count())),
        build_jobs=max(1, len(os.sched_getaffinity(0)) // POOLS),
        protocols=(),
        run_seconds=8,
        compile_seconds=300,
    )
    with ExitStack() as stack:
        yield [stack.enter_context(Pool(config, target.name)) for _ in range(POOLS)]


def shapes(rng: random.Random) -> list[tuple[int, int, int]]:
    """A third powers of two, a third of any multiples of 8, a third of few rows or any number of them."""
    powers = [tuple(rng.choice(SIZES) for _ in range(3)) for _ in range(SHAPES // 3)]
    multiples = [tuple(8 * rng.randint(1, 200) for _ in range(3)) for _ in range(SHAPES // 3)]
    rows = [*ROWS, *(rng.randint(1, 1600) for _ in range(SHAPES // 3 - len(ROWS)))]
    return powers + multiples + [(m, 8 * rng.randint(1, 200), 8 * rng.randint(1, 200)) for m in rows]


def candidates(family: Family, target: Target) -> list[Candidate]:
    """Random settings, each on a random shape, layout, type and epilogue; those of one problem together."""
    rng, sizes = random.Random(family.name), shapes(random.Random("shapes"))
    found: list[Candidate] = []
    while len(found) < SETTINGS:
        like = rng.choice(list(corpus.forms(family)))
        knobs = {knob: rng.choice(values) for knob, values in family.knobs.items()}
        if not corpus.refusal(family, knobs, like):
            accumulate = "f16" if knobs.get("accumulate") == "f16" else "f32"
            problem = Problem(*rng.choice(sizes), like.layout, accumulate, like.dtype, like.epilogue)
            found.append(Candidate(corpus.render(family, knobs, problem), problem, target.name))
    return sorted(found, key=lambda candidate: candidate.problem)


@pytest.mark.parametrize("name", ON_GPUS)
def test_right_whatever_the_setting_and_the_shape(pools: list[Pool], target: Target, name: str) -> None:
    family = next((family for family in corpus.families(target) if family.name == name), None)
    if family is None:
        pytest.skip(f"{name} is not for {target.name}")
    shares = shard(candidates(family, target), POOLS)
    with ThreadPoolExecutor(POOLS) as threads:
        verdicts = [verdict for share in threads.map(Pool.evaluate, pools, shares) for verdict in share]
    assert None not in verdicts, next(pool.fault for pool in pools if pool.fault)
    bad = [f"{verdict.problem.name}: {verdict.status}, {verdict.reason}" for verdict in verdicts if not verdict.ok]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_recipe_gives_its_launches_at_any_addresses(target: Target, name: str, tmp_path) -> None:
    family = next((family for family in corpus.families(target) if family.name == name), None)
    if family is None:
        pytest.skip(f"{name} is not for {target.name}")
    config = WorkerConfig(cache=str(tmp_path), protocols=(), compile_seconds=300)
    with Worker(config, target.name) as worker:
        for candidate in random.Random(0).sample(candidates(family, target), EXPORTED):
            assert worker.portable(candidate).recipe  # raises where there is none
