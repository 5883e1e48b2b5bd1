"""Device memory that several processes map, and how torch looks at it.

Allocated through CUDA's virtual memory management, so that a file descriptor hands the same memory to another process
at the addresses which that one chooses. https://docs.nvidia.com/cuda/cuda-c-programming-guide/#virtual-memory-management
"""

import os

import torch
from cuda.bindings import driver

from cudal2.records import HarnessFault

KIND = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class SharedMemory:
    """`nbytes` of the current device's memory: here the int16 `tensor`, elsewhere what is mapped from `fd`."""

    def __init__(self, nbytes: int) -> None:
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = _here()
        properties.requestedHandleTypes = KIND
        self._nbytes, self._handle = nbytes, ask(driver.cuMemCreate(nbytes, properties, 0))
        self._pointer = _map(self._handle, nbytes)
        self.tensor = _look_at(self._pointer, nbytes)
        self.fd = int(ask(driver.cuMemExportToShareableHandle(self._handle, KIND, 0)))

    def close(self) -> None:
        """Give the memory back; harmless when done before. No view of it must be used any more."""
        if self._handle is None:
            return
        torch.cuda.synchronize()
        ask(driver.cuMemUnmap(self._pointer, self._nbytes))
        ask(driver.cuMemAddressFree(self._pointer, self._nbytes))
        ask(driver.cuMemRelease(self._handle))
        os.close(self.fd)
        self._handle = None


def imported(fd: int, nbytes: int) -> torch.Tensor:
    """The int16 elements of another process's SharedMemory, for as long as this process lives."""
    return _look_at(_map(ask(driver.cuMemImportFromShareableHandle(fd, KIND)), nbytes), nbytes)


def ask(result: tuple):
    """The value of a driver call that returned (code, value…). Raises HarnessFault."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise HarnessFault(f"the GPU driver failed: {code.name}", "Is the GPU's memory taken? Try again")
    return values[0] if values else None


def _map(handle, nbytes: int) -> int:
    """Where this process now sees the memory behind `handle`, readable and writable."""
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


class _Range:
    """A range of device memory, as other libraries are told of one."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes // 2,),
            "typestr": "<i2",
            "data": (pointer, False),
            "version": 3,
        }


def _look_at(pointer: int, nbytes: int) -> torch.Tensor:
    return torch.as_tensor(_Range(pointer, nbytes), device="cuda")
