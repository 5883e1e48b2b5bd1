"""An exported shared library in this process."""

import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from cudal2.contract import ENTRY, SIZER, Contract
from cudal2.records import HarnessFault
from cudal2.runtime.manifest import File, Kernel

_LOCK = threading.Lock()
_OPENED: dict[str, ctypes.CDLL] = {}
"""By digest, and for good: nothing unloads a library."""

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], str]
"""Lets a kernel write the product of A and B to C; says why it did not, or nothing."""


class Loaded:
    """A processor's kernel bound to its problem's `mnk`; `workspace` is the bytes of scratch memory it wants.

    `function` takes the addresses of A, B and C, then M, N, K and the workspace's address. It returns 0 for success.
    Raises HarnessFault where the library is damaged or foreign.
    """

    def __init__(self, folder: Path, kernel: Kernel, contract: Contract) -> None:
        problem = kernel.problem
        try:
            library = opened(folder, kernel.code)
            self.function = getattr(library, ENTRY)
        except (OSError, AttributeError) as error:
            path = folder / kernel.code.path
            raise HarnessFault(f"{path} cannot be loaded: {error}", "Export again on this machine") from error
        self.function.argtypes = [
            ctypes.c_int if role == "size" else ctypes.c_void_p for role, _ in contract.parameters
        ]
        self.mnk = (problem.m, problem.n, problem.k)
        self.workspace = 0
        if hasattr(library, SIZER):
            sizer = getattr(library, SIZER)
            sizer.restype = ctypes.c_size_t
            self.workspace = sizer(*self.mnk)


def content(folder: Path, file: File) -> bytes:
    """What the file holds. Raises HarnessFault where it cannot be read or is not what was exported."""
    path = folder / file.path
    try:
        found = path.read_bytes()
    except OSError as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Export again") from error
    if hashlib.sha256(found).hexdigest() != file.sha256:
        raise HarnessFault(f"{path} is not the file that was exported", "Export again")
    return found


def opened(folder: Path, file: File) -> ctypes.CDLL:
    """A shared library of the folder; each content is mapped once.

    Raises HarnessFault where the file cannot be read or is another, OSError where it cannot be loaded.
    """
    found = content(folder, file)
    with _LOCK:
        if file.sha256 not in _OPENED:
            _OPENED[file.sha256] = _mapped(found)
        return _OPENED[file.sha256]


def _mapped(content: bytes) -> ctypes.CDLL:
    """These very bytes, from memory of our own: what becomes of the file they were read from is not seen."""
    file = os.memfd_create("hgemm", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(content)
        with tempfile.TemporaryDirectory(prefix="cudal2.") as folder:
            # The loader takes a name it knows for the library that had it, and numbers of descriptors come again.
            name = Path(folder) / "hgemm.so"
            name.symlink_to(f"/proc/self/fd/{file}")
            return ctypes.CDLL(str(name))  # without OpenMP of its own: torch's is loaded, and shared
    finally:
        os.close(file)
