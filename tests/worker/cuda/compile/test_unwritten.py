"""Registers that are read and never written are named; what honest kernels do with registers is not."""

import pytest

from cudal2.worker.cuda.compile import build

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
TWICE = ".func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; ret; }\n"


def faults(*lines: str) -> tuple[str, ...]:
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
    "accumulators": (
        "mov.u64 %rd1, 8;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, 0, 1, 1, 0, 0;",
        "add.f32 %f5, %f1, %f2;",
    ),
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
    "of its own name": "{ .reg .b64 left; mov.b64 %rd1, left; }",
    "added to": "mov.u64 %rd1, 8; red.global.add.u32 [%rd1], %r1;",
    "as an input of a product": "mov.f32 %f1, 0f00000000; fma.rn.f32 %f1, %f1, %f1, %f2;",
    "waited with": "bar.sync %r1; add.s32 %r2, %r1, 1;",
}


@pytest.mark.parametrize("what", HONEST)
def test_what_is_written_may_be_read(what: str) -> None:
    assert faults(*HONEST[what]) == ()


@pytest.mark.parametrize("what", FAULTS)
def test_what_nothing_writes_may_not(what: str) -> None:
    (found,) = faults(FAULTS[what])
    assert "which nothing writes" in found
