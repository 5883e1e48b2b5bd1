"""Schedules that a GPU refuted and the rules once let pass: they are refused, and what is as fast but right is not."""

import random

import msgspec
import pytest
from sass.game.test_play import agrees, wander
from sass.planted import one

from cudal2.sass import flow, latencies
from cudal2.sass.dependence import Checker, violations
from cudal2.sass.game.play import Play
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import mismatch

BYTES = {"d": 2, "a": 3, "b": 4, "c": 8}


def placed(instruction: Instruction, **registers: int) -> Instruction:
    """The instruction with numbers of registers in its word: `d` is defined, `a`, `b` and `c` are used."""
    word = bytearray(instruction.word)
    for slot, number in registers.items():
        word[BYTES[slot]] = number
    return msgspec.structs.replace(instruction, word=bytes(word))


def listed(*those: Instruction) -> Listing:
    numbered = (msgspec.structs.replace(one, origin=place) for place, one in enumerate(those))
    return Listing("fuzzed", "sm_90a", tuple(numbered))


def move(register: int, stall: int) -> Instruction:
    made = one("IMAD.MOV.U32", "", {f"R{register}"}, {"R20"}, stall=stall)
    return placed(made, d=register, a=255, b=255, c=20)


def addressed(opcode: str = "IMAD.WIDE") -> Listing:
    """Lower half of an address, upper half, two cycles, and a product that is added to it: as ptxas has it."""
    product = one(opcode, "", {"R8", "R9"}, {"R2", "R3", "R4", "R5"}, stall=12, yield_=0)
    halves = move(4, 2), move(5, 2)
    return listed(
        one("NOP", "", set(), set()), *halves, placed(product, d=8, a=2, b=3, c=4), one("EXIT", "", set(), set())
    )


def met(stall: int) -> Listing:
    """Threads meet; a sum that has nothing to do with it, and a load of what others have stored, in a loop."""
    barrier = one("BAR.SYNC.DEFER_BLOCKING", "0x0", set(), set(), stall=stall)
    product = one("HMMA.16816.F32", "", {"R40"}, {"R40", "R30"}, stall=15, yield_=0)
    load = one("LDSM.16.M88.4", "", {"R60"}, {"R2"}, stall=15, yield_=0, write_barrier=0)
    idle = [one("NOP", "", set(), set(), stall=15, yield_=0) for _ in range(4)]
    jump = one("BRA", "`(.L_1)", set(), set(), stall=5, target=1, wait=1)
    return listed(one("NOP", "", set(), set()), barrier, product, load, *idle, jump, one("EXIT", "", set(), set()))


def test_only_the_upper_half_of_a_wide_addend_may_come_late() -> None:
    right = addressed()
    assert violations(right) == ()
    assert "R4" in Checker(right).may_swap(1)
    assert {(found.rule, found.earlier) for found in violations(right.swapped(1))} == {("raw", 2)}


def test_the_addend_of_another_product_may_not() -> None:
    assert {found.rule for found in violations(addressed("IMAD.HI.U32"))} == {"raw"}


def test_a_high_product_takes_longer_to_another() -> None:
    for opcode, rules in (("IMAD", set()), ("IMAD.HI.U32", {"raw"})):
        first = placed(one("IMAD.HI.U32", "", {"R4"}, {"R2", "R3"}, stall=5), d=4, a=2, b=3, c=255)
        second = placed(one(opcode, "", {"R5"}, {"R4", "R3"}, stall=5), d=5, a=4, b=3, c=255)
        assert {found.rule for found in violations(listed(first, second))} == rules


def test_memory_is_not_looked_at_right_behind_a_barrier() -> None:
    for stall, legal in ((5, False), (6, True)):
        right = met(stall)
        assert violations(right) == ()
        assert (Checker(right).may_swap(2) == "") == legal
        assert {found.rule for found in violations(right.swapped(2))} == (set() if legal else {"sync"})


def saved() -> Listing:
    """A predicate, a sum, an address, a P2R that saves the predicate four cycles after it, in a loop."""
    test = one("ISETP.GE.AND", "P1, PT, R0, UR11, PT", {"P1"}, {"R0", "UR11"})
    add = one("VIADD", "R1, R3, 0x18", {"R1"}, {"R3"})
    address = one("LEA", "R4, P3, R2, UR6, 0x1", {"R4", "P3"}, {"R2", "UR6"}, stall=2, yield_=0)
    save = one("P2R", "R8, PR, RZ, 0x2", {"R8"}, {"P1"}, stall=2)
    idle = [one("NOP", "", set(), set(), stall=15, yield_=0) for _ in range(4)]
    jump = one("BRA", "`(.L_1)", set(), set(), stall=5, target=1)
    nop, end = one("NOP", "", set(), set()), one("EXIT", "", set(), set(), stall=5)
    return listed(nop, test, add, address, save, *idle, jump, end)


def test_a_predicate_is_not_saved_before_it_is_there() -> None:
    right = saved()
    assert violations(right) == ()
    for place, cycles in ((3, 2), (1, 3)):
        assert f"P1 of ISETP (1) after {cycles} of 4" in Checker(right).may_swap(place)
        assert {found.rule for found in violations(right.swapped(place))} == {"raw"}


def reread(opcode: str) -> Listing:
    """A load, threads or memory in step, a wait for the load's address to be read, another value for it, in a loop."""
    load = one("LDG.E.64", "", {"R88", "R89"}, {"R86", "R87"}, write_barrier=5, read_barrier=1)
    step = one(opcode, "", set(), set(), stall=6)
    waits = one("MOV", "R84, R60", {"R84"}, {"R60"}, wait=1 << 1)
    idle = [one("NOP", "", set(), set(), stall=15, yield_=0) for _ in range(4)]
    jump = one("BRA", "`(.L_1)", set(), set(), stall=5, target=1, wait=1 << 5)
    nop, end = one("NOP", "", set(), set()), one("EXIT", "", set(), set(), stall=5)
    return listed(nop, load, step, waits, move(86, 1), *idle, jump, end)


@pytest.mark.parametrize("opcode", ["BAR.SYNC.DEFER_BLOCKING", "MEMBAR.SC.CTA", "MEMBAR.SC.GPU", "UCGABAR_WAIT"])
def test_what_brings_memory_into_step_does_not_tell_that_an_address_was_read(opcode: str) -> None:
    right = reread(opcode)
    assert violations(right) == ()
    assert "R86 of LDG (1)" in Checker(right).may_swap(3)
    assert {(found.rule, found.earlier) for found in violations(right.swapped(3))} == {("war", 1)}


def test_a_game_knows_it_too() -> None:
    for given in (met(5), met(6), saved(), reread("MEMBAR.SC.CTA")):
        play = Play(given)
        for seed in range(4):
            wander(play, random.Random(seed), 3)
            agrees(play, list(range(len(play))))
            assert violations(play.listing) == ()


def test_no_addend_of_a_finished_kernel_may_come_a_cycle_sooner_after_its_definition(finished) -> None:
    """Where the compiler left the cycles that an addition needs and none more, a lower stall is refused."""
    checker, tried = Checker(finished), 0
    for position, found in flow.meetings(finished, checker.table.unknown):
        before = finished.instructions[found.earlier.origin]
        needed = checker.table.needed(found.kind, *latencies.names(found), False)
        lowered = msgspec.structs.replace(before.controls, stall=before.controls.stall - 1)
        addend = found.kind == "raw" and latencies.names(found)[1].startswith("imad")
        if not addend or found.cycles != needed or mismatch(lowered):
            continue
        rules = {(one.rule, one.position) for one in violations(finished.controlled(before.origin, lowered))}
        assert ("raw", position) in rules
        tried += 1
        if tried == 4:
            return
    assert tried


def test_a_copys_address_is_reloaded_behind_it_but_not_computed() -> None:
    """As ptxas has it in a kernel for sm_90a that spills: what goes through one unit in order needs no barrier."""
    copy = one("LDGSTS.E", "", set(), {"R4", "R8"}, stall=4)
    reload = one("LDL", "", {"R4"}, {"R1"}, stall=4, write_barrier=0)
    rules = {
        later.operation: {
            found.rule for found in violations(listed(copy, later, one("EXIT", "", set(), set(), wait=1)))
        }
        for later in (reload, move(4, 4), one("LDS", "", {"R4"}, {"R1"}, stall=4, write_barrier=0))
    }
    assert rules == {"LDL": set(), "IMAD": {"war"}, "LDS": {"war"}}
