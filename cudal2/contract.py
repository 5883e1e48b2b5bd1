"""What a kernel is: the functions that its source defines, how they are called, and the memory they are given.

Every other place receives this: the prompt shows it, the source check and the gate look for its names, planner, runner
and runtime call by it, and the arenas lay out memory as it promises.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from cudal2 import operators
from cudal2.problem import Problem

ENTRY = "hgemm"
"""The function that multiplies."""
SIZER = "hgemm_workspace"
"""The function, which a source may leave out, that says how many bytes of workspace a problem needs."""

Role = Literal["input", "output", "size", "workspace", "stream"]

_SIZES: tuple[tuple[Role, str], ...] = (("size", "M"), ("size", "N"), ("size", "K"))
PLAIN = Problem(64, 64, 64)
"""A problem of the plainest kind: the product alone, in fp16."""


class Contract(msgspec.Struct, frozen=True):
    """How kernels of one kind of target are called.

    `elements` names the field of a DType with the C type of a matrix's elements, `status` is the type of what ENTRY
    returns (0 for success), `stream` of its last argument, empty where there is none. All operands and the workspace
    begin at multiples of `alignment` bytes. At most `workspace_limit` bytes of workspace are given; the first
    `semaphores` of them are zero on entry and must be on exit.
    """

    elements: Literal["cpu", "cuda"]
    status: str
    stream: str
    alignment: int
    workspace_limit: int
    semaphores: int

    def element(self, problem: Problem = PLAIN) -> str:
        """The C type of a matrix's elements."""
        return getattr(problem.type, self.elements)

    def parameters(self, problem: Problem = PLAIN) -> tuple[tuple[Role, str], ...]:
        """What ENTRY takes, in order, each argument's role and name: the operands, the sizes, the workspace, and for a
        GPU the stream."""
        given = ((operand.role, operand.name) for operand in operators.operands(problem))
        last: tuple[tuple[Role, str], ...] = (("stream", "stream"),) if self.stream else ()
        return (*given, *_SIZES, ("workspace", "workspace"), *last)

    def declaration(self, problem: Problem = PLAIN, names: Sequence[str] = ()) -> str:
        """ENTRY in C++, without a semicolon; `names` call the parameters otherwise, in order."""
        element = self.element(problem)
        types = {"input": f"const {element}* ", "output": f"{element}* ", "size": "int "}
        types |= {"workspace": "void* ", "stream": f"{self.stream} "}
        given = names or [name for _, name in self.parameters(problem)]
        parameters = [types[role] + name for (role, _), name in zip(self.parameters(problem), given, strict=True)]
        return f'extern "C" {self.status} {ENTRY}({", ".join(parameters)})'

    def defines(self) -> tuple[str, ...]:
        """Compiler flags that tell all this to a C++ program which loads kernels: see `planner.cpp`, `cpu/runner.cpp`.

        Such a program casts ENTRY to a function of as many addresses as there are operands, three ints, and the address
        of the workspace, behind which a GPU's kernel takes its stream.
        """
        return (
            f'-DCONTRACT_ENTRY="{ENTRY}"',
            f'-DCONTRACT_SIZER="{SIZER}"',
            *self.numbers(),
        )

    def numbers(self) -> tuple[str, ...]:
        """Those of `defines` that are numbers of bytes."""
        return f"-DCONTRACT_WORKSPACE_LIMIT={self.workspace_limit}", f"-DCONTRACT_SEMAPHORES={self.semaphores}"


def sizer_declaration(names: Sequence[str] = ("M", "N", "K")) -> str:
    """SIZER in C++, without a semicolon; `names` are those of its parameters."""
    return f'extern "C" size_t {SIZER}({", ".join(f"int {name}" for name in names)})'


CPU_CONTRACT = Contract(
    elements="cpu",
    status="int",
    stream="",
    alignment=64,
    workspace_limit=256 << 20,
    semaphores=0,
)

CUDA_CONTRACT = Contract(
    elements="cuda",
    status="cudaError_t",
    stream="cudaStream_t",
    alignment=256,
    workspace_limit=256 << 20,
    semaphores=16 << 10,
)
