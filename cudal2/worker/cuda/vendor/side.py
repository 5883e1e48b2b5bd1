"""The baseline's side of a comparison: the vendor's calls on sets of matrices that only this process maps."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from cudal2.worker.cuda.arena import private
from cudal2.worker.cuda.buffers import BufferLayout
from cudal2.worker.cuda.history import History, Touches
from cudal2.worker.cuda.vendor.names import split

if TYPE_CHECKING:
    from cudal2.worker.cuda.vendor.baselines import Vendor
    from cudal2.worker.cuda.vendor.replay import Calls


class BaselineSide:
    """Baselines on sets of matrices a [sets,M,K], b [sets,*b_shape], c [sets,M,N], whose calls are captured once."""

    def __init__(self, vendor: "Vendor", buffers: BufferLayout, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.vendor, self.problem, self.c, self._buffers = vendor, buffers.problem, c, buffers
        self._inputs: dict[str, tuple[Tensor, Tensor]] = {buffers.problem.layout: (a, b)}
        self._calls: dict[str, Calls] = {}

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

    def run(self, name: str, history: History) -> float:
        """Seconds on the device's clock of a history's calls with baseline `name`."""
        if name not in self._calls:
            self._calls[name] = self.vendor.calls(name, self.problem, self.sets(split(name)[1]))
        return self._calls[name].run(history.order, self._touches(name, history))

    def host_seconds(self, name: str, history: History, gap: float) -> float:
        """Seconds on the host's clock of a history's calls, one by one, with baseline `name`, all together."""
        return self._on_host(name, history.order, gap, self._touches(name, history))

    def host_seconds_untouched(self, name: str, count: int, gap: float) -> float:
        """The same of calls on the first `count` sets, with nothing between them."""
        return self._on_host(name, range(count), gap, None)

    def _on_host(self, name: str, order: Sequence[int], gap: float, touches: Touches | None) -> float:
        sets = self.sets(split(name)[1])
        chosen = [sets[number] for number in order]
        return sum(self.vendor.host_seconds(name, self.problem, chosen, len(chosen), gap, touches))

    def _touches(self, name: str, history: History) -> Touches:
        """A history's touches of the inputs that this baseline reads."""
        layout = split(name)[1]
        a, b = self.inputs(layout)
        return history.touches(a, b if layout == self.problem.layout else b.transpose(1, 2))
