"""What every record of the configuration is, and which of its keys tell one piece of work from another."""

from functools import cache
from typing import Any, get_type_hints

import msgspec

NEUTRAL = msgspec.Meta(extra={"neutral": True})
"""Marks a key on which no result depends, in the key's own annotation: where and with what it works, how it is
reported, and how long it goes on. Two starts that differ in such keys alone are the same work, so a cached verdict is
recalled, a search goes on and a run is resumed. An unmarked key, a new one too, makes other work of it."""


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of the configuration."""


def identity(config: Schema, prefix: str = "") -> dict[str, Any]:
    """The values that are not NEUTRAL, by their dotted keys ("worker.min_pairs"), as JSON knows them."""
    found: dict[str, Any] = {}
    for name in _lasting(type(config)):
        value = getattr(config, name)
        key = prefix + name
        found |= identity(value, f"{key}.") if isinstance(value, Schema) else {key: msgspec.to_builtins(value)}
    return found


@cache
def _lasting(schema: type[Schema]) -> tuple[str, ...]:
    hints = get_type_hints(schema, include_extras=True)
    return tuple(name for name in schema.__struct_fields__ if NEUTRAL not in getattr(hints[name], "__metadata__", ()))
