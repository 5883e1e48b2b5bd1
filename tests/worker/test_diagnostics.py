"""The first error of a log, whatever its compiler says before and after it."""

import pytest

from cudal2.worker.diagnostics import first_error

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
