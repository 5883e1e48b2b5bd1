"""Special registers are refused unless they are named, whatever a PTX file calls its own, and the grid's barrier is a
barrier only. Registers that are read and never written are named; what honest kernels do with registers is not."""

import random
import re
import subprocess
from itertools import product
from string import ascii_letters

import pytest
from toolkit import needs_toolkit

from cudal2.worker.cuda.compile import build, toolchain
from cudal2.worker.cuda.compile.ptx import OWN, Registers
from cudal2.worker.cuda.compile.registers import ALLOWED

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def special_faults(*lines: str) -> tuple[str, ...]:
    body = "\n\t".join(lines)
    registers = ".reg .b64 %rd<9>;\n\t.reg .b32 %r<99>;\n\t.reg .pred %p<9>;"
    parameters, found, _ = build.faults(
        f"{HEAD}.visible .entry multiply(.param .u64 A)\n{{\n\t{registers}\n\t{body}\n\tret;\n}}\n"
    )
    assert not parameters
    return found


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_kernel_may_ask_where_it_is(name: str) -> None:
    assert special_faults(f"mov.u32 %r1, {name}.x;", f"@%p1 add.s32 %r2, %r1, {name}.y;") == ()


FORBIDDEN = (
    "%gridid %smid %nsmid %warpid %nwarpid %clock %clock_hi %clock64 %globaltimer %globaltimer_lo %globaltimer_hi "
    "%pm0 %pm7 %pm0_64 %pm7_64 %envreg0 %envreg3 %envreg31 %current_graph_exec %reserved_smem_offset_begin "
    "%reserved_smem_offset_0 %mbarrier_ %devtool_at_exit_pc %what_comes_next %tidy %Tid $%clock"
).split()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_everything_else_is_refused(name: str) -> None:
    assert len(special_faults(f"mov.u32 %r1, {name};")) == 1
    assert len(special_faults("mov.u32 %r1, %tid.x;", f"@%p1 add.s32 %r1, %r2, {name};")) == 1
    assert len(special_faults(f"@{name} bra $L;", "$L:")) == 1


HIDDEN = {
    "in a vector": "mov.b64 %rd1, {%r1, %smid};",
    "as an address": "ld.global.u32 %r1, [%envreg4];",
    "in a call": "{ .param .b32 p; st.param.b32 [p], %gridid; }",
}


@pytest.mark.parametrize("how", HIDDEN)
def test_a_special_register_is_seen_wherever_it_stands(how: str) -> None:
    assert len(special_faults(HIDDEN[how])) == 1


@pytest.mark.parametrize("name", [*FORBIDDEN, *sorted(ALLOWED), "%pm<8>", "%envreg<3>", "%clock, %r7"])
def test_no_register_may_be_called_like_a_special_one(name: str) -> None:
    """ptxas gives `.reg .b32 %envreg1;` what the special register holds, until it is written."""
    body = f".visible .entry k()\n{{ {{ .reg .b32 {name}; mov.b32 {name.partition('<')[0]}, 0; }} ret; }}\n"
    assert build.faults(HEAD + body)[0]


LETTERS = [*ascii_letters, *map("".join, product(ascii_letters, repeat=2))]


def test_what_a_register_may_be_called_is_no_special_register_of_the_assemblers(tmp_path) -> None:
    needs_toolkit()
    names = [f"%{one}{digits}" for one in (*LETTERS, "SPL", "tmp") for digits in ("", 0, 1, 7, 31, 64)]
    allowed = [name for name in names if OWN.fullmatch(name)]
    moves = "".join(f"mov.u32 x, {name};\n" for name in allowed)
    (tmp_path / "k.ptx").write_text(f"{HEAD}.visible .entry k()\n{{ .reg .b32 x;\n{moves} ret; }}\n")
    ptxas = toolchain.find().root / "bin" / "ptxas"
    said = subprocess.run(
        [ptxas, "-arch=sm_90a", tmp_path / "k.ptx", "-o", "/dev/null"], capture_output=True, text=True
    )
    unknown = set(re.findall(r"Unknown symbol '([^']+)'", said.stdout + said.stderr))
    assert len(allowed) > 10_000 and unknown == set(allowed)


@pytest.mark.parametrize(
    "text", ["{ .reg .v2 .b32 x; }", ".reg .b32 x<0>;", ".reg .b32 x y;", '.pragma "x"; .shared .b32 %clock;']
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    body = f".visible .entry k()\n{{\n{text}\n\tret;\n}}\n"
    assert build.faults(HEAD + body)[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_word_is_the_register_of_the_innermost_block_that_declares_it(seed: int) -> None:
    """Against a list of open blocks that holds every name by itself."""
    rng, registers, blocks = random.Random(seed), Registers(), [set[str]()]
    numbers, begun = {id(blocks[0]): 0}, 0
    for _ in range(300):
        match rng.randrange(5):
            case 0:
                registers.scopes("{")
                blocks.append(set())
                begun += 1
                numbers[id(blocks[-1])] = begun
            case 1 if len(blocks) > 1:
                registers.scopes("}")
                blocks.pop()
            case 2:
                name, count = f"%{rng.choice('abc')}", rng.randrange(1, 12)
                if f"{name}0" not in blocks[-1]:
                    registers.declare(f".reg .b32 {name}<{count}>")
                    blocks[-1].update(f"{name}{number}" for number in range(count))
            case _:
                word = f"%{rng.choice('abc')}{rng.randrange(13)}"
                block = next((block for block in reversed(blocks) if word in block), None)
                expected = word if block in (None, blocks[0]) else f"{word}%{numbers[id(block)]}"
                assert registers.named(word) == expected and (word in registers.met) >= (block is blocks[0])


LOWER, UPPER = "mov.u32 %r1, %envreg2; cvt.u64.u32 %rd1, %r1;", "mov.u32 %r2, %envreg1; cvt.u64.u32 %rd2, %r2;"
WHOLE = f"{LOWER} {UPPER} bfi.b64 %rd3, %rd2, %rd1, 32, 32;"
COUNT = f"{WHOLE} add.s64 %rd4, %rd3, 4;"
BARRIERS = {
    "as nvcc 13 has it": f"{COUNT} setp.ne.s64 %p1, %rd3, 0; atom.add.release.gpu.u32 %r3,[%rd4],%r5; "
    "$L: ld.acquire.gpu.u32 %r4,[%rd4]; xor.b32 %r4, %r4, %r3;",
    "by a shift": f"{LOWER} {UPPER} shl.b64 %rd5, %rd2, 32; or.b64 %rd3, %rd5, %rd1; ld.volatile.u32 %r4, [%rd3+4];",
    "used before, as a loop may": f"bra $M; $L: ld.acquire.gpu.u32 %r4, [%rd4]; $M: {COUNT} bra $L;",
}
STRAYS = {
    "read around it": f"{COUNT} ld.global.u32 %r3, [%rd4+8];",
    "read before it": f"{COUNT} ld.global.u32 %r3, [%rd3];",
    "read further": f"{COUNT} ld.global.v2.u32 {{%r3, %r4}}, [%rd4];",
    "read as more": f"{COUNT} ld.global.u64 %rd5, [%rd4];",
    "written": f"{COUNT} st.global.u32 [%rd4], %r3;",
    "exchanged": f"{COUNT} atom.exch.b32 %r3, [%rd4], %r5;",
    "moved on": f"{COUNT} add.s64 %rd5, %rd4, 4; ld.u32 %r3, [%rd5];",
    "moved on in each turn": f"{COUNT} $L: add.s64 %rd4, %rd4, 4; ld.u32 %r3, [%rd4]; bra $L;",
    "moved by what is computed": f"{WHOLE} add.s64 %rd4, %rd3, %rd6; ld.u32 %r3, [%rd4];",
    "stored": f"{COUNT} st.global.u64 [%rd6], %rd4;",
    "counted with": f"{COUNT} atom.add.u32 %r3, [%rd4], %r1;",
    "half of it kept": f"{LOWER} st.global.u32 [%rd6], %r1;",
    "with another half": f"{LOWER} bfi.b64 %rd3, %rd6, %rd1, 32, 32; ld.u32 %r3, [%rd3+4];",
    "both halves the same": f"{LOWER} bfi.b64 %rd3, %rd1, %rd1, 32, 32; ld.u32 %r3, [%rd3+4];",
    "shifted": f"{WHOLE} shr.u64 %rd5, %rd3, 12;",
    "compared": f"{WHOLE} setp.ne.s64 %p1, %rd3, %rd6;",
    "used as a number": "mov.u32 %r1, %envreg2; add.s32 %r2, %r1, 1;",
    "at once": "add.s32 %r2, %envreg2, 1;",
    "by another move": "mov.u64 %rd1, {%envreg1, %envreg2};",
    "mixed": f"{COUNT} mov.u64 %rd4, %rd6; ld.u32 %r3, [%rd4];",
}


@pytest.mark.parametrize("how", BARRIERS)
def test_a_grid_may_wait_for_itself(how: str) -> None:
    assert special_faults(BARRIERS[how]) == ()


@pytest.mark.parametrize("how", STRAYS)
def test_the_barrier_leads_nowhere_else(how: str) -> None:
    assert len(special_faults(STRAYS[how])) == 1


TWICE = ".func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; ret; }\n"


def unwritten_faults(*lines: str) -> tuple[str, ...]:
    body = "\n\t".join(lines)
    registers = ".reg .b64 %rd<9>;\n\t.reg .b32 %r<99>;\n\t.reg .f32 %f<9>;\n\t.reg .pred %p<9>;"
    kernel = f".visible .entry multiply(.param .u64 A)\n{{\n\t{registers}\n\t{body}\n\tret;\n}}\n"
    parameters, special, found = build.faults(HEAD + TWICE + kernel)
    assert not parameters and not special
    return found


HONEST = {
    "written before": ("mov.u32 %r1, 7;", "add.s32 %r2, %r1, %r1;", "st.global.u32 [%rd1], %r2;", "mov.u64 %rd1, 8;"),
    "in a loop": ("mov.u32 %r1, 0;", "$L: add.s32 %r1, %r1, 1;", "setp.lt.s32 %p1, %r1, 8;", "@%p1 bra $L;"),
    "a vector": ("mov.u64 %rd1, 8;", "ld.global.v2.u32 {%r1, %r2}, [%rd1];", "add.s32 %r3, %r1, %r2;"),
    "two at once": (
        "{ .reg .pred q; elect.sync %r1|q, 0xffffffff; selp.b32 %r2, 1, 0, q; }",
        "add.s32 %r3, %r1, %r2;",
    ),
    "by a condition, behind a value": ("mov.u32 %r1, 0;", "setp.eq.s32 %p1, %r1, 0;", "@%p1 mov.u32 %r1, %r1;"),
    "a barrier that counts": ("setp.eq.s32 %p1, 0, 1; barrier.cta.red.popc.u32 %r1, 0, %p1;", "add.s32 %r2, %r1, 1;"),
    "in each of two blocks": (
        "{ .reg .b32 x; mov.u32 x, 1; add.s32 %r1, x, 1; }",
        "{ .reg .b32 x; mov.u32 x, %r1; add.s32 %r2, x, 1; }",
    ),
    "accumulators": (
        "mov.u64 %rd1, 8;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, 0, 1, 1, 0, 0;",
        "add.f32 %f5, %f1, %f2;",
    ),
    "accumulators, if a predicate says so": (
        "mov.u64 %rd1, 8; setp.eq.s32 %p1, 0, 1;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, %p1, 1, 1, 0, 0;",
    ),
    "a carry": ("add.cc.u32 %r1, 1, 2;", "addc.u32 %r2, 1, 2;"),
    "a call": (
        "{ .param .b32 p; .param .b32 r; mov.u32 %r1, 1; st.param.b32 [p], %r1; call.uni (r), twice, (p);",
        "ld.param.b32 %r2, [r]; } add.s32 %r3, %r2, 1;",
    ),
}
FAULTS = {
    "never": "add.s32 %r2, %r1, 1;",
    "moved": "mov.b64 %rd2, %rd1;",
    "in halves": "mov.b64 {%r1, %r2}, %rd1;",
    "stored": "mov.u64 %rd1, 8; st.global.u32 [%rd1], %r1;",
    "as an address": "ld.global.u32 %r1, [%rd1];",
    "before": "add.s32 %r1, %r1, 1; add.s32 %r3, %r2, 1;",
    "by a condition": "setp.eq.s32 %p1, 0, 1; @%p1 mov.u32 %r1, 0; add.s32 %r2, %r1, 1;",
    "in a block beside": "{ .reg .b32 x; mov.u32 x, 0; } { .reg .b32 x; mov.u32 %r1, x; }",
    "in a block around": "{ .reg .b32 x; { .reg .b32 x; mov.u32 x, 0; } mov.u32 %r1, x; }",
    "as a condition": "mov.u32 %r1, 0; @%p1 mov.u32 %r1, 1;",
    "of its own name": "{ .reg .b64 left; mov.b64 %rd1, left; }",
    "added to": "mov.u64 %rd1, 8; red.global.add.u32 [%rd1], %r1;",
    "as an input of a product": "mov.f32 %f1, 0f00000000; fma.rn.f32 %f1, %f1, %f1, %f2;",
    "a carry": "addc.u32 %r1, 1, 2;",
    "as accumulators": "mov.u64 %rd1, 8; "
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, 1, 1, 1, 0, 0;",
    "as accumulators of a product of registers": "mov.u64 %rd1, 8; mov.u32 %r1, 0; "
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, %rd1, 1, 1, 1, 0;",
    "waited with": "bar.sync %r1; add.s32 %r2, %r1, 1;",
}


@pytest.mark.parametrize("what", HONEST)
def test_what_is_written_may_be_read(what: str) -> None:
    assert unwritten_faults(*HONEST[what]) == ()


@pytest.mark.parametrize("what", FAULTS)
def test_what_nothing_writes_may_not(what: str) -> None:
    (found,) = unwritten_faults(FAULTS[what])
    assert "which nothing writes" in found
