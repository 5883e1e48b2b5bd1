"""A kernel that somebody else compiled, and how it is launched: a folder with `kernel.cubin` and `launch.json`.

    {"problem": "1024_1024_1024_tn_f32", "function": "matmul",
     "grid": [256, 1, 1], "block": [64, 1, 1], "shared": 24576,
     "parameters": [{"type": "pointer", "to": "A"}, {"type": "pointer", "to": "B"}, {"type": "pointer", "to": "C"},
                    {"type": "bytes", "hex": "00040000"}]}

It becomes what a planner's recording is, so that it is checked, timed and edited as any kernel. One launch makes a
call; its code is trusted no more than a candidate's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from cudal2 import operators
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem, parse
from cudal2.records import to_json
from cudal2.worker.backend import Portable
from cudal2.worker.cuda import plan
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.cuda.recipe import Recipe, Relocation, pack, seal
from cudal2.worker.gpu.buffers import BufferLayout, Place, addresses, buffer_layout, draw_base

CUBIN, LAUNCH = "kernel.cubin", "launch.json"
THREADS = 1024
"""The most that a block may have."""

Extent = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
Offset = Annotated[int, msgspec.Meta(ge=0)]


class Pointer(msgspec.Struct, frozen=True, tag="pointer", forbid_unknown_fields=True):
    """The address of an operand, by its name, or of the workspace, `offset` bytes on."""

    to: str
    offset: Offset = 0


class Bytes(msgspec.Struct, frozen=True, tag="bytes", forbid_unknown_fields=True):
    """A parameter's raw bytes, little-endian numbers for example."""

    hex: Annotated[str, msgspec.Meta(pattern="^([0-9a-fA-F]{2})+$")]


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One launch of `function`, its name in the cubin; `shared` and `workspace` in bytes, parameters in their order.

    `cluster` is of zeros where there is none. `problem` is written as M_N_K_layout_accumulate.
    """

    problem: str
    function: Annotated[str, msgspec.Meta(min_length=1)]
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    parameters: tuple[Pointer | Bytes, ...]
    cluster: tuple[Offset, Offset, Offset] = (0, 0, 0)
    shared: Offset = 0
    workspace: Offset = 0


def read(folder: Path) -> tuple[Problem, plan.CudaLaunchable]:
    """The problem and what a runner launches for it. Raises ValueError that says what is wrong where, and a remedy."""
    launch = _launch(folder / LAUNCH)
    code = _file(folder / CUBIN)
    try:
        problem = parse(launch.problem)
        cubin.code_of(code, launch.function)
        buffers = buffer_layout(problem)
        recording = recorded(launch, buffers)
        # What is asked of a planner's recording is asked of this one.
        text = to_json(recording).encode()
        recording = plan.decode(text, buffers.sets, CUDA_CONTRACT.workspace_limit, recording.base)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}; write {LAUNCH} anew, for this {CUBIN}") from error
    return problem, plan.CudaLaunchable(b"", code, recording, seal(_recipe(launch), code, ""))


def recorded(launch: Launch, buffers: BufferLayout) -> plan.Recording:
    """The launch for each set of buffers. Raises ValueError where it is no launch, or points outside a buffer."""
    x, y, z = launch.block
    if x * y * z > THREADS:
        raise ValueError(f"a block of {x * y * z} threads; at most {THREADS} are possible")
    if any(launch.cluster) and any(not c or g % c for g, c in zip(launch.grid, launch.cluster)):
        raise ValueError(f"clusters of {launch.cluster} do not tile a grid of {launch.grid}")
    known = addresses(buffers.problem)
    for parameter in launch.parameters:
        if isinstance(parameter, Pointer) and parameter.to not in known:
            raise ValueError(f"a pointer to {parameter.to!r}, which is none of {', '.join(known)}")
        if isinstance(parameter, Pointer) and parameter.offset >= (size := _size(parameter.to, launch, buffers)):
            raise ValueError(f"an offset of {parameter.offset} bytes into {parameter.to}, which has {size}")
    base = draw_base()
    plans = tuple((_kernel(launch, place, known),) for place in buffers.places(base))
    return plan.Recording(launch.workspace, plans, base=base)


def portable(folder: Path) -> Portable:
    """The cubin and a recipe of its launch, whose words for pointers hold offsets alone. Raises as `read` does."""
    read(folder)
    return Portable(_file(folder / CUBIN), _recipe(_launch(folder / LAUNCH)))


def _recipe(launch: Launch) -> bytes:
    """The launch for any addresses, packed."""
    pointers = [(index, pointer) for index, pointer in enumerate(launch.parameters) if isinstance(pointer, Pointer)]
    known = addresses(parse(launch.problem))
    relocations = (Relocation(0, index, 0, known.index(pointer.to)) for index, pointer in pointers)
    return pack(Recipe(launch.workspace, (_kernel(launch, (0,) * len(known), known),), tuple(relocations)))


def _kernel(launch: Launch, place: Place, known: Sequence[str]) -> plan.KernelLaunch:
    return plan.KernelLaunch(
        name=launch.function,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        shared=launch.shared,
        cooperative=False,
        scheduling=0,
        carveout=-1,
        parameters=tuple(
            (place[known.index(parameter.to)] + parameter.offset).to_bytes(8, "little").hex()
            if isinstance(parameter, Pointer)
            else parameter.hex
            for parameter in launch.parameters
        ),
    )


def _size(name: str, launch: Launch, buffers: BufferLayout) -> int:
    sizes = {operand.name: 2 * operand.elements for operand in operators.operands(buffers.problem)}
    return (sizes | {"workspace": launch.workspace})[name]


def _launch(path: Path) -> Launch:
    text = _file(path)
    try:
        return msgspec.json.decode(text, type=Launch)
    except msgspec.MsgspecError as error:
        example = '{"problem": "256_256_256_tn_f32", "function": "gemm", "grid": [4, 1, 1], "block": [128, 1, 1], '
        raise ValueError(
            f'{path}: {error}; write {example}"parameters": [{{"type": "pointer", "to": "A"}}]}}'
        ) from error


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; a folder with {CUBIN} and {LAUNCH} is needed"
        ) from error
