"""What an instruction keeps for the next: where that would be an old value, and what a move makes of it."""

import msgspec
import pytest
from sass.planted import one

from cudal2.sass import opcodes, reuse
from cudal2.sass.blocks import graph
from cudal2.sass.listing import Instruction, Listing

SLOTS = (3, 4, 8)


def reading(opcode: str, *sources: int, wide: int = 1, defines: tuple[int, ...] = (), keeps: int = 0) -> Instruction:
    """An instruction that reads so many registers in each slot, from these numbers on."""
    uses = {f"R{source + more}" for source in sources for more in range(wide)}
    made = one(opcode, "", {f"R{number}" for number in defines}, uses, reuse=keeps)
    word = bytearray(made.word)
    for place in SLOTS:
        word[place] = 255
    for place, source in zip(SLOTS, sources):
        word[place] = source
    return msgspec.structs.replace(made, word=bytes(word))


def listed(*those: Instruction) -> Listing:
    return Listing("k", "sm_90a", tuple(msgspec.structs.replace(o, origin=n) for n, o in enumerate(those)))


def said(*those: Instruction) -> str:
    return reuse.wrong(listed(*those), 0, len(those))


def product(a: int, b: int, keeps: int = 0) -> Instruction:
    return reading("HMMA.16816.F32", a, b, wide=4, defines=(100, 101, 102, 103), keeps=keeps)


def test_a_load_does_not_take_a_kept_operands_place():
    """As on an H200: the second load's value was not the one that the next matrix instruction multiplied."""
    address, anew = reading("LDSM.16.M88.4", 57, defines=(48, 49, 50, 51)), reading("LDSM.16.M88.4", 59, defines=(40,))
    assert said(product(40, 48, keeps=1), address, product(40, 44)) == ""
    assert "R40" in said(product(40, 48, keeps=1), address, anew, product(40, 44))
    assert said(product(40, 48), address, anew, product(40, 44)) == ""


@pytest.mark.parametrize("number", [41, 42, 43])
def test_every_register_of_an_operand_is_kept(number):
    anew = reading("LDS", 57, defines=(number,))
    assert f"R{number}" in said(product(40, 48, keeps=1), anew, product(40, 44))


@pytest.mark.parametrize("other, lost", [(6, True), (5, False)])
def test_registers_of_even_and_of_odd_number_have_places_of_their_own(other, lost):
    those = reading("IADD3", 4, keeps=1), reading("LEA", other), reading("MOV", 9, defines=(4,)), reading("IADD3", 4)
    assert (said(*those) == "") is lost


def test_matrix_instructions_have_places_of_their_own():
    those = reading("IADD3", 4, keeps=1), product(8, 16), reading("MOV", 9, defines=(4,)), reading("IADD3", 4)
    assert "R4" in said(*those)


def test_an_addend_of_64_bits_is_two_registers():
    assert reuse.operand(reading("IMAD.WIDE", 20, 22, 32, wide=2), 2) == ("R32", "R33")
    assert reuse.operand(reading("IMAD.HI.U32", 33, 22, 32), 2) == ("R32", "R33")
    assert reuse.operand(reading("IADD3", 33, 22, 32), 2) == ("R32",)


def test_only_what_is_read_again_is_kept_anew():
    again = listed(product(40, 48), product(40, 44))
    assert reuse.repeated(again, 0, 2) == reuse.keepable(again, 0, 2) == 1
    assert reuse.repeated(listed(product(40, 48), product(36, 48)), 0, 2) == 2
    assert reuse.repeated(listed(product(40, 48), product(36, 44)), 0, 2) == 0
    assert reuse.repeated(listed(product(40, 48), reading("LDS", 57, defines=(42,)), product(40, 44)), 0, 3) == 0
    kept = msgspec.structs.replace(product(40, 48), controls=product(40, 48, keeps=2).controls)
    assert "not" in said(kept, product(40, 44))


def test_a_swap_keeps_what_is_read_next_and_nothing_else():
    first, second, third = product(40, 48), product(36, 44), product(40, 44)
    after, changes = reuse.swapped(listed(first, second, third), 0, 1, 3)
    assert [one.controls.reuse for one in after.instructions] == [1, 2, 0]
    assert {(change.position, change.value) for change in changes} == {(0, 1), (1, 2)}
    back, _ = reuse.swapped(after, 0, 1, 3)
    assert [one.controls.reuse for one in back.instructions] == [0, 2, 0]


def test_the_text_shows_the_bits_of_now():
    made = msgspec.structs.replace(product(40, 48, keeps=2), operands="R100, R40, R48.reuse, R100")
    assert reuse.text(made) == made.text
    for keeps, shown in ((0, "R100, R40, R48, R100"), (1, "R100, R40.reuse, R48, R100")):
        now = msgspec.structs.replace(made, controls=product(40, 48, keeps=keeps).controls)
        assert reuse.text(now) == f"HMMA.16816.F32 {shown}"


def test_ptxas_keeps_what_is_read_again(finished):
    """Its own schedules are what the places are known from; these two kernels are not among those counted."""
    for block in graph(finished)[0]:
        for position in range(block.start, block.stop):
            one = finished.instructions[position]
            assert reuse.wrong(finished, position, block.stop) == ""
            if one.operation in opcodes.MATRIX and one.controls.reuse:
                assert one.controls.reuse == reuse.repeated(finished, position, block.stop)
