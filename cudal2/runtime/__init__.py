"""The kernels a run exported, behind torch's own semantics: `load`, then `matmul`, `linear` or `patch`.

from cudal2.runtime import load, patch
lib = load("runs/demo/export")
C = lib.matmul(A, W.T)       # what torch.matmul(A, W.T) returns, by a kernel where one is faster
patch(model, lib)            # every half-precision nn.Linear of a model

On a GPU, call each shape once before a CUDA graph captures it: a capture takes only kernels that ran before.
"""

from cudal2.runtime.library import Library, load
from cudal2.runtime.patch import patch, unpatch

__all__ = ["Library", "load", "patch", "unpatch"]
