"""The kernels that a run exported, with torch's own semantics: `load`, then `matmul`, `linear` or `patch`.

from cudal2.runtime import load, patch
lib = load("runs/demo/export")
C = lib.matmul(A, W.T)       # what torch.matmul(A, W.T) returns, by a kernel where one is faster
patch(model, lib)            # every half-precision nn.Linear of a model that some kernel is for

The same code, without this repository, is in the exported folder: `pip install runs/demo/export`, then
`import cudal2_kernels`.
"""

import logging
from pathlib import Path

from cudal2.exported.held import Unusable
from cudal2.exported.library import Library
from cudal2.exported.patch import patch, unpatch
from cudal2.problem import Accumulate
from cudal2.records import HarnessFault

log = logging.getLogger(__name__)
__all__ = ["Library", "load", "patch", "unpatch"]


def load(folder: str | Path, accumulate: Accumulate = "f32") -> Library:
    """The kernels that `cudal2 export` wrote to `folder`, for sums in `accumulate` precision.

    Calls of torch.ops.cudal2 that name no library use the one loaded last. Raises ValueError where `folder` holds no
    export, HarnessFault where one of its files is damaged. On another device than the one measured, the library leaves
    every call to torch.
    """
    try:
        found = Library(Path(folder), accumulate)
    except Unusable as error:
        raise HarnessFault(error.what, error.remedy) from error
    if found.reason:
        log.warning("%s: %s; torch serves every call", folder, found.reason)
    return found
