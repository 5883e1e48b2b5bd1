"""The base of all records of the configuration, and which keys make one piece of work differ from another."""

from functools import cache
from typing import Annotated, Any, get_type_hints

import msgspec

NEUTRAL = msgspec.Meta(extra={"neutral": True})
"""Marks, in a key's annotation, that no single result depends on the key. Such keys say where the work is done, on
which devices, how it is reported and how long it goes on. If two starts differ only in these, they are the same work:
cached verdicts are recalled, a search goes on, a run is resumed. A key without the mark, also a new one, tells one
piece of work from another."""

LATER = msgspec.Meta(extra={"later": True})
"""Marks a key that is younger than work which may be continued. At its default it is no part of an identity, so that
the identities of before hold."""


Count = Annotated[int, msgspec.Meta(ge=1)]


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of the configuration."""


def identity(config: Schema, prefix: str = "", whole: bool = False) -> dict[str, Any]:
    """All values that are not NEUTRAL, by dotted key (such as "worker.min_pairs"), as types that JSON has. Every key
    begins with `prefix`. Keys that came LATER are among them at their defaults, too, if it is to be `whole`."""
    values: dict[str, Any] = {}
    for name, usual in _lasting(type(config)):
        value = getattr(config, name)
        key = prefix + name
        if isinstance(value, Schema):
            values |= identity(value, f"{key}.", whole)
        elif whole or value != usual:
            values[key] = msgspec.to_builtins(value)
    return values


@cache
def _lasting(schema: type[Schema]) -> tuple[tuple[str, Any], ...]:
    """The names of the keys that count, each with its default if it came LATER (else with what no value equals)."""
    hints = get_type_hints(schema, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    fields = [field for field in msgspec.structs.fields(schema) if NEUTRAL not in marks[field.name]]
    return tuple((field.name, field.default if LATER in marks[field.name] else NEUTRAL) for field in fields)
