"""An exported shared library in this process."""

import ctypes
import hashlib
from pathlib import Path

from cudal2.records import HarnessFault
from cudal2.runtime.manifest import Kernel

_ARGUMENTS = (ctypes.c_void_p,) * 3 + (ctypes.c_int,) * 3 + (ctypes.c_void_p,)


class Loaded:
    """A kernel bound to its problem's `mnk`; `workspace` is the bytes of scratch memory it wants.

    `function` takes the addresses of A, B and C, then M, N, K, the workspace's address and, of a CUDA kernel,
    the stream. It returns 0 for success. Raises HarnessFault where the library is damaged or foreign.
    """

    def __init__(self, folder: Path, kernel: Kernel, stream: bool) -> None:
        problem = kernel.problem
        path = folder / kernel.library
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise HarnessFault(f"{path} cannot be read: {error}", "Export again") from error
        if found != kernel.sha256:
            raise HarnessFault(f"{path} is not the library that was exported", "Export again")
        try:
            library = ctypes.CDLL(str(path))  # without OpenMP of its own: torch's is loaded, and shared
            self.function = library.hgemm
        except (OSError, AttributeError) as error:
            raise HarnessFault(f"{path} cannot be loaded: {error}", "Export again on this machine") from error
        self.function.argtypes = _ARGUMENTS + (ctypes.c_void_p,) * stream
        self.mnk = (problem.m, problem.n, problem.k)
        self.workspace = 0
        if hasattr(library, "hgemm_workspace"):
            library.hgemm_workspace.restype = ctypes.c_size_t
            self.workspace = library.hgemm_workspace(*self.mnk)
