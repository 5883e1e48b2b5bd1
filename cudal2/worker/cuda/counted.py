"""The program that a profiler looks at: a kernel's calls by the launcher of an export, on random operands.

    python counted.py LIBCUDA LAUNCHER RECIPE CUBIN NORMALS M BYTES_OF_A BYTES_OF_B ... BYTES_OF_C

NORMALS is a file of numbers of the operands' type, with which all are filled, over and over; M the number of rows. No
host code of the kernel's author runs. What is counted is the last call, between the driver's `cuProfilerStart` and
`cuProfilerStop`; those before it have the code loaded and the clocks raised. Whether the result is right is the
worker's business, which asks for counters of nothing else.
"""

import ctypes
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

BEFORE = 2
"""Calls that are not counted."""


def main(libcuda: str, launcher: str, recipe: str, cubin: str, normals: str, m: str, *sizes: str) -> None:
    driver, library = ctypes.CDLL(libcuda), ctypes.CDLL(launcher)
    library.cudal2_message.restype = c_char_p

    def ours(function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments):
            raise SystemExit(library.cudal2_message().decode(errors="replace"))

    _open(driver)
    drawn = Path(normals).read_bytes()
    operands = (c_void_p * len(sizes))(*(_filled(driver, int(size), drawn) for size in sizes))
    a = c_void_p(operands[0])
    code, data = Path(recipe).read_bytes(), Path(cubin).read_bytes()
    kernel, workspace, needed = c_void_p(), c_void_p(), c_size_t()
    ours(library.cudal2_load, code, c_size_t(len(code)), data, c_size_t(len(data)), byref(kernel), byref(needed))
    ours(library.cudal2_needs, kernel, a, byref(needed))
    if needed.value:
        ours(library.cudal2_workspace, a, needed, None, byref(workspace))
    for call in range(BEFORE + 1):
        if call == BEFORE:
            _ask(driver.cuProfilerStart)
        ours(library.cudal2_run, kernel, operands, len(sizes), int(m), workspace, None)
        _ask(driver.cuCtxSynchronize)
    _ask(driver.cuProfilerStop)


def _open(driver: ctypes.CDLL) -> None:
    """The context of the first visible GPU, which is what the worker judges on."""
    device, context = c_int(), c_void_p()
    _ask(driver.cuInit, 0)
    _ask(driver.cuDeviceGet, byref(device), 0)
    _ask(driver.cuDevicePrimaryCtxRetain, byref(context), device)
    _ask(driver.cuCtxSetCurrent, context)


def _filled(driver: ctypes.CDLL, size: int, drawn: bytes) -> int:
    """The address of so many bytes of the device, which hold those drawn, over and over."""
    address = c_uint64()
    _ask(driver.cuMemAlloc_v2, byref(address), c_size_t(size))
    for start in range(0, size, len(drawn)):
        part = c_size_t(min(len(drawn), size - start))
        _ask(driver.cuMemcpyHtoD_v2, c_uint64(address.value + start), drawn, part)
    return address.value


def _ask(function: Callable[..., int], *arguments: object) -> None:
    if code := function(*arguments):
        raise SystemExit(f"{getattr(function, '__name__', '')}: error {code} of the driver")


if __name__ == "__main__":
    main(*sys.argv[1:])
