"""What a source may name, and that no way of writing a directive gets round it."""

from contextlib import suppress

import pytest

from cudal2.completion import MAX_BYTES, SourceRejected, check_source, extract
from cudal2.target import CPU, find, for_capability, targets

SM90 = find("sm_90a")
KERNEL = 'extern "C" int hgemm(const void* a) { return 0; }\n'

WELCOME = {
    "a header": "#include <cuda_fp16.h>",
    "quotes": '#include "cuda_runtime.h"',
    "a folder": "#include <cute/tensor.hpp>",
    "a folder's folder": '#  include "cutlass/gemm/device/gemm.h"  // the whole of it',
    "the standard library for devices": "#include <cuda/std/utility>",
    "cooperative groups": "#include <cooperative_groups/memcpy_async.h>",
    "words in comments": '// does not #include anything\n/* see .section 3, R"(x)" and\n #include <vector.h> */',
    "words in strings": 'const char* name = "#include <x> /*";',
    "digit separators": "int many = 1'000'000; /* ' */ char c = '\"';",
    "a string that ends in R": 'asm("mov.u32 R");',
    "a pragma": "#pragma unroll\n#pragma nv_diag_suppress 177",
    "inline PTX": 'asm volatile("cp.async.wait_group %0;" :: "n"(0));',
}

UNWELCOME = {
    "a host file": '#include "/etc/passwd"',
    "a vendor library": "#include <cublas_v2.h>",
    "the other target's header": "#include <immintrin.h>",
    "a way out of a folder": "#include <cute/../../../../etc/passwd>",
    "an absolute path": "#include </usr/include/dlfcn.h>",
    "a backslash": '#include "cute\\\\tensor.hpp"',
    "a macro": "#define FILE <cuda_fp16.h>\n#include FILE",
    "two at once": '#include <cuda_fp16.h> "/etc/passwd"',
    "a comment inside": '#/**/include "/etc/passwd"',
    "a comment before": '/* a\n b */ # /* c */ include/**/"/etc/passwd"',
    "a comment opened in a string": 'auto s = "/*";\n#/**/include "/etc/passwd"\nauto t = "*/";',
    "a comment opened in a character": 'int a = 1\'0; auto s = "\'/*";\n#/**/include "/etc/passwd"\n',
    "a comment opened in a raw string": 'auto s = R"(")";/*";\n#/**/include "/etc/passwd"\n/**/',
    "a spliced line": '#inc\\\nlude "/etc/passwd"',
    "a spliced line with blanks": '#inc\\ \t\nlude "/etc/passwd"',
    "a spliced comment": '// \\\n\n#include "/etc/passwd"',
    "a carriage return": 'int f();\r#include "/etc/passwd"',
    "a comment that a carriage return ends": '// ends\r#inc\\\rlude "/etc/passwd"',
    "a byte order mark": '\ufeff#include "/etc/passwd"',
    "a zero-width space": 'int f();\n\u200b \u00a0#include "/etc/passwd"',
    "a digraph": '%:include "/etc/passwd"',
    "include_next": '#include_next "/etc/passwd"',
    "embed": 'const char s[] = {\n#embed "/etc/passwd"\n};',
    "a probe": '#if __has_include("/etc/shadow")\n#endif',
    "an assembler's file": 'asm(".incbin \\"/etc/passwd\\"");',
    "an assembler's source": 'asm(".include \\"/etc/passwd\\"");',
    "an assembler's section": 'asm(".pushsection .nv_fatbin");',
    "a dependency": '#pragma GCC dependency "/etc/passwd"',
    "a dependency by operator": '_Pragma("GCC dependency \\"/etc/passwd\\"")',
    "a line marker": '# 1 "/etc/passwd" 1',
    "a line directive": '#line 1 "/etc/passwd"',
    "a NUL": "int\0a;",
    "too much": "//" + "x" * MAX_BYTES,
}


@pytest.mark.parametrize("text", WELCOME.values(), ids=WELCOME)
def test_honest_sources_pass(text):
    check_source(f"{text}\n{KERNEL}", SM90)


@pytest.mark.parametrize("text", UNWELCOME.values(), ids=UNWELCOME)
def test_what_the_contract_forbids_is_refused(text):
    for target in (SM90, CPU):
        if target is SM90 or "immintrin" not in text:
            with pytest.raises(SourceRejected):
                check_source(f"{text}\n{KERNEL}", target)


def test_folders_belong_to_their_target():
    with pytest.raises(SourceRejected, match=r"immintrin\.h"):  # the reason says what would be right
        check_source(f"#include <cute/tensor.hpp>\n{KERNEL}", CPU)


@pytest.mark.parametrize("piece", ["/*", "\n", "'", '"', "#", "/**/#", "1'", "\\ ", "(", " \t", '\\"', "\\'"])
def test_no_source_breaks_the_check(piece):
    """Nor keeps it busy: quadratic work on 64 KiB would take minutes."""
    with suppress(SourceRejected):
        check_source((piece * MAX_BYTES)[: MAX_BYTES - 1], SM90)


def test_a_completion_for_a_gpu_is_found_in_its_fence():
    assert extract(f"Here:\n```cuda\n{KERNEL}```\nDone.", SM90) == KERNEL


FENCES = {
    "a title": '```cuda title="kernel.cu"\nKERNEL```\n',
    "a class": "```{.cpp .numberLines}\nKERNEL```",
    "tildes": "~~~ cuda\nKERNEL~~~\nDone.",
    "four backticks": "````cuda\nKERNEL````\n",
    "blocks on both sides": "```\nfirst\n```\n````cuda\nKERNEL````\n```\nlast\n```\n",
    "a list": "1. Here:\n\n    ```cuda\nKERNEL    ```\n",
    "words after the end": "```cuda\nKERNEL``` Done.\n",
    "no end": "```cuda\nKERNEL",
    "one left open": "```cuda\nint hgemm(int a) { return\n```cuda\nKERNEL```\n",
    "a call afterwards": "```cuda\nKERNEL```\n```cpp\nint main() { if (hgemm(a)) { return hgemm(b); } }\n```\n",
    "a declaration afterwards": '```cuda\nKERNEL```\n```cpp\nextern "C" int hgemm(const void* a);\nstruct S {};\n```\n',
    "words on it afterwards": '```cuda\nKERNEL```\n```\n// hgemm(a) {\n/* hgemm(b) { */ "hgemm(c) {"\n```\n',
    "a macro afterwards": "```cuda\nKERNEL```\n```\n#define hgemm(a) \\\n { a }\n```\n",
}


@pytest.mark.parametrize("text", FENCES.values(), ids=FENCES)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_last_block_that_defines_the_kernel_is_found_whatever_its_fence(text, end):
    indented = "__global__ void run(int a) {\n    if (a > (1)) return;\n}\n" + KERNEL
    assert extract(text.replace("KERNEL", indented).replace("\n", end), SM90) == indented


@pytest.mark.parametrize(
    "definition",
    [
        'extern "C" int hgemm(const void* a, int (*f)(int)) noexcept { return 0; }',
        'extern "C" __attribute__((visibility("default")))\ncudaError_t\nhgemm (int a)\n// the body\n{\n}',
        'extern "C" {\nint hgemm(int a /* ) { */, int b) __attribute__((hot))\n{ return a; }\n}',
        'static const char* note = "(";\nextern "C" auto hgemm(int a) -> int { return 0; }',
    ],
)
def test_a_definition_is_told_from_a_call(definition):
    assert extract(definition, SM90) == definition + "\n"
    assert extract(definition.replace("{", ";").replace("}", ""), SM90) is None


@pytest.mark.parametrize("piece", ["```\n", "```a\n~~~a\n", "hgemm() ", "hgemm(", "(", "/*", "`", "\r", '\\"'])
def test_no_completion_keeps_the_search_busy(piece):
    extract(piece * (1 << 14), SM90)


def test_a_longer_fence_may_hold_shorter_ones():
    commented = f"/* Use:\n```\nhgemm(a)\n```\n*/\n{KERNEL}"
    assert extract(f"````cuda\n{commented}````\n", SM90) == commented


def test_every_target_is_what_its_capability_names():
    for target in targets().values():
        if target.kind == "cuda":
            assert for_capability(*target.architecture.capability) is target
            assert target.name in " ".join(target.flags)
