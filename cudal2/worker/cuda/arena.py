"""The referee's side of the buffers: memory that runner processes map too, and private copies that they cannot reach.

Allocated through CUDA's virtual memory management, so that a file descriptor hands the same memory to another process
at another process's addresses. Everything that a verdict rests on (inputs, guard bands, the vendor's result) is compared
with tensors that only this process maps: the GPU's MMU keeps candidates away from them.
"""

import os

import torch
from cuda.bindings import driver

from cudal2.records import HarnessFault
from cudal2.worker import inputs
from cudal2.worker.cuda.layout import GUARD, SEMAPHORES, WORKSPACE_GUARD, Layout

Window = slice
"""Sets `first` to `first + count - 1`."""


def ask(result: tuple):
    """The value of a driver call that returned (code, value…). Raises HarnessFault."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise HarnessFault(f"the GPU driver failed: {code.name}", "Is another process using the GPU's memory? Try again")
    return values[0] if values else None


class _Range:
    """A range of device memory that torch can look at."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes // 2,),
            "typestr": "<i2",
            "data": (pointer, False),
            "version": 3,
        }


class Arena:
    """Shared sets of A, B, C and a workspace, laid out as `layout` says; `fd` hands the memory to another process.

    `a` [sets,M,K], `b` [sets,*b_shape] and `c` [sets,M,N] are float16 views of the shared memory; `inputs` are the
    private originals of a and b, of the same shapes.
    """

    def __init__(self, layout: Layout, rng: torch.Generator) -> None:
        self.layout, self.problem, self._rng = layout, layout.problem, rng
        self._handle, self._pointer, self.fd = None, 0, -1
        self._reserve()
        memory = torch.as_tensor(_Range(self._pointer, layout.bytes), device="cuda")
        p = self.problem
        self.a = self._matrices(memory, layout.a, (p.m, p.k))
        self.b = self._matrices(memory, layout.b, p.b_shape)
        self.c = self._matrices(memory, layout.c, (p.m, p.n))
        self.inputs = (torch.empty_like(self.a), torch.empty_like(self.b))
        self._workspace = memory[layout.workspace // 2 : layout.bytes // 2]
        self._guards = self._guard_views(memory)
        self._secret = [_nan_patterns(view.shape, rng) for view in self._guards]
        for view, secret in zip(self._guards, self._secret):
            view.copy_(secret)

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
        size, kind = self.layout.bytes, driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = torch.cuda.current_device()
        properties.requestedHandleTypes = kind
        access = driver.CUmemAccessDesc()
        access.location = properties.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._handle = ask(driver.cuMemCreate(size, properties, 0))
        self._pointer = int(ask(driver.cuMemAddressReserve(size, 0, 0, 0)))
        ask(driver.cuMemMap(self._pointer, size, 0, self._handle, 0))
        ask(driver.cuMemSetAccess(self._pointer, size, [access], 1))
        self.fd = int(ask(driver.cuMemExportToShareableHandle(self._handle, kind, 0)))

    def _matrices(self, memory: torch.Tensor, offset: int, shape: tuple[int, int]) -> torch.Tensor:
        size = (self.layout.sets, *shape)
        return memory.view(torch.float16).as_strided(size, (self.layout.stride // 2, shape[1], 1), offset // 2)

    def _guard_views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """[sets, width] views of the bands before A, B and C and after C; the last set's successor has one more."""
        at, p, stride = self.layout, self.problem, self.layout.stride // 2
        ends = [(0, GUARD), (at.a + 2 * p.m * p.k, at.b), (at.b + 2 * p.k * p.n, at.c), (at.c + 2 * p.m * p.n, at.stride)]
        views = [
            memory.as_strided((at.sets + (start == 0), (end - start) // 2), (stride, 1), start // 2)
            for start, end in ends
            if end > start
        ]
        return views

    def fill(self, first: int, count: int) -> None:
        """Fresh normals in the inputs of these sets, and in their private originals."""
        for original, shared in zip(self.inputs, (self.a, self.b)):
            inputs.fill_normal(self._rng, original[first : first + count])
            shared[first : first + count] = original[first : first + count]

    def put(self, set_: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """These inputs in one set."""
        for original, shared, value in zip(self.inputs, (self.a, self.b), (a, b)):
            original[set_] = value
            shared[set_] = value

    def poison(self, first: int, count: int, workspace: int) -> None:
        """NaN in every output of these sets, and in the `workspace` bytes asked for but for the semaphores."""
        self.c[first : first + count] = torch.nan
        used = self._workspace[: (workspace + WORKSPACE_GUARD) // 2]
        used.copy_(_nan_patterns(used.shape, self._rng))
        self._workspace_secret = used[workspace // 2 :].clone()
        used[: min(SEMAPHORES, workspace) // 2] = 0

    def inputs_intact(self, first: int, count: int) -> bool:
        """Whether A and B of these sets still hold what was put there."""
        part = slice(first, first + count)
        return all(
            torch.equal(shared[part].view(torch.int16), original[part].view(torch.int16))
            for shared, original in zip((self.a, self.b), self.inputs)
        )

    def guards_intact(self) -> bool:
        """Whether no band beside any matrix was written."""
        return all(torch.equal(view, secret) for view, secret in zip(self._guards, self._secret))

    def workspace_finding(self, workspace: int) -> str:
        """What a call left wrong in the workspace; empty where nothing."""
        head = self._workspace[: min(SEMAPHORES, workspace) // 2]
        if bool(head.any()):
            return "left the semaphores at the head of the workspace non-zero"
        beyond = self._workspace[workspace // 2 : (workspace + WORKSPACE_GUARD) // 2]
        return "" if torch.equal(beyond, self._workspace_secret) else "wrote beyond the workspace it asked for"


def _nan_patterns(shape: torch.Size, rng: torch.Generator) -> torch.Tensor:
    """Random fp16 NaNs as int16: 0x7c01 to 0x7fff."""
    return torch.randint(0x7C01, 0x8000, shape, generator=rng, device=rng.device, dtype=torch.int16)
