"""A recipe's file gives back what was sealed, or says what is wrong with it; nothing in it leads anywhere else."""

import random
import struct
import zlib

import pytest
from msgspec.structs import replace

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker.cuda.plan import Memset, PlanError, Recording, check
from cudal2.worker.cuda.recipe import MAGIC, Recipe, Relocation, applied, pack, seal
from cudal2.worker.cuda.unsealing import Damaged, launchable, unsealed
from cudal2.worker.gpu.buffers import BASES, buffer_layout
from tests.worker.cuda.test_recipe import PROBLEM, fitted, honest, kernel, words

CUBIN = b"a cubin"
LARGE = Problem(8192, 8192, 1024)
"""Of few sets."""


def sealed(recipe: Recipe, cubin: bytes = CUBIN) -> bytes:
    return seal(pack(recipe), cubin, "name.cubin")


@pytest.mark.parametrize("seed", range(20))
def test_what_was_sealed_is_launched_at_every_set(seed: int) -> None:
    """As its launcher would have been recorded there."""
    launch = honest(seed)
    recipe = replace(fitted(launch), workspace=20480)
    assert unsealed(sealed(recipe), CUBIN, PROBLEM) == recipe
    found = launchable(sealed(recipe), CUBIN, PROBLEM)
    base = found.recording.base
    assert base in BASES and base != launchable(sealed(recipe), CUBIN, PROBLEM).recording.base
    places = buffer_layout(PROBLEM).places(base)
    assert found.recording == Recording(20480, tuple(applied(recipe, place) for place in places), base=base)
    assert found.recording.plans[-1] == launch(places[-1])
    assert (found.cubin, found.recipe, found.library) == (CUBIN, sealed(recipe), b"")
    check(found.recording, len(places), CUDA_CONTRACT.workspace_limit)


def test_a_damaged_file_is_told_whatever_is_damaged() -> None:
    whole = sealed(fitted(honest(3)))
    rng = random.Random(0)
    for _ in range(100):
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        with pytest.raises(Damaged):
            unsealed(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :], CUBIN, PROBLEM)
        with pytest.raises(Damaged):
            unsealed(whole[:place], CUBIN, PROBLEM)
    with pytest.raises(Damaged, match="another cubin"):
        unsealed(whole, b"another", PROBLEM)


def forged(packed: bytes) -> bytes:
    """A file that says it is whole."""
    head = struct.pack("<2I", zlib.crc32(CUBIN), 0)
    return MAGIC + struct.pack("<I", zlib.crc32(head + packed)) + head + packed


def test_a_forged_file_is_damaged_or_a_plan_that_is_looked_at() -> None:
    """Whatever its bytes are: no other exception, and nothing that a replay could not do safely."""
    packed, rng = pack(replace(fitted(honest(5)), workspace=20480)), random.Random(1)
    for _ in range(300):
        data = bytearray(packed[: rng.choice((len(packed), rng.randrange(len(packed))))])
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
        try:
            found = launchable(forged(bytes(data)), CUBIN, LARGE).recording
        except (Damaged, PlanError):
            continue
        check(found, buffer_layout(LARGE).sets, CUDA_CONTRACT.workspace_limit)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(4096, (kernel(words(0)),), (Relocation(0, 0, 4, 0),)),
        Recipe(4096, (kernel(words(0)),), (Relocation(0, 1, 0, 0),)),
        Recipe(4096, (kernel(words(0)),), (Relocation(1, 0, 0, 0),)),
        Recipe(4096, (kernel(words(0)),), (Relocation(0, 0, 0, 4),)),
        Recipe(4096, (Memset(0, 0, 4, 4), kernel(words(0))), (Relocation(0, 0, 0, 0),)),
        Recipe(4096, (Memset(4096, 0, 4, 4), kernel(words(0))), ()),
        Recipe(1 << 50, (kernel(words(0)),), ()),
        Recipe(4096, (Memset(0, 0, 4, 4),), ()),
        Recipe(4096, (), ()),
    ],
)
def test_a_recipe_that_reaches_outside_is_refused(recipe: Recipe) -> None:
    with pytest.raises((Damaged, PlanError)):
        launchable(sealed(recipe), CUBIN, PROBLEM)
