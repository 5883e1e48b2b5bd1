"""The baseline's side of a comparison: the vendor's calls on sets of matrices that only this process maps."""

from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from cudal2.worker.cuda.arena import private
from cudal2.worker.cuda.buffers import BufferLayout
from cudal2.worker.cuda.vendor.names import split

if TYPE_CHECKING:
    from cudal2.worker.cuda.vendor.baselines import Vendor


class BaselineSide:
    """Baselines on sets of matrices a [sets,M,K], b [sets,*b_shape], c [sets,M,N], captured in graphs."""

    def __init__(self, vendor: "Vendor", buffers: BufferLayout, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.vendor, self.problem, self.c, self._buffers = vendor, buffers.problem, c, buffers
        self._inputs: dict[str, tuple[Tensor, Tensor]] = {buffers.problem.layout: (a, b)}
        self._graphs: dict[tuple[str, int, int], torch.cuda.CUDAGraph] = {}

    def inputs(self, layout: str) -> tuple[Tensor, Tensor]:
        """A and B of every set, B stored in `layout`; up to date after `refresh`."""
        if layout not in self._inputs:
            turned = msgspec.structs.replace(self.problem, layout=layout)
            self._inputs[layout] = private(msgspec.structs.replace(self._buffers, problem=turned), self.c.device)[:2]
            self.refresh(layout, slice(None))
        return self._inputs[layout]

    def refresh(self, layout: str, window: slice) -> None:
        """Bring the inputs of these sets into `layout`, where that is not how they were filled."""
        if layout != self.problem.layout:
            (a, b), (filled_a, filled_b) = self.inputs(layout), self._inputs[self.problem.layout]
            a[window] = filled_a[window]
            b[window] = filled_b[window].transpose(1, 2)

    def sets(self, layout: str) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(a, b, c) of every set."""
        return list(zip(*self.inputs(layout), self.c))

    def run(self, name: str, window: slice) -> float:
        """Seconds on the device's clock of one pass over these sets with baseline `name`."""
        key = (name, window.start, window.stop)
        if key not in self._graphs:
            self._graphs[key] = self.vendor.capture(name, self.problem, self.sets(split(name)[1])[window])
            self.vendor.clock.replay(self._graphs[key])  # uploads it
        return self.vendor.clock.replay(self._graphs[key])

    def host_seconds(self, name: str, window: slice, gap: float) -> float:
        """Seconds on the host's clock of single calls on these sets with baseline `name`, all together."""
        sets = self.sets(split(name)[1])[window]
        return sum(self.vendor.host_seconds(name, self.problem, sets, len(sets), gap))
