"""A recipe gives the recorded plan at every address, byte for byte, or there is none and the place is named."""

import hashlib
import itertools
import random
import struct
from collections.abc import Callable

import pytest
from launcher import Four
from msgspec.structs import replace

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker.cuda import recipe
from cudal2.worker.cuda.plan import KernelLaunch, Memset, Plan
from cudal2.worker.cuda.recipe import RecipeRefused, applied, check, fit
from cudal2.worker.gpu.buffers import BASES, RESERVED, buffer_layout, draw_base, scattered

PROBLEM = Problem(264, 200, 328)
MASK = (1 << 64) - 1
Launcher = Callable[[Four], Plan]


def kernel(*parameters: bytes, **changes) -> KernelLaunch:
    plain = KernelLaunch("multiply", (4, 2, 1), (128, 1, 1), (2, 1, 1), 1024, False, 0, -1, ())
    return replace(plain, parameters=tuple(one.hex() for one in parameters), **changes)


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *(value & MASK for value in values))


BASE = BASES[12345]


def places(count: int, seed: int = 0) -> list[Four]:
    return [Four(*place) for place in scattered(PROBLEM, count, random.Random(seed), BASE)]


def fitted(launcher: Launcher, count: int = 8) -> recipe.Recipe:
    at = places(count)
    return fit([launcher(place) for place in at], at, 0)


def honest(seed: int) -> Launcher:
    """Kernels whose parameters are made of pointers with offsets, structs, tensor maps and numbers, at random."""
    rng = random.Random(seed)

    def parameter():
        pieces = []
        for _ in range(rng.randrange(1, 20)):
            if rng.random() < 0.4:
                of, offset = rng.randrange(4), rng.choice((0, 2, 1 << 33, -64, rng.randrange(1 << 40)))
                pieces.append(lambda place, of=of, offset=offset: words(place[of] + offset))
            else:
                constant = rng.randbytes(8)
                pieces.append(lambda place, constant=constant: constant)
        tail = rng.randbytes(rng.choice((0, 0, 1, 2, 4, 7)))
        return lambda place: b"".join(piece(place) for piece in pieces) + tail

    kernels = [[parameter() for _ in range(rng.randrange(6))] for _ in range(rng.randrange(1, 4))]
    memsets = (Memset(16384, 0, 4, 512),) * rng.randrange(2)

    def launch(place: Four) -> Plan:
        return (*memsets, *(kernel(*(one(place) for one in k), name=f"k{i}") for i, k in enumerate(kernels)))

    return launch


@pytest.mark.parametrize("seed", range(20))
def test_gives_what_was_recorded_there_and_anywhere_else(seed: int) -> None:
    launch = honest(seed)
    found = fitted(launch)
    for place in (*places(8), *places(100, seed=1), *buffer_layout(PROBLEM).places(draw_base())[:50]):
        assert applied(found, place) == launch(place)
    far = (0x7F0000000100, 0xFFFF_FFFF_FFFF_FF00, 0, 256)
    assert applied(found, far) == launch(far)


def attack(name: str) -> Launcher:
    def hashed(place: Four) -> Plan:
        return (kernel(words(place.A), hashlib.sha256(words(place.B)).digest()[:8]),)

    table: dict[int, int] = {}
    return {
        "hashes an address": hashed,
        "keeps a table of addresses": lambda p: (kernel(words(p.A, table.setdefault(p.A, len(table)))),),
        "adds two addresses": lambda p: (kernel(words(p.A + p.B)),),
        "hides a distance": lambda p: (kernel(words(p.C - p.A)),),
        "shifts an address": lambda p: (kernel(words(p.A >> 4)),),
        "packs the low half alone": lambda p: (kernel(struct.pack("<I", p.A & 0xFFFFFFFF)),),
        "packs at byte four": lambda p: (kernel(b"four" + words(p.A) + b"more"),),
        "grows the grid": lambda p: (kernel(words(p.A), grid=(1 + p.A % 512 // 256, 1, 1)),),
        "chooses its kernel": lambda p: (kernel(words(p.A), name="ab"[p.B // 256 % 2]),),
        "launches twice": lambda p: (kernel(words(p.A)),) * (1 + p.C // 256 % 2),
        "changes a parameter's size": lambda p: (kernel(bytes(4 + 4 * (p.A // 256 % 2))),),
        "clears elsewhere": lambda p: (Memset(p.A // 256 % 2 * 256, 0, 1, 4), kernel(words(p.A))),
        "clears instead": lambda p: (kernel(b""), Memset(0, 0, 1, 4) if p.A // 256 % 2 else kernel(b"")),
    }[name]  # fmt: skip


ATTACKS = (
    *("hashes an address", "keeps a table of addresses", "adds two addresses", "hides a distance", "shifts an address"),
    *("packs the low half alone", "packs at byte four", "grows the grid", "chooses its kernel", "launches twice"),
    *("changes a parameter's size", "clears elsewhere", "clears instead"),
)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_launcher_that_uses_addresses_otherwise_is_refused(name: str) -> None:
    with pytest.raises(RecipeRefused):
        fitted(attack(name))


def test_what_is_refused_is_named() -> None:
    with pytest.raises(RecipeRefused, match=r"multiply, parameter 1, byte (\d+)"):
        fitted(lambda p: (kernel(words(p.A), words(0, p.A) + struct.pack("<I", p.B & 0xFFFFFFFF)),))
    with pytest.raises(RecipeRefused, match="shared of multiply"):
        fitted(lambda p: (kernel(words(p.A), shared=p.A // 256 % 7),))


def test_places_held_back_convict_what_the_fitted_ones_did_not_see() -> None:
    """A launcher may be honest at all the places that a recipe was made from."""
    seen = set(places(8))

    def patient(place: Four) -> Plan:
        return (kernel(words(place.A, place.C if place in seen else place.C + 2)),)

    found, held = fitted(patient), places(100, seed=1)
    check(found, [patient(place) for place in places(8)], places(8))
    with pytest.raises(RecipeRefused, match="parameter 0, byte 8"):
        check(found, [patient(place) for place in held], held)


def test_places_that_cannot_tell_are_a_mistake_of_the_caller() -> None:
    """On the sets that are timed, the workspace stays and the matrices keep their distances."""
    at = buffer_layout(PROBLEM).places(BASE)[:8]
    launch = honest(0)
    with pytest.raises(ValueError, match="scatter"):
        fit([launch(place) for place in at], at, 0)
    with pytest.raises(ValueError, match="scatter"):
        fit([launch(at[0])], at[:1], 0)


def test_scattered_places_are_aligned_apart_and_move_every_bit_they_can() -> None:
    at = places(64)
    sizes = (2 * 264 * 328, 2 * 328 * 200, 2 * 264 * 200, CUDA_CONTRACT.workspace_limit)
    for place in at:
        spans = sorted((start, start + size) for start, size in zip(place, sizes))
        assert spans[0][0] >= BASE and spans[-1][1] <= BASE + RESERVED
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert not any(start % CUDA_CONTRACT.alignment for start in place)
    for column in zip(*at):
        moved = 0
        for address in column:
            moved |= (address - BASE) ^ (column[0] - BASE)
        assert moved == RESERVED - CUDA_CONTRACT.alignment
    with pytest.raises(ValueError, match="GiB"):
        scattered(Problem(1 << 17, 8, 1 << 17), 1, random.Random(), BASE)


def test_the_packed_form_holds_every_number_once() -> None:
    """Read back by hand, as recipe.h does."""
    found = fitted(lambda p: (Memset(256, 0, 4, 64), kernel(words(7, p.B - 16), words(p.workspace + 32))))
    data = recipe.pack(replace(found, workspace=4096))
    assert struct.unpack_from("<QI", data) == (4096, 2)
    assert struct.unpack_from("<8I", data, 12) == (1, 0, 8, 1, 1, 1, 0, 3)
    assert struct.unpack_from("<II8sI", data, 44) == (1, 8, b"multiply", 1)
    assert data.endswith(struct.pack("<I", 16) + words(7, -16) + struct.pack("<I", 8) + words(32))
