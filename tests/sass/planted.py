"""A small loop in a bad order whose good order is known: each load is waited for at once, all could be under way."""

import msgspec

from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import NO_BARRIER, Controls, with_controls

LOADS = 5


def one(opcode: str, operands: str, defines: set[str], uses: set[str], **more) -> Instruction:
    """An instruction of sm_80; its word holds nothing but the scheduling fields."""
    target = more.pop("target", None)
    fields = {"stall": 1, "yield_": 1, "write_barrier": NO_BARRIER, "read_barrier": NO_BARRIER, "wait": 0, "reuse": 0}
    controls = Controls(**(fields | more))
    word = with_controls(bytes(16), controls)
    return Instruction(
        0, word, "", opcode, operands, frozenset(defines), frozenset(uses), controls, controls, target=target
    )


def listing(good: bool = False) -> Listing:
    """A loop of LOADS loads and the matrix instructions that use them: all loads first, or each before its use."""
    loads, products = [], []
    for number in range(LOADS):
        loaded = {f"R{40 + 4 * number + k}" for k in range(4)}
        summed = {f"R{80 + 4 * number + k}" for k in range(4)}
        loads.append(one("LDSM.16.M88.4", "", loaded, {"R2"}, write_barrier=number, stall=2))
        products.append(one("HMMA.16816.F32", "", summed, summed | loaded, wait=1 << number, stall=2))
    pairs = [*loads, *products] if good else [both for pair in zip(loads, products) for both in pair]
    jump = one("BRA", "`(.L_1)", set(), set(), stall=5, target=1)
    # So much that no result of the last iteration is under way, as in the long loops of real kernels.
    idle = [one("NOP", "", set(), set(), stall=15, yield_=0) for _ in range(4)]
    those = [one("NOP", "", set(), set()), *pairs, *idle, jump, one("EXIT", "", set(), set(), stall=5)]
    numbered = (msgspec.structs.replace(those[place], origin=place) for place in range(len(those)))
    return Listing("planted", "sm_80", tuple(numbered))
