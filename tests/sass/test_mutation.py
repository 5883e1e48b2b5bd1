"""Planted faults are flagged; what changes nothing is told from a fault by the paths through the code alone."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from sass import mutation
from sass.cubins import compiled, listed
from sass.mutation import Mutant, Mutants
from sass.planted import listing, one
from thorough import count

from cudal2.records import Edit
from cudal2.sass.dependence import TOUCHED, violations
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Instruction, Listing
from cudal2.sass.opcodes import TIMED
from cudal2.worker.cache import Cache


def flags(given: Listing, mutant: Mutant) -> list[str]:
    return [found.why for found in violations(replayed(given, Edit(given.kernel, "", mutant.moves)))]


def numbered(those: Iterable[Instruction]) -> Listing:
    return Listing("k", "sm_80", tuple(msgspec.structs.replace(o, origin=place) for place, o in enumerate(those)))


def signals(given: Listing, mutant: Mutant) -> str:
    """The operation whose barrier the fault is about; of one waited for that which set it last above, else ""."""
    if mutant.kind == mutation.BARRIER:
        return given.instructions[mutant.position].operation
    above = reversed(given.instructions[: mutant.position])
    own = (one for one in above if mutant.barrier in (one.controls.write_barrier, one.controls.read_barrier))
    return next((one.operation for one in own), "")


def drawn(given: Listing, count: int, kinds=mutation.KINDS) -> list[Mutant]:
    """At most so many faults of each kind, none of them needless."""
    rng, mutants = random.Random(0), Mutants(given)
    some = [[mutant for mutant in mutants if mutant.kind == kind] for kind in kinds]
    chosen = [mutant for those in some for mutant in rng.sample(those, min(count, len(those)))]
    return [mutant for mutant in chosen if not mutants.needless(mutant)]


def test_planted_faults_are_flagged(finished) -> None:
    those = drawn(finished, 2)
    assert {mutant.kind for mutant in those} == set(mutation.KINDS)
    for mutant in those:
        assert flags(finished, mutant), mutant


def test_most_missing_waits_and_barriers_are_flagged_without_knowing_what_the_compiler_set(finished) -> None:
    """But for what has a latency that the compiler also relies on (MOVM): what waits for it may have waited anyway."""
    those = [
        one for one in drawn(finished, 30, (mutation.WAIT, mutation.BARRIER)) if signals(finished, one) not in TIMED
    ]
    told = [any(why != TOUCHED for why in flags(finished, mutant)) for mutant in those]
    assert sum(told) >= 0.8 * len(told) > 4


def test_what_waits_for_nothing_is_no_fault() -> None:
    """For a barrier that nobody sets; for one that was waited for since; before all that touches what it tells of."""
    right = listing()
    load, product, *rest = right.instructions[1:]
    again = one("MOV", "R0, R1", {"R0"}, {"R1"}, wait=0b100001)
    early = one("MOV", "R0, R1", {"R0"}, {"R1"}, wait=0b000001)
    those = (right.instructions[0], load, early, product, again, *rest)
    found = numbered(those)
    mutants = Mutants(found)
    waits = [mutant for mutant in mutants if mutant.kind == mutation.WAIT]
    assert {(m.position, m.barrier) for m in waits if mutants.needless(m)} == {(2, 0), (3, 0), (4, 0), (4, 5)}
    for mutant in mutants:
        by_flow = any(why != TOUCHED for why in flags(found, mutant))
        assert by_flow != mutants.needless(mutant), mutant


def test_a_later_load_of_the_pipe_tells_of_an_earlier_one_and_a_result_nobody_reads_of_nothing() -> None:
    loads = [one("LDSM.16.M88.4", "", {f"R{40 + k}"}, {"R2"}, write_barrier=k, stall=2) for k in range(3)]
    use = one("FADD", "", {"R9"}, {"R40", "R41"}, wait=0b010, stall=15, yield_=0)
    those = [one("NOP", "", set(), set()), *loads, use, one("EXIT", "", set(), set(), stall=5)]
    found = numbered(those)
    mutants = Mutants(found)
    needed = {m.position for m in mutants if m.kind == mutation.BARRIER and not mutants.needless(m)}
    assert violations(found) == () and needed == {2}


def test_opposite_guards_never_meet() -> None:
    guarded = [msgspec.structs.replace(one("MOV", "", {"R0"}, {"R1", "P0"}, stall=5), guard="@P0")]
    guarded.append(msgspec.structs.replace(one("MOV", "", {"R3"}, {"R0", "P0"}, stall=5), guard="@!P0"))
    for there, needless in ((guarded, True), ([guarded[0], msgspec.structs.replace(guarded[1], guard="@P0")], False)):
        mutants = Mutants(numbered(there))
        assert [mutants.needless(mutant) for mutant in mutants] == [needless, needless]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_of_hundreds_of_faults_hardly_one_is_missed(target: str, tmp_path) -> None:
    kernels = count(3, 1)
    flagged = [
        bool(flags(given, mutant))
        for seed in range(200, 200 + kernels)
        for given in listed(compiled(target, seed, Cache(tmp_path)))
        for mutant in drawn(given, 30)
    ]
    assert len(flagged) > 80 * kernels and sum(flagged) >= 0.99 * len(flagged)
