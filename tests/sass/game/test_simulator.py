"""The simulator knows which of two orders is better, and by what."""

import msgspec
import pytest
from sass.planted import LOADS, listing

from cudal2.config import MachineConfig
from cudal2.records import Status
from cudal2.sass.blocks import window
from cudal2.sass.game.play import unedited
from cudal2.sass.game.simulator import Simulated, cycles


def of(good: bool, **figures: int) -> float:
    those = listing(good)
    return cycles(those, window(those), MachineConfig(**figures))


def test_loads_that_are_under_way_together_cost_one_latency() -> None:
    figures = {"warps": 1, "shared": 1, "matrix": 1, "shared_latency": 100}
    assert of(False, **figures) == pytest.approx(LOADS * 100 + 60, rel=0.1)
    assert of(True, **figures) == pytest.approx(100 + 60, rel=0.2)


def test_a_full_pipe_is_what_it_costs_when_there_are_warps_enough() -> None:
    assert of(True, warps=8, matrix=16, shared=1) == pytest.approx(8 * LOADS * 16, rel=0.1)
    assert of(False, warps=8, matrix=16, shared=1) == pytest.approx(8 * LOADS * 16, rel=0.1)


def test_more_stall_is_never_faster() -> None:
    slow = listing()
    for position in window(slow).positions:
        fields = slow.instructions[position].controls
        slow = slow.controlled(position, msgspec.structs.replace(fields, stall=min(11, fields.stall + 4)))
    assert cycles(slow, window(slow)) > of(False)


def test_the_unedited_kernel_is_as_fast_as_itself() -> None:
    (found,) = Simulated(listing())([unedited(listing())])
    assert (found.status, found.speedup) == (Status.OK, 1.0)
