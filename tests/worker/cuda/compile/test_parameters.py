"""Parameters are read within themselves, and their addresses reach the tensor engine alone, however PTX is written."""

import pytest

from cudal2.worker.cuda.compile import build

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def faults(text: str) -> tuple[str, ...]:
    return build.faults(text)[0]


def kernel(*lines: str) -> str:
    body = "\n\t".join(lines)
    return (
        f"{HEAD}.visible .entry multiply(\n\t.param .u64 .ptr .global .align 1 A,\n\t"
        f".param .align 64 .b8 maps[256],\n\t.param .align 4 .b8 sizes[12]\n)\n.maxntid 128\n{{\n"
        f"\t.reg .b64 %rd<9>;\n\t.reg .pred %p<2>;\n\t{body}\n\tret;\n}}\n"
    )


LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [{}, {{%r2, %r3}}], [%r4];"
HONEST = {
    "by value": ("ld.param.u64 %rd1, [A];", "ld.param.u32 %r1, [sizes+8];", "ld.param.v2.u32 {%r2, %r3}, [sizes];"),
    "through a register": ("mov.b64 %rd1, sizes;", "add.s64 %rd2, %rd1, 4;", "ld.param.u32 %r1, [%rd2+4];"),
    "tensor maps": (
        "mov.b64 %rd1, maps;",
        "cvta.param.u64 %rd2, %rd1;",
        "add.s64 %rd3, %rd2, 128;",
        "prefetch.tensormap [%rd3];",
        "selp.b64 %rd4, %rd2, %rd3, %p1;",
        "// begin inline asm",
        "{ .reg .pred P1; $L__1: " + LOAD.format("%rd4") + " }",
        "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd3, {%r2, %r3}], [%r1];",
    ),
    "a call": (
        "{ .param .b64 param0; st.param.b64 [param0], %rd1; .param .b32 retval0;",
        "call.uni (retval0), twice, (param0); ld.param.b32 %r1, [retval0]; }",
    ),
}
TAKES = "cvta.param.u64 %rd1, sizes;"
FAULTS = {
    "beyond": "ld.param.u32 %r1, [sizes+12];",
    "before": "ld.param.u64 %rd1, [A+-120];",
    "before, through a register": "mov.b64 %rd1, A; add.s64 %rd1, %rd1, -8; ld.param.u64 %rd2, [%rd1];",
    "a step further in each turn": "mov.b64 %rd1, sizes; $L: add.s64 %rd1, %rd1, 4; @%p1 bra $L;",
    "many places": "mov.b64 %rd1, maps; $L: add.s64 %rd1, %rd1, 1; @%p1 bra $L;",
    "computed": "mov.b64 %rd1, sizes; add.s64 %rd2, %rd1, %rd3; ld.param.u32 %r1, [%rd2];",
    "computed elsewhere": "ld.param.u32 %r1, [%rd2];",
    "by another load": "ld.weak.param.u32 %r1, [%rd2];",
    "read as memory": TAKES + "ld.global.u32 %r1, [%rd1];",
    "written": TAKES + "st.u32 [%rd1], %r1;",
    "used before, as a loop may": "ld.u32 %r1, [%rd2]; mov.b64 %rd2, %rd1; cvta.param.u64 %rd1, sizes;",
    "in a register of the same name": "{ .reg .b64 x; cvta.param.u64 x, sizes; } ld.u32 %r1, [x];",
    "stored": TAKES + "st.local.u64 [%rd2], %rd1;",
    "in halves": TAKES + "mov.b64 {%r1, %r2}, %rd1;",
    "called with": TAKES + "{ .param .b64 p; st.param.b64 [p], %rd1; }",
    "mixed": "cvta.param.u64 %rd1, maps; selp.b64 %rd2, %rd1, %rd3, %p1;",
    "another's tensor map": "cvta.param.u64 %rd1, maps; " + LOAD.format("%rd1+192"),
    "as a coordinate": "cvta.param.u64 %rd1, maps; " + LOAD.format("%rd2").replace("%r2", "%rd1"),
    "as the place to copy to": "cvta.param.u64 %rd1, maps; " + LOAD.format("%rd2").replace("%r1", "%rd1"),
    "behind a guard": "@!%p1 " + TAKES + "@%p1 ld.u32 %r1, [%rd1];",
    "of no parameter": "mov.u64 %rd1, 0; cvta.param.u64 %rd2, %rd1; ld.u64 %rd3, [%rd2];",
    "the way back": "cvta.to.param.u64 %rd1, %rd2;",
    "whether it is one": "isspacep.param %p1, %rd1;",
    "whether it is one of a kernel": "isspacep.param::entry %p1, %rd1;",
    "where constants lie": "cvta.const.u64 %rd1, %rd2;",
    "hidden by strings": '.file 1 "/*"; ' + TAKES + 'ld.u32 %r1, [%rd1]; .file 2 "*/";',
    "behind a line of the source": ".loc 1 1 1 " + TAKES + "ld.u32 %r1, [%rd1];",
    "a comment without an end": "/* cvta.param.u64 %rd1, A;",
    "a directive": "\n#define hidden cvta.param.u64\nhidden %rd1, A;",
    "a space in a name": "ld .param.u32 %r1, [%rd2];",
    "a comment in a name": "ld/**/.param.u32 %r1, [%rd2];",
    "spaces in a guard": "@ %p1 " + TAKES + "@! %p1 ld.u32 %r1, [%rd1];",
    "behind an odd label": "%L: " + TAKES + "ld.u32 %r1, [%rd1];",
    "by a register's second name": TAKES + "ld.u32 %r1, [%rd01];",
    "by a register's third name": TAKES + "ld.u32 %r1, [%rd4294967297];",
    "in a part of a register": ".reg .v2 .b64 v; mov.b64 v.x, sizes; cvta.param.u64 %rd1, v.x; ld.u64 %rd2, [%rd1];",
    "where constants are": "cvta.to.const.u64 %rd1, %rd2;",
    "an odd number": "ld.param.u32 %r1, [sizes+010];",
    "a larger one of the same name": "{ .param .b8 sizes[64]; } ld.param.u32 %r1, [sizes+32];",
    "a jump to what is computed": "ts: .branchtargets L1, L2; brx.idx %r1, ts;",
    "its own instructions": "mov.u64 %rd1, multiply; ld.u64 %rd2, [%rd1];",
    "its own instructions, at once": "ld.u64 %rd2, [multiply+16];",
    "a call of what is computed": "p: .callprototype _ (); call %rd1, p;",
}
OUTSIDE = {
    "an odd name of a kernel": ".visible .entry %odd(.param .u64 q) { .reg .b64 a; ld.param.u64 a, [q+-120]; }\n",
    "a pragma before the brace": '.entry odd(.param .u64 q) .pragma "x"; { .reg .b64 a; ld.param.u64 a, [q+-120]; }\n',
    "an odd size": ".entry odd(.param .b8 q[0x10]) { .reg .b64 a; cvta.param.u64 a, q; ld.u64 a, [a]; }\n",
    "an odd name of a parameter": ".entry odd(.param .u64 %q) { .reg .b64 a; cvta.param.u64 a, %q; ld.u64 a, [a]; }\n",
    "a function's own": ".func (.param .b64 r) twice(.param .b64 a) { cvta.param.u64 %rd1, a; ret; }\n",
    "the kernel's, in a function": ".func twice() { ld.param::entry.u64 %rd1, [%rd2]; ret; }\n",
    "a question in a function": ".func twice() { isspacep.param %p1, %rd2; ret; }\n",
    "instructions, by a table": ".global .align 8 .u64 table[1] = {multiply};\n",
    "a function's, by a constant": ".func twice() { ret; }\n.const .u64 place = generic(twice);\n",
    "a function's, as an argument": ".func odd(.reg .b64 a) { ret; }\n.func twice() { call odd, (odd); ret; }\n",
    "a kernel without an end": ".entry odd() { ret; ",
}


@pytest.mark.parametrize("name", HONEST)
def test_what_honest_kernels_do_is_allowed(name):
    assert faults(kernel(*HONEST[name])) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_each_way_out_of_a_parameter_is_seen(name):
    assert len(faults(kernel(FAULTS[name]))) == 1


@pytest.mark.parametrize("name", OUTSIDE)
def test_each_kernel_and_each_function_is_read(name):
    assert len(faults(kernel("ld.param.u64 %rd1, [A];") + OUTSIDE[name])) == 1


def test_functions_may_be_called_and_call_themselves():
    twice = ".func (.param .b32 r) twice(.param .b64 a) { call.uni (r), twice, (a); ret; }\n"
    assert faults(kernel(*HONEST["a call"]).replace("\n.visible", f"\n{twice}.visible", 1)) == ()


def test_a_fault_is_found_in_each_kernel():
    good, bad = kernel("ld.param.u64 %rd1, [A];"), kernel(FAULTS["written"])
    assert len(faults(bad + good.removeprefix(HEAD) + bad.removeprefix(HEAD))) == 2


def test_long_chains_are_followed_at_once():
    """Quadratic work on as many would take minutes."""
    moves = [f"mov.b64 %rd{n + 1}, %rd{n};" for n in reversed(range(20_000))]
    assert faults(kernel("mov.b64 %rd0, sizes;", *moves, "ld.param.u32 %r1, [%rd20000+8];")) == ()
    assert len(faults(kernel("mov.b64 %rd0, sizes;", *moves, "ld.param.u32 %r1, [%rd20000+12];"))) == 1
    assert faults(".entry a(" * 20_000)
