"""The base of all records of the configuration, and which keys make one piece of work differ from another."""

from functools import cache
from typing import Any, get_type_hints

import msgspec

NEUTRAL = msgspec.Meta(extra={"neutral": True})
"""Marks, in a key's annotation, that no single result depends on the key. Such keys say where the work is done, on
which devices, how it is reported and how long it goes on. If two starts differ only in these, they are the same work:
cached verdicts are recalled, a search goes on, a run is resumed. A key without the mark, also a new one, tells one
piece of work from another."""


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of the configuration."""


def identity(config: Schema, prefix: str = "") -> dict[str, Any]:
    """All values that are not NEUTRAL, by dotted key (such as "worker.min_pairs"), as types that JSON has. Every key
    begins with `prefix`."""
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
