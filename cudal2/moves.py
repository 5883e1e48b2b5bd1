"""The single changes that an edit of compiled code consists of (`records.Edit`)."""

from typing import Annotated, Literal

import msgspec

Position = Annotated[int, msgspec.Meta(ge=0)]
"""The place of an instruction in a kernel's code, counted from 0."""


class Shift(msgspec.Struct, frozen=True, array_like=True, tag="shift", forbid_unknown_fields=True):
    """Takes out the instruction at `start` and puts it in again at `end`. Those between move by one place.

    A shift by one place swaps two neighbours. In JSON: `["shift", 12, 40]`.
    """

    start: Position
    end: Position


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control", forbid_unknown_fields=True):
    """Sets one field of the scheduling information of the instruction at `position` to `value`.

    For `wait` the value is a bit mask of the six barriers. For `write_barrier` and `read_barrier` it is the number of a
    barrier, where 7 means none. In JSON: `["control", 12, "stall", 5]`.
    """

    position: Position
    field: Literal["stall", "yield", "write_barrier", "read_barrier", "wait", "reuse"]
    value: Annotated[int, msgspec.Meta(ge=0)]
