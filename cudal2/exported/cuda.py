"""Where kernels of a CUDA target run: GPUs of the name they were measured on, on torch's current stream.

A call only enqueues. It allocates by torch's caching allocator only, so that it can be captured into a CUDA graph. All
kernels of a folder share one workspace per stream, and the stream orders their use of it. No host code of a kernel's
author is loaded; `cudal2.h` in the exported folder describes the library that launches the kernels.
"""

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import torch

from . import processor
from .held import Held, Kernel, Unusable, address, content, opened
from .op import Place

CUDA = 1
"""torch's number for this kind of device."""


def here() -> str:
    """The name of the first GPU, as measurements on it have it; "" without one."""
    return next(iter(_gpus()), "")


def unsupported(held: Held) -> str:
    """Why none of these kernels may run on this machine; "" where they may."""
    gpus = _gpus()
    return "" if held.device in gpus else f"measured on {held.device}, not on {' or '.join(gpus) or 'a GPU'}"


def place(held: Held) -> Place:
    """The GPUs, and the functions of the folder's launcher. Raises Unusable."""
    library = _launcher(held)
    return Place(
        launched=1,
        device_type=CUDA,
        devices=sum(1 << index for index, name in enumerate(_gpus()) if name == held.device),
        alignment=held.alignment,
        semaphores=held.semaphores,
        stream=current_stream(),
        needs=address(library.cudal2_needs),
        launch=address(library.cudal2_launch),
        capturing=address(library.cudal2_capturing),
        workspace=address(library.cudal2_workspace),
        message=address(library.cudal2_message),
    )


def code(held: Held, kernel: Kernel) -> tuple[int, int]:
    """(the kernel's handle, -1: its workspace is known once it is on a GPU). Raises Unusable.

    Nothing is loaded onto a GPU before the first call there.
    """
    if kernel.recipe is None:
        raise Unusable(f"{held.folder} holds no recipe for {kernel.name}", "Export again")
    library = _launcher(held)
    recipe, cubin = content(held.folder, kernel.recipe), content(held.folder, kernel.code)
    made, workspace = c_void_p(), c_size_t()
    if library.cudal2_load(recipe, len(recipe), cubin, len(cubin), ctypes.byref(made), ctypes.byref(workspace)):
        said = library.cudal2_message().decode(errors="replace")
        raise Unusable(f"{held.folder / kernel.recipe.path} cannot be used: {said}", "Export again")
    assert made.value
    return made.value, -1


def copier(held: Held) -> int | None:
    """The address of the function that pads inputs with fewer rows; None where the launcher has none."""
    found = getattr(_launcher(held), "cudal2_copy", None)
    return None if found is None else address(found)


def runner(held: Held) -> int | None:
    """The address of the function that launches kernels with any operands, for any rows; None in older folders, whose
    kernels have neither."""
    found = getattr(_launcher(held), "cudal2_run", None)
    return None if found is None else address(found)


def current_stream() -> int:
    """The address of the stable ABI's function that returns torch's current stream of a device.

    Raises Unusable where this torch is built without CUDA.
    """
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    try:
        return address(ctypes.CDLL(str(path) if path.exists() else path.name).aoti_torch_get_current_cuda_stream)
    except (OSError, AttributeError) as error:
        raise Unusable(f"torch {torch.__version__} has no CUDA streams: {error}", "Install torch for CUDA") from error


def describe(index: int) -> str:
    """A GPU as the worker's environment names it."""
    properties = torch.cuda.get_device_properties(index)
    return processor.gpu_name(properties.name, properties.multi_processor_count)


def _gpus() -> list[str]:
    return [describe(index) for index in range(torch.cuda.device_count())]


def _launcher(held: Held) -> ctypes.CDLL:
    if held.launcher is None:
        raise Unusable(f"{held.folder} holds nothing to launch its kernels with", "Export again")
    try:
        return _prepared(opened(held.folder, held.launcher))
    except (OSError, AttributeError) as error:
        remedy = "It needs the NVIDIA driver and a libc no older than where it was exported; else export again here"
        raise Unusable(f"{held.folder / held.launcher.path} cannot be loaded: {error}", remedy) from error


@cache
def _prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.cudal2_message.restype = c_char_p
    library.cudal2_load.argtypes = [c_char_p, c_size_t, c_char_p, c_size_t, c_void_p, c_void_p]
    library.cudal2_load.restype = c_int
    return library
