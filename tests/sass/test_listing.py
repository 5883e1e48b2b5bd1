"""Definitions and uses are nvdisasm's, all registers of a group; what cannot be listed says why and what to do."""

import re
from collections import Counter

import pytest

from cudal2.config import SassConfig
from cudal2.sass import blocks, latencies, listing, opcodes
from cudal2.sass.listing import Listing, Unlisted
from cudal2.sass.mining import kernels
from cudal2.sass.polish.subject import find
from cudal2.worker.cuda.compile import cubin, sass
from cudal2.worker.sandbox import jail

ROWS = """
\t.target\tsm_80
\t.section\t.text.k,"ax",@progbits
        // +-----+
        // |     GPR      |  PRED  |
        // |              |        |
        // |   # 01234567 | # 01   |
        // +-----+
.text.k:
        /*0000*/     IMAD.WIDE R4, R0, 0x8, R2 ;      // |   4 v:vv^^   |        |
.L_x_0:                                               // |   4 ::::::   |        |
        /*0010*/     @!P0 LDG.E.64 R6, [R4.64] ;      // |   6 ::::vv^^ | 1 v    |
        /*0020*/     BRA `(.L_x_0) ;                  // |   6 ::::::::  | 1 :    |
        /*0030*/     FROB R0 ;                        // |   6 x:::::::  | 1 :    |
"""


def test_columns_are_registers() -> None:
    found = listing.parse(ROWS.splitlines(), "k")
    wide, load, jump, odd = found.instructions
    assert found.architecture == "sm_80"
    assert (wide.defines, wide.uses) == ({"R4", "R5"}, {"R0", "R2", "R3"})
    assert (load.defines, load.uses, load.guard) == ({"R6", "R7"}, {"R4", "R5", "P0"}, "@!P0")
    assert (jump.target, odd.defines, odd.uses) == (1, {"R0"}, {"R0"})
    assert [(block.start, block.stop, block.successors) for block in blocks.blocks(found)] == [
        (0, 1, (1,)),
        (1, 3, (1,)),
        (3, 4, ()),
    ]
    assert odd.operation not in opcodes.KNOWN


def test_what_nvdisasm_leaves_unmarked_is_defined_or_used(code, finished) -> None:
    """A P2R reads the predicates of its mask, an R2P writes them; the words are such of CUDA 13.0."""
    save, restore = (0x004FE4000000000000000010FF0A7000 | kind for kind in (0x803, 0x804))
    start, _ = cubin.code_of(code, finished.kernel)
    words = save.to_bytes(16, "little") + restore.to_bytes(16, "little")
    patched = code[:start] + words + code[start + len(words) :]
    first, second = listing.read(patched, finished.kernel, jail.choose("auto")).instructions[:2]
    assert (first.opcode, first.defines, first.uses) == ("P2R", {"R10"}, {"P4"})
    assert (second.opcode, second.defines, second.uses) == ("R2P", {"P4"}, frozenset())
    whole = ROWS.replace("FROB R0 ", "R2P PR, R0, R6")
    assert listing.parse(whole.splitlines(), "k").instructions[3].defines >= {f"P{number}" for number in range(7)}


def test_every_operand_is_a_register_or_known_to_be_none(finished) -> None:
    """What names a register in another way than by its number would be neither defined nor used."""
    known = re.compile(r"U?[RP](?:\d+|Z|T)|U?PR|S?B\d|SR_\w+|SRZ|gsb0|g?desc|INF|QNAN")
    for one in finished.instructions:
        plain = re.sub(r"`\(.*?\)|\(\*.*?\*\)|c\[0x|(?<=\w)\.\w+", "", one.operands)
        assert all(known.fullmatch(word) for word in re.findall(r"\b[A-Za-z_]\w*", plain)), one.text


def test_every_register_of_the_text_is_defined_or_used(finished) -> None:
    for one in finished.instructions:
        if one.operation not in ("CALL", "RET"):
            named = set(re.findall(r"\b(?:U?R\d+|U?P\d+)\b", f"{one.guard} {one.operands}"))
            assert named <= one.defines | one.uses, one.text
    assert [one.origin for one in finished.instructions] == list(range(len(finished.instructions)))


def test_what_cannot_be_listed_says_what_to_do(code, finished) -> None:
    kind = jail.choose("auto")
    with pytest.raises(Unlisted, match="it has") as told:
        listing.read(code, "nobody", kind)
    assert kernels(code)[0][:20] in str(told.value) and "\n" not in str(told.value)
    for bad in (b"", code[: len(code) // 2], bytes(len(code))):
        with pytest.raises(Unlisted, match="compile"):
            listing.read(bad, finished.kernel, kind)
    elsewhere = Listing(finished.kernel, "sm_75", finished.instructions)
    with pytest.raises(Unlisted, match=r"sm_75.*mining"):
        latencies.table(elsewhere)
    with pytest.raises(Unlisted, match="nvdisasm"):
        listing.parse([], "k")


def test_of_a_cubin_with_several_kernels_one_is_played_on(code, finished, tmp_path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(code)
    found = find(path, SassConfig(run=str(tmp_path)))
    assert found.listing == finished and found.source is None
    with pytest.raises(Unlisted, match="it has"):
        find(path, SassConfig(run=str(tmp_path), kernel="nobody"))


@pytest.mark.slow
def test_operations_are_counted_as_they_are_listed(code: bytes, finished: Listing):
    found = sass.operation_counts(code, jail.choose("auto"), 30)
    listed = Counter(one.operation for one in finished.instructions)
    assert "NOP" not in found and {"HMMA", "HGMMA"}.intersection(found)
    assert all(found[name] >= count for name, count in listed.items() if name != "NOP")
    assert list(found.values()) == sorted(found.values(), reverse=True)
