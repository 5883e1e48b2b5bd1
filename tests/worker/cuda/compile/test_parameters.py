"""Parameters are read within themselves, and their addresses reach the tensor engine alone, however PTX is written."""

import pytest

from cudal2.worker.cuda.compile.parameters import suspicions

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def kernel(*lines: str, more: str = "") -> str:
    body = "\n\t".join(lines)
    return (
        f"{HEAD}{more}.visible .entry multiply(\n\t.param .u64 .ptr .global .align 1 A,\n\t"
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
    "a grid's barrier": ("mov.u32 %r1, %envreg2;",),
}
FAULTS = {
    "beyond": ("ld.param.u32 %r1, [sizes+12];", "beyond"),
    "before": ("ld.param.u64 %rd1, [A+-120];", "beyond"),
    "before, through a register": ("mov.b64 %rd1, A; add.s64 %rd1, %rd1, -8; ld.param.u64 %rd2, [%rd1];", "beyond"),
    "a step further in each turn": ("mov.b64 %rd1, sizes; $L: add.s64 %rd1, %rd1, 4; @%p1 bra $L;", "beyond"),
    "computed": ("mov.b64 %rd1, sizes; add.s64 %rd2, %rd1, %rd3; ld.param.u32 %r1, [%rd2];", "address"),
    "computed elsewhere": ("ld.param.u32 %r1, [%rd2];", "computed"),
    "read as memory": ("cvta.param.u64 %rd1, sizes; ld.global.u32 %r1, [%rd1];", "address"),
    "written": ("cvta.param.u64 %rd1, sizes; st.u32 [%rd1], %r1;", "address"),
    "used before, as a loop may": ("ld.u32 %r1, [%rd2]; mov.b64 %rd2, %rd1; cvta.param.u64 %rd1, sizes;", "address"),
    "in a register of the same name": ("{ .reg .b64 x; cvta.param.u64 x, sizes; } ld.u32 %r1, [x];", "address"),
    "stored": ("cvta.param.u64 %rd1, sizes; st.local.u64 [%rd2], %rd1;", "address"),
    "in halves": ("cvta.param.u64 %rd1, sizes; mov.b64 {%r1, %r2}, %rd1;", "address"),
    "called with": ("cvta.param.u64 %rd1, sizes; { .param .b64 p; st.param.b64 [p], %rd1; }", "address"),
    "mixed": ("cvta.param.u64 %rd1, maps; selp.b64 %rd2, %rd1, %rd3, %p1;", "address"),
    "another's tensor map": ("cvta.param.u64 %rd1, maps; " + LOAD.format("%rd1+192"), "beyond"),
    "as a coordinate": ("cvta.param.u64 %rd1, maps; " + LOAD.format("%rd2").replace("%r2", "%rd1"), "address"),
    "behind a guard": ("@!%p1 cvta.param.u64 %rd1, sizes; @%p1 ld.u32 %r1, [%rd1];", "address"),
    "the driver's registers": ("mov.u32 %r1, %envreg3;", "envreg3"),
    "hidden by strings": ('.file 1 "/*"; cvta.param.u64 %rd1, A; ld.u32 %r1, [%rd1]; .file 2 "*/";', "string"),
    "a comment without an end": ("/* cvta.param.u64 %rd1, A;", "end"),
    "a directive": ("\n#define hidden cvta.param.u64\nhidden %rd1, A;", "directive"),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_honest_kernels_do_is_allowed(name):
    assert suspicions(kernel(*HONEST[name])) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_each_way_out_of_a_parameter_is_seen(name):
    text, word = FAULTS[name]
    (fault,) = suspicions(kernel(text))
    assert word in fault


def test_a_function_may_not_take_the_address_and_each_kernel_is_read():
    function = ".func (.param .b64 r) twice(.param .b64 a)\n{\n\tcvta.param.u64 %rd1, a;\n\tret;\n}\n"
    assert "function" in suspicions(kernel("ld.param.u64 %rd1, [A];", more=function))[0]
    both = kernel("ld.param.u32 %r1, [sizes+12];") + kernel("ld.param.u64 %rd1, [A];").removeprefix(HEAD)
    assert len(suspicions(both)) == 1
    assert len(suspicions(both + kernel(FAULTS["written"][0]).removeprefix(HEAD))) == 2
