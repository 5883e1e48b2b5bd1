"""Composes the configuration of a verb from the files in `conf/` with Hydra, and checks it, once, at the start."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cudal2.assets import asset
from cudal2.config.base import Schema
from cudal2.target import find

Config = TypeVar("Config", bound=Schema)


def load(name: str, overrides: list[str], schema: type[Config], base: Config | None = None) -> Config:
    """Compose `conf/NAME.yaml` with Hydra overrides (such as `worker=quick` or `seed=1`) into a record of `schema`.

    The files in `conf/` state only what differs from the defaults of `schema`. If there is a `base`, the configuration
    of an earlier start, its values take the place of these defaults and of what the files choose; only overrides change
    them. Raises ValueError, which names what is wrong, for an unknown group, key, value or target.
    """
    for word in overrides:
        if "=" not in word:
            raise ValueError(f"configuration {name}: {word} is no KEY=VALUE; shapes are one word, 64_64_64,128_64_64")
    # Hydra's grammar reads 64_64_64 as the integer 646464; a quoted one stays a name.
    overrides = [re.sub(r"(?<=[=\[,])(\d+_\d+_\d+)(?=[\],]|$)", r"'\1'", override) for override in overrides]
    start = schema(**{field.name: "???" for field in msgspec.structs.fields(schema) if field.required})
    if base is not None:
        given = {override.partition("=")[0] for override in overrides}
        chosen = {key: getattr(start, key) for key in given.intersection(schema.__struct_fields__)}
        start = msgspec.structs.replace(base, **chosen)  # a group that is chosen is chosen whole
        overrides = [*overrides, *(f"~{group}" for group in _groups(name) if group not in given)]
    ConfigStore.instance().store("schema", msgspec.to_builtins(start))
    try:
        with initialize_config_dir(str(asset("conf")), version_base="1.3"):
            composed = compose(name, overrides)
        plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        config = msgspec.convert(plain, schema)
        find(plain["target"])
    except (HydraException, OmegaConfBaseException, msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"configuration {name}: {_message(error, start)}") from error
    return config


def _message(error: Exception, start: Schema) -> str:
    """What was wrong. Of a key that does not exist Hydra says how to add it, which cannot be; here those like it."""
    unknown = re.match(r"Could not override '(.+?)'", str(error))
    if not unknown:
        return str(error).split("Config search path")[0].strip()
    group, _, name = unknown[1].rpartition(".")
    known = [key.rpartition(".") for key in _keys(msgspec.to_builtins(start))]
    beside = {own: ".".join(filter(None, [folder, own])) for folder, _, own in known if folder == group}
    elsewhere = [f"{folder}.{own}" for folder, _, own in known if own == name]
    near = elsewhere or [beside[own] for own in get_close_matches(name, beside, 1)] or beside.values()
    return f"there is no key {unknown[1]}; there is {', '.join(near)}"


def _keys(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all values in a record and the records in it."""
    for name, value in values.items():
        yield from _keys(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]


def _groups(name: str) -> list[str]:
    """The groups of which `conf/NAME.yaml` chooses a file."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(asset("conf", f"{name}.yaml")))
    entries = [entry for entry in plain["defaults"] if isinstance(entry, dict)]
    return [group for entry in entries for group, choice in entry.items() if choice is not None]
