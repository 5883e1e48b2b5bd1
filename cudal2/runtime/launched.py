"""An exported GPU kernel in this process: its cubin and its recipe, launched by the library exported with them.

No host code of a kernel's author is loaded; `cudal2.h` in the exported folder tells of the library.
"""

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

from cudal2.records import HarnessFault
from cudal2.runtime.loaded import content, opened
from cudal2.runtime.manifest import File, Kernel


class Launched:
    """A kernel of a GPU; `workspace` is the bytes of scratch memory it wants, semaphores included.

    Nothing is loaded onto a GPU before the first call there. Raises HarnessFault where a file is damaged.
    """

    def __init__(self, folder: Path, launcher: File, kernel: Kernel) -> None:
        if kernel.recipe is None:
            raise HarnessFault(f"{folder} holds no recipe for {kernel.problem.name}", "Export again")
        library = _library(folder, launcher)
        recipe, cubin = content(folder, kernel.recipe), content(folder, kernel.code)
        self._kernel, workspace = c_void_p(), c_size_t()
        if library.cudal2_load(
            *(recipe, len(recipe), cubin, len(cubin)), ctypes.byref(self._kernel), ctypes.byref(workspace)
        ):
            said = library.cudal2_message().decode(errors="replace")
            raise HarnessFault(f"{folder / kernel.recipe.path} cannot be used: {said}", "Export again")
        self.workspace = workspace.value
        self._library = library

    def launch(self, a: int, b: int, c: int, workspace: int, stream: int) -> str:
        """Enqueue the product of what lies at these addresses; why that failed, or nothing."""
        if self._library.cudal2_launch(self._kernel, a, b, c, workspace, stream):
            return self._library.cudal2_message().decode(errors="replace")
        return ""


def _library(folder: Path, launcher: File) -> ctypes.CDLL:
    try:
        library = opened(folder, launcher)
        library.cudal2_message.restype = c_char_p
        library.cudal2_load.argtypes = [c_char_p, c_size_t, c_char_p, c_size_t, c_void_p, c_void_p]
        library.cudal2_launch.argtypes = [c_void_p] * 6
        library.cudal2_launch.restype = library.cudal2_load.restype = c_int
    except (OSError, AttributeError) as error:
        remedy = "It needs the NVIDIA driver and a libc no older than where it was exported; else export again here"
        raise HarnessFault(f"{folder / launcher.path} cannot be loaded: {error}", remedy) from error
    return library
