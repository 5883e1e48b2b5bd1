"""The first error of a log, whatever its compiler says before and after it; and how a source declares the contract's
functions is checked by the compiler, and by nothing that it writes."""

import pytest
from toolkit import needs_toolkit

from cudal2.contract import CPU_CONTRACT, CUDA_CONTRACT
from cudal2.records import Status
from cudal2.target import CPU, find
from cudal2.worker import diagnostics
from cudal2.worker.cache import Cache
from cudal2.worker.cpu import backend
from cudal2.worker.cuda.compile import build as cuda
from cudal2.worker.diagnostics import first_error
from cudal2.worker.sandbox import jail

LOGS = {
    "in a function": (
        "kernel.cpp: In function 'int hgemm()':\nkernel.cpp:3:5: error: 'x' was not declared in this scope\n"
        "    3 |     x = 1;\n      |     ^\n",
        "kernel.cpp:3:5: error: 'x' was not declared in this scope",
    ),
    "after warnings and notes": (
        "kernel.cpp:1:1: warning: unused error: none\nkernel.cpp:1:1: note: error: here\n"
        "kernel.cpp: At global scope:\nkernel.cpp:2:1: fatal error: nothing.h: No such file or directory\n"
        "compilation terminated.\n",
        "kernel.cpp:2:1: fatal error: nothing.h: No such file or directory",
    ),
    "in a header's template": (
        "In file included from /usr/include/c++/12/vector:66,\n                 from kernel.cpp:1:\n"
        "/usr/include/c++/12/bits/stl_vector.h: In instantiation of 'class std::vector<int&>':\n"
        "kernel.cpp:2:18:   required from here\n/usr/include/c++/12/bits/a.h:63:26: error: forming pointer to 'int&'\n",
        "/usr/include/c++/12/bits/a.h:63:26: error: forming pointer to 'int&'",
    ),
    "of the linker": (
        "/usr/bin/ld: ccAb12.o: in function `hgemm':\nkernel.cpp:(.text+0x5): undefined reference to `nobody'\n"
        "collect2: error: ld returned 1 exit status\n",
        "kernel.cpp:(.text+0x5): undefined reference to `nobody'",
    ),
    "of the linker, in one line": (
        "/usr/bin/ld: ccAb12.o:(.bss+0x0): multiple definition of `x'; ccAb13.o:(.bss+0x0): first defined here\n"
        "collect2: error: ld returned 1 exit status\n",
        "/usr/bin/ld: ccAb12.o:(.bss+0x0): multiple definition of `x'; ccAb13.o:(.bss+0x0): first defined here",
    ),
    "of nvcc": (
        'kernel.cu(2): warning #177-D: variable "error" was declared but never referenced\n  int error;\n      ^\n\n'
        'Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"\n\n'
        'kernel.cu(4): error: identifier "x" is undefined\n      x = 1;\n      ^\n\n'
        '1 error detected in the compilation of "kernel.cu".\n',
        'kernel.cu(4): error: identifier "x" is undefined',
    ),
    "of nvcc, with a number": ("kernel.cu(4): error #20: no\n", "kernel.cu(4): error #20: no"),
    "of ptxas": (
        "ptxas info    : 0 bytes gmem\nptxas kernel.ptx, line 20; error   : Unknown modifier '.x'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n",
        "ptxas kernel.ptx, line 20; error   : Unknown modifier '.x'",
    ),
    "of ptxas alone": (
        "ptxas fatal   : Unresolved extern function 'f'\n",
        "ptxas fatal   : Unresolved extern function 'f'",
    ),
    "of the assembler": (
        "kernel.s: Assembler messages:\nkernel.s:12: Error: no such instruction: `nop2'\n",
        "kernel.s:12: Error: no such instruction: `nop2'",
    ),
    "of the driver": (
        "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        "g++: fatal error: Killed signal terminated program cc1plus",
    ),
    "without the word": ("kernel.cpp: In function 'int f()':\nsomething else happened\n", "something else happened"),
    "context alone": ("kernel.cpp: In function 'int f()':\n", "kernel.cpp: In function 'int f()':"),
    "nothing": ("\n \n", ""),
}


@pytest.mark.parametrize("log, first", LOGS.values(), ids=LOGS)
def test_a_reason_is_the_first_error(log, first):
    assert first_error(log) == first


PARAMETERS = "const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace"
ENTRY = f'extern "C" int hgemm({PARAMETERS})'


def compiled(source: str, tmp_path) -> backend.Build:
    return backend.build(source, CPU, Cache(tmp_path), jail.choose("auto"))


KEPT = {
    "as declared": f"{ENTRY} {{ return 0; }}\n",
    "no line feed, a backslash": f"{ENTRY} {{ return 0; }} // \\",
    "throws nothing": f"{ENTRY} noexcept {{ return 0; }}\n",
    "linkage in a block": f'extern "C" {{ __attribute__((hot)) int hgemm({PARAMETERS}) {{ return 0; }} }}',
    "qualified": f"{ENTRY.replace('*', '* __restrict__').replace('int M', 'const int M')} {{ return 0; }}",
    "a trailing type": f'extern "C" auto hgemm({PARAMETERS}) -> int {{ return 0; }}\n',
    "in a namespace": f"namespace {{ namespace own {{ {ENTRY} {{ return 0; }} }} }}\n",
    "overloads": f"template <int T> int hgemm(int M) {{ return T; }}\n{ENTRY} {{ return hgemm<0>(0); }}\n",
    "its own macros": f"#define half _Float16\n{ENTRY} {{ return 0; }}\n#define A 1\n#define M(i) i\n",
    "a sizer": f'{ENTRY} {{ return 0; }}\nextern "C" unsigned long hgemm_workspace(int, int, int) {{ return 8; }}',
    "first the precompiled header": f"#include <immintrin.h>\n{ENTRY} {{ return 0; }}\n",
}


@pytest.mark.parametrize("source", KEPT.values(), ids=KEPT)
def test_whatever_keeps_the_contract_compiles_without_a_word(source, tmp_path):
    built = compiled(source, tmp_path)
    assert (built.status, built.log) == (Status.OK, "")


BROKEN = {
    "another return": (ENTRY.replace("int hgemm", "long hgemm"), "must return int, not long"),
    "unsigned sizes": (ENTRY.replace("int M", "unsigned M"), "takes other parameters: (const _Float16*"),
    "no workspace": (ENTRY.replace(", void* workspace", ""), "takes other parameters: (const _Float16*"),
    "constant output": (ENTRY.replace("_Float16* C", "const _Float16* C"), "takes other parameters"),
    "behind a warning": (f"static int unused;\n#warning odd\n{ENTRY.replace('int hgemm', 'void hgemm')}", "not void"),
}


@pytest.mark.parametrize("source, words", BROKEN.values(), ids=BROKEN)
def test_what_breaks_it_is_one_error_that_shows_the_declaration(source, words, tmp_path):
    built = compiled(f"{source} {{ while (true); }}\n", tmp_path)
    assert built.status is Status.COMPILE_ERROR and words in built.reason
    assert CPU_CONTRACT.declaration() in built.reason and built.log.startswith(built.reason)


@pytest.mark.parametrize("source", [f"static int hgemm({PARAMETERS}) {{ return 0; }}", "int hgemm[2];"])
def test_what_c_cannot_call_is_refused(source, tmp_path):
    built = compiled(source, tmp_path)
    assert built.status is Status.REJECTED and 'is no extern "C" function' in built.reason


OWN = {
    "an open brace": (f"{ENTRY} {{ return 0;\n", "expected '}'"),
    "an open comment": (f"{ENTRY} {{ return 0; }}\n/* and", "unterminated comment"),
    "an open condition": (f"#if 1\n{ENTRY} {{ return 0; }}\n", "unterminated #if"),
    "an error before it": (
        f"int f() {{ return x; }}\n{ENTRY.replace('int hgemm', 'void hgemm')} {{}}\n",
        "'x' was not declared",
    ),
}


@pytest.mark.parametrize("source, words", OWN.values(), ids=OWN)
def test_the_sources_own_errors_come_first_and_keep_their_lines(source, words, tmp_path):
    built = compiled(source, tmp_path)
    assert built.status is Status.COMPILE_ERROR and not built.reason
    assert words in first_error(built.log) and first_error(built.log).startswith("kernel.cpp:")


LAUNCHER = "const __half* A, const __half* B, __half* C, int M, int N, int K, void* workspace, cudaStream_t stream"


@pytest.mark.parametrize(
    "source, status, words",
    [
        (f'extern "C" cudaError_t hgemm({LAUNCHER}) noexcept {{ return cudaSuccess; }}', Status.OK, ""),
        (f'extern "C" int hgemm({LAUNCHER}) {{ return 0; }}', Status.COMPILE_ERROR, "must return cudaError_t"),
        (f'extern "C" __global__ void hgemm({LAUNCHER}) {{}}', Status.COMPILE_ERROR, "must return cudaError_t"),
        (f"cudaError_t hgemm({LAUNCHER}) {{ return cudaSuccess; }}", Status.REJECTED, 'is no extern "C" function'),
        (f'extern "C" cudaError_t hgemm({LAUNCHER}) {{ return cudaSuccess;', Status.COMPILE_ERROR, 'expected a "}"'),
    ],
)
def test_a_launcher_is_checked_in_the_same_way(source, status, words, tmp_path):
    needs_toolkit()
    made = cuda.build(f"struct __half;\n{source}\n", find("sm_90a"), Cache(tmp_path), jail.choose("auto"))
    said = made.reason or first_error(made.log)
    assert made.status is status and words in said
    assert made.reason == "" or CUDA_CONTRACT.declaration() in said
    assert diagnostics.HEADER not in said


def test_another_contract_is_another_build():
    assert diagnostics.contract_header(CPU_CONTRACT) != diagnostics.contract_header(CUDA_CONTRACT)
