"""What no compiled kernel relies on is not permitted: the cases that were taken out, and those that ptxas does need."""

import msgspec
import pytest
from sass.planted import one

from cudal2.sass import latencies
from cudal2.sass.dependence import Checker, violations
from cudal2.sass.listing import Instruction, Listing


def listed(architecture: str, *those: Instruction) -> Listing:
    idle = [one("NOP", "", set(), set(), stall=15, yield_=0) for _ in range(5)]
    inside = [*idle, *those, *idle, one("EXIT", "", set(), set(), stall=5)]
    return Listing("k", architecture, tuple(msgspec.structs.replace(o, origin=n) for n, o in enumerate(inside)))


def rules(architecture: str, *those: Instruction) -> set[str]:
    return {found.rule for found in violations(listed(architecture, *those))}


def load(opcode: str, register: int, **more: int) -> Instruction:
    return one(opcode, "", {f"R{register}"}, {"R2"}, **(dict(stall=4) | more))


def use(register: int, **more: int) -> Instruction:
    return one("FADD", "", {"R60"}, {f"R{register}"}, **more)


@pytest.mark.parametrize(
    "opcode, ampere, hopper", [("LDSM", True, True), ("SHFL", True, True), ("LDC", None, False), ("LDG", False, False)]
)
def test_a_later_result_tells_of_an_earlier_one_where_ptxas_relies_on_it(
    opcode: str, ampere: bool | None, hopper: bool
) -> None:
    for architecture, told in (("sm_80", ampere), ("sm_86", ampere), ("sm_90a", hopper)):
        those = load(opcode, 8), load(opcode, 9, write_barrier=0), use(8, wait=1)
        if told is None:  # no kernel for it has such an instruction
            continue
        assert rules(architecture, *those) == (set() if told else {"raw"})


def test_a_result_is_not_overwritten_by_the_next_of_its_pipe() -> None:
    for opcode in ("LDS", "LDSM", "SHFL", "LDC"):
        assert rules("sm_90a", load(opcode, 8), load(opcode, 8, write_barrier=0)) == {"waw"}


def test_a_depbar_tells_of_no_result() -> None:
    barrier = one("DEPBAR.LE", "SB0, 0x0", set(), set(), stall=4)
    assert rules("sm_90a", load("LDG", 8, write_barrier=0), barrier, use(8)) == {"raw"}
    assert rules("sm_90a", load("LDG", 8, write_barrier=0), barrier, use(8, wait=1)) == set()


@pytest.mark.parametrize(
    "first, later, ampere, hopper",
    [
        ("LDG", "LDG", False, True),
        ("STS", "MOVM", True, False),
        ("STG", "LDS", True, True),
        ("LDS", "LDS", False, False),
    ],
)
def test_a_source_is_overwritten_at_once_where_ptxas_does_so(
    first: str, later: str, ampere: bool, hopper: bool
) -> None:
    for architecture, before in (("sm_80", ampere), ("sm_90a", hopper)):
        those = one(first, "", set(), {"R8"}, stall=4), load(later, 8, write_barrier=0)
        assert rules(architecture, *those) == (set() if before else {"war"})


@pytest.mark.parametrize("first, told", [("SHFL", True), ("STG", True), ("LDG", False)])
def test_a_store_tells_that_sources_were_read_where_ptxas_relies_on_it(first: str, told: bool) -> None:
    """A stream-K kernel of 255 registers overwrites a SHFL's source on Hopper when a later STG's were read."""
    earlier = one(first, "", {"R9"} if first != "STG" else set(), {"R8"}, stall=4, write_barrier=0)
    store = one("STG", "", set(), {"R2"}, stall=4, read_barrier=1)
    assert rules("sm_90a", earlier, store, use(60, wait=2)) == set()
    anew = one("FADD", "", {"R8"}, {"R61"}, wait=2)
    assert rules("sm_90a", earlier, store, anew) == (set() if told else {"war"})


def test_predicates_are_read_at_issue_where_ptxas_overwrites_them() -> None:
    anew = one("ISETP", "", {"P0"}, {"R60"})
    for opcode, found in (("STG", set()), ("LDC", {"war"})):
        assert rules("sm_90a", one(opcode, "", set(), {"R2", "P0"}, stall=4), anew) == found


def test_what_is_pinned_stays_though_two_others_change_places_around_it() -> None:
    given = listed("sm_90a", load("LDG", 8, write_barrier=0), one("BAR.SYNC", "0x0", set(), set()), use(9))
    for around in (given, listed("sm_90a", use(9), one("BAR.SYNC", "0x0", set(), set()), use(10))):
        those = list(around.instructions)
        those[5], those[7] = those[7], those[5]
        found = violations(msgspec.structs.replace(around, instructions=tuple(those)))
        assert any("nothing passes BAR" in broken.why for broken in found)


def test_the_stall_of_what_is_pinned_is_not_lowered_and_nothing_stalls_for_no_cycle() -> None:
    given = listed("sm_90a", one("MEMBAR.SC.CTA", "", set(), set(), stall=6), use(9, stall=2))
    for position, stall, legal in ((5, 5, False), (5, 7, True), (6, 1, True), (6, 0, False)):
        yields = int(bool(stall))
        controls = msgspec.structs.replace(given.instructions[position].controls, stall=stall, yield_=yields)
        assert bool(Checker(given).may_control(position, controls)) != legal
        assert bool(violations(given.controlled(position, controls))) != legal


def test_nothing_moves_closer_than_ptxas_ever_had_two_such() -> None:
    """Figures concluded from others let two results of one register, or a source of a matrix product, come closer."""
    for table in latencies._tables().values():
        for first, row in table.distances.items():
            kind, earlier = first.split(" ", 1)
            for later, seen in row.items():
                assert table.needed(kind, earlier, later, True) == seen.cycles
        assert table.needed("waw", "R int", "no such", True) is None
        assert table.needed("war", "R HMMA.16816.F32", "no such", True) is None


def test_an_edit_is_judged_as_strictly_as_a_swap() -> None:
    """A figure of too few kernels to blame a finished schedule for is no reason to let an edit go below it."""
    clock = one("CS2R", "", {"R8"}, set(), stall=15, yield_=0)
    given = listed("sm_90a", clock, one("FADD", "", {"R60"}, {"R8"}))
    sooner = given.controlled(5, msgspec.structs.replace(clock.controls, stall=14))
    assert violations(sooner) == violations(given, Checker(given)) == ()
    assert {found.rule for found in violations(sooner, Checker(given))} == {"raw"}
