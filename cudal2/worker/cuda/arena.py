"""The referee's side of the buffers: memory that runner processes map too, and private copies that they cannot reach.

Allocated through CUDA's virtual memory management, so that a file descriptor hands the same memory to another
process. Everything that a verdict rests on (inputs, guard bands, the vendor's result) is compared with tensors that
only this process maps: the GPU's MMU keeps candidates away from them.
"""

import os
from collections.abc import Sequence

import torch
from cuda.bindings import driver

from cudal2.records import HarnessFault
from cudal2.worker import inputs
from cudal2.worker.cuda.layout import GUARD, SEMAPHORES, WORKSPACE_GUARD, Layout, Salt

POISON = 0x7E00
"""The fp16 NaN that `inputs.poison` writes."""
SHARED = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def ask(result: tuple):
    """The value of a driver call that returned (code, value…). Raises HarnessFault."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise HarnessFault(f"the GPU driver failed: {code.name}", "Is the GPU's memory taken? Try again")
    return values[0] if values else None


class _Range:
    """A range of device memory, as other libraries are told of one."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes // 2,),
            "typestr": "<i2",
            "data": (pointer, False),
            "version": 3,
        }


def look_at(pointer: int, nbytes: int) -> torch.Tensor:
    """Device memory that torch does not own, as int16 elements."""
    return torch.as_tensor(_Range(pointer, nbytes), device="cuda")


def mapped(handle, nbytes: int) -> int:
    """Where this process now sees the memory behind `handle`, readable and writable. Raises HarnessFault."""
    access = driver.CUmemAccessDesc()
    access.location = _here()
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    pointer = ask(driver.cuMemAddressReserve(nbytes, 0, 0, 0))
    ask(driver.cuMemMap(pointer, nbytes, 0, handle, 0))
    ask(driver.cuMemSetAccess(pointer, nbytes, [access], 1))
    return int(pointer)


def _here() -> driver.CUmemLocation:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = torch.cuda.current_device()
    return location


def matrices(memory: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A [sets,M,K], B [sets,*b_shape] and C [sets,M,N] as float16 views of memory laid out so."""
    p, step = layout.problem, layout.stride // 2

    def view(offset: int, shape: tuple[int, int]) -> torch.Tensor:
        size, strides = (layout.sets, *shape), (step, shape[1], 1)
        return memory.view(torch.float16).as_strided(size, strides, offset // 2)

    return view(layout.a, (p.m, p.k)), view(layout.b, p.b_shape), view(layout.c, (p.m, p.n))


def private(layout: Layout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`matrices` in memory of this process alone, at the same distances: a pass over them costs what it costs there."""
    memory = torch.empty(layout.workspace // 2, dtype=torch.int16, device="cuda")
    return matrices(memory, layout)


class Arena:
    """Shared sets of A, B, C and a workspace, laid out as `layout` says; `fd` hands the memory to another process.

    `a` [sets,M,K], `b` [sets,*b_shape] and `c` [sets,M,N] are float16 views of the shared `memory`, which is int16;
    `inputs` are the private originals of a and b, `reference` is where the vendor's C goes, laid out alike.
    """

    def __init__(self, layout: Layout, rng: torch.Generator) -> None:
        self.layout, self.problem, self._rng = layout, layout.problem, rng
        self._handle, self._pointer, self.fd = None, 0, -1
        self._reserve()
        self.memory = memory = look_at(self._pointer, layout.bytes)
        self.a, self.b, self.c = matrices(memory, layout)
        a, b, self.reference = private(layout)
        self.inputs = (a, b)
        self._workspace = memory[layout.workspace // 2 : layout.bytes // 2]
        self._guards = self._guard_views(memory)
        self._secret = [_nan_patterns(view.shape, rng) for view in self._guards]
        self.restore_guards()

    def close(self) -> None:
        """Give the memory back; harmless when done before. Views must not be used any more."""
        if self._handle is None:
            return
        torch.cuda.synchronize()
        ask(driver.cuMemUnmap(self._pointer, self.layout.bytes))
        ask(driver.cuMemAddressFree(self._pointer, self.layout.bytes))
        ask(driver.cuMemRelease(self._handle))
        os.close(self.fd)
        self._handle = None

    def _reserve(self) -> None:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = _here()
        properties.requestedHandleTypes = SHARED
        self._handle = ask(driver.cuMemCreate(self.layout.bytes, properties, 0))
        self._pointer = mapped(self._handle, self.layout.bytes)
        self.fd = int(ask(driver.cuMemExportToShareableHandle(self._handle, SHARED, 0)))

    def _guard_views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """[sets, width] views of the bands before A, B and C and after C; the last set's successor has one more."""
        at, p, stride = self.layout, self.problem, self.layout.stride // 2
        after = at.a + 2 * p.m * p.k, at.b + 2 * p.k * p.n, at.c + 2 * p.m * p.n
        ends = zip((0, *after), (GUARD, at.b, at.c, at.stride))
        return [
            memory.as_strided((at.sets + (start == 0), (end - start) // 2), (stride, 1), start // 2)
            for start, end in ends
        ]

    def restore_guards(self) -> None:
        """Put back what an earlier candidate may have overwritten."""
        for view, secret in zip(self._guards, self._secret):
            view.copy_(secret)

    def fill(self, window: slice) -> None:
        """Fresh normals in the inputs of these sets, and in their private originals."""
        for original, shared in zip(self.inputs, (self.a, self.b)):
            inputs.fill_normal(self._rng, original[window])
            shared[window] = original[window]

    def put(self, number: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """These inputs in one set."""
        for original, shared, value in zip(self.inputs, (self.a, self.b), (a, b)):
            original[number] = value
            shared[number] = value

    def poison(self, workspace: int) -> None:
        """NaN in every output, and random ones in the `workspace` bytes asked for but for the semaphores."""
        inputs.poison(self.c)
        used = self._workspace[: (workspace + WORKSPACE_GUARD) // 2]
        used.copy_(_nan_patterns(used.shape, self._rng))
        self._beyond = used[workspace // 2 :].clone()
        used[: min(SEMAPHORES, workspace) // 2] = 0

    def salts(self, sets: Sequence[int]) -> list[Salt]:
        """A random element of A of each of these sets and another value for it, which the private A takes on now."""
        p, salts = self.problem, []
        numbers = torch.as_tensor(sets, device="cuda")
        rows = torch.randint(p.m, numbers.shape, generator=self._rng, device="cuda")
        columns = torch.randint(p.k, numbers.shape, generator=self._rng, device="cuda")
        values = 4 + 4 * torch.rand(numbers.shape, generator=self._rng, device="cuda").half()
        self.inputs[0][numbers, rows, columns] = values
        bits = values.view(torch.int16).tolist()
        for number, row, column, value in zip(sets, rows.tolist(), columns.tolist(), bits):
            offset = number * self.layout.stride + self.layout.a + 2 * (row * p.k + column)
            salts.append((offset, value))
        return salts

    def inputs_intact(self, window: slice) -> bool:
        """Whether A and B of these sets hold what their private originals do."""
        return all(
            torch.equal(shared[window].view(torch.int16), original[window].view(torch.int16))
            for shared, original in zip((self.a, self.b), self.inputs)
        )

    def others_unwritten(self, window: slice) -> bool:
        """Whether no output but those of these sets was written since `poison`."""
        others = (self.c[: window.start], self.c[window.stop :])
        return not any(bool((c.view(torch.int16) != POISON).any()) for c in others if len(c))

    def guard_finding(self) -> str:
        """Which band beside a matrix was written; empty where none was."""
        for name, view, secret in zip(("before A", "after A", "after B", "after C"), self._guards, self._secret):
            if not torch.equal(view, secret):
                number, place = (view != secret).nonzero()[0].tolist()
                return f"wrote {name} of set {number}, element {place} of the band of {view.shape[1]}"
        return ""

    def workspace_finding(self, workspace: int) -> str:
        """What a call left wrong in the workspace; empty where nothing."""
        head = self._workspace[: min(SEMAPHORES, workspace) // 2]
        if bool(head.any()):
            return "left the semaphores at the head of the workspace non-zero"
        beyond = self._workspace[workspace // 2 : (workspace + WORKSPACE_GUARD) // 2]
        return "" if torch.equal(beyond, self._beyond) else "wrote beyond the workspace it asked for"


def _nan_patterns(shape: torch.Size, rng: torch.Generator) -> torch.Tensor:
    """Random fp16 NaNs as int16: 0x7c01 to 0x7fff."""
    return torch.randint(0x7C01, 0x8000, shape, generator=rng, device=rng.device, dtype=torch.int16)
