"""torch.matmul and F.linear through exported kernels, where that is both possible and faster.

A processor's kernel runs in this process: load only folders you trust, as with any shared library. Of a GPU's, only
device code runs, on memory that this process can reach there. A kernel is chosen by the exact
problem (M, N, K, layout, accumulator), and only where the device is the one it was measured on, a processor uses
as many threads as the measurement did, and it was surely faster then. For m rows that no kernel is for, the smallest M
serves for which that was measured to be good: they are copied to where M rows have room, and the result is the first m
of M rows, whose memory it keeps. Everything else (other shapes, types, strides and alignments; gradients, autocast,
torch.func, tracing, modes: all that `ordinary` tells of) goes to torch, unchanged.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from . import arrays, cpu, cuda, held, op
from .ordinary import unusual

_compiling = torch.compiler.is_dynamo_compiling
_linear = torch.nn.functional.linear


def _exporting() -> bool:
    """torch.compiler.is_exporting(), which is also true of what torch.compile traces in torch 2.11."""
    return torch.compiler._is_exporting_flag


class Library:
    """The kernels of one exported folder, in sums of `accumulate` precision. Safe to use from several threads.

    `device` is where they were measured; `reason` says why none of them is used here, empty where they
    are. `calls` counts what happened to each call: "kernel", "kernel of more rows", or the reason torch served it.
    `id` names it to torch.ops.cudal2, which is what torch.compile sees and runs. With `every`, kernels that were not
    surely faster serve, too, and each any fewer rows: to measure what that costs. `pads` is whether any can: those of
    older folders cannot.

    Raises ValueError where `folder` holds no export, Unusable where one of its files is damaged.
    """

    def __init__(self, folder: Path, accumulate: str = "f32", every: bool = False) -> None:
        found = held.read(folder, every)
        if found.op is None:
            raise held.Unusable(f"{folder} holds no operator for torch", "Export again")
        self.folder, self.device, self.alignment = folder, found.device, found.alignment
        target = cuda if found.on_gpu else cpu
        self.reason = target.unsupported(found)
        self._ours: Counter[str] = Counter()
        kernels = [] if self.reason else [one for one in found.kernels if one.accumulate == accumulate]
        codes = [target.code(found, one) for one in kernels]
        copier = target.copier(found) if kernels else 0
        place = op.Place(alignment=1) if self.reason else target.place(found)
        name = (folder / held.FILE).read_bytes() + accumulate.encode()
        self._table = op.Table(op.library(folder, found.op), place, name)
        self.pads = self._table.pads and copier is not None
        if not self.pads:
            kernels = [one._replace(fewest=one.m) for one in kernels]
        for (m, n, k, layout, *_, fewest), (code, workspace) in zip(kernels, codes):
            self._table.add(m, n, k, layout, code, workspace)
            if fewest < m:
                self._table.pad(m, n, k, layout, fewest, copier)
        self._table.make_standard()
        self.id, self.adds_bias = self._table.id, not found.on_gpu
        self.kernels = kernels
        self._rows: dict[tuple[int, int], frozenset[int]] = {}
        ops = torch.ops.cudal2.attempt_matmul.default, torch.ops.cudal2.attempt_linear.default
        self._attempts = tuple(getattr(one, "_op", one) for one in ops)  # without a function of Python's between

    def __len__(self) -> int:
        """How many problems have a kernel that may run here."""
        return len(self.kernels)

    @property
    def calls(self) -> Counter[str]:
        """How many calls were served by a kernel, or by torch for which reason, since the folder was loaded."""
        return self._ours + self._table.outcomes()

    def rows(self, layer: torch.nn.Linear) -> frozenset[int]:
        """How many rows of inputs there are kernels for, with the weight of this layer."""
        n, k = layer.weight.shape
        if layer.bias is not None and not self.adds_bias:
            return frozenset()
        if (n, k) not in self._rows:
            served = (range(one.fewest, one.m + 1) for one in self.kernels if (one.n, one.k) == (n, k))
            self._rows[n, k] = frozenset().union(*served)
        return self._rows[n, k]

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """torch.matmul(a, b), for a [..., M, K] and b [K, N]; also of NumPy's arrays, and CuPy's.

        A `b` that is contiguous is the layout "nn"; one that is the transpose of a contiguous matrix, "tn".
        """
        if _compiling():
            return torch.matmul(a, b) if _exporting() else torch.ops.cudal2.matmul(a, b, self.id)
        found = self._product(a, b, None, False)
        return arrays.matmul(self, a, b) if found is None else found

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """torch.nn.functional.linear: x [..., K] times weight [N, K] transposed, plus bias [N]."""
        if _compiling():  # and fuses what an operator would hide from it
            whole = bias is not None or _exporting()
            return _linear(x, weight, bias) if whole else torch.ops.cudal2.linear(x, weight, None, self.id)
        found = self._product(x, weight, bias, True)
        if found is None:
            return _linear(x, weight, bias)
        return found if bias is None else found.add_(bias)

    def _product(self, a: Any, b: Any, bias: Any, transposed: bool) -> torch.Tensor | None:
        """The product by a kernel, still without the bias, or nothing where torch is to serve the call."""
        try:
            why = self.reason or unusual(a, b, bias)
            if not why:
                if bias is None:
                    return self._attempts[transposed](a, b, self.id)
                return self._attempts[transposed](a, b, self.id, bias)
        except (AttributeError, RuntimeError, TypeError):  # torch has its own words for what is wrong
            why = "not tensors"
        self._ours[why] += 1
        return None
