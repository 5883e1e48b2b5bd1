"""Where kernels of the CPU target run: the processor they were measured on, with as many threads."""

import ctypes
from typing import NoReturn

from . import processor
from .held import Held, Kernel, Unusable, address, opened
from .op import Place


def here() -> str:
    """The processor's name, as measurements on it have it."""
    return processor.name()


def unsupported(held: Held) -> str:
    """Why none of these kernels may run on this machine; "" where they may."""
    if held.device != here():
        return f"measured on {held.device}, not on {here()}"
    if missing := set(held.instructions) - processor.instructions():
        return f"built for a processor with {' '.join(sorted(missing))}"
    return ""


def place(held: Held) -> Place:
    """The processor, with as many threads as were measured."""
    return Place(devices=1, threads=held.threads, alignment=held.alignment)


def code(held: Held, kernel: Kernel) -> tuple[int, int]:
    """(address of the kernel's function, bytes of workspace that do for each number of rows). Raises Unusable."""
    try:
        library = opened(held.folder, kernel.code)
        function = getattr(library, held.entry)
    except (OSError, AttributeError) as error:
        _cannot(held, kernel, error)
    workspace = 0
    if hasattr(library, held.sizer):
        sizer = getattr(library, held.sizer)
        sizer.restype = ctypes.c_size_t
        workspace = max(sizer(m, kernel.n, kernel.k) for m in range(kernel.rows[0], kernel.rows[1] + 1))
    return address(function), workspace


def copier(held: Held) -> int:
    """The address of the function that pads inputs with fewer rows; 0, as a processor needs none."""
    return 0


def runner(held: Held) -> int | None:
    """The address of the function that launches kernels with any operands, for any rows; 0, for none are launched."""
    return 0


def _cannot(held: Held, kernel: Kernel, error: Exception) -> NoReturn:
    path = held.folder / kernel.code.path
    raise Unusable(f"{path} cannot be loaded: {error}", "Export again on this machine") from error
