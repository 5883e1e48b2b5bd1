"""Hydra composes `conf/`; `load` checks the result against the schema, once, at the entry of a verb."""

import re
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
    """Compose `conf/NAME.yaml` with Hydra overrides into a record of `schema`.

    The schema's own defaults are the config `schema`, so that files state only what differs from them. With a `base`
    its values stand wherever no override says otherwise, instead of those defaults and of the groups' own choices.
    Raises ValueError for an unknown group, key, value or target, naming it.
    """
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
        message = str(error).split("Config search path")[0].strip()
        raise ValueError(f"configuration {name}: {message}") from error
    return config


def _groups(name: str) -> list[str]:
    """The groups that `conf/NAME.yaml` makes a choice of."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(asset("conf", f"{name}.yaml")))
    entries = [entry for entry in plain["defaults"] if isinstance(entry, dict)]
    return [group for entry in entries for group, choice in entry.items() if choice is not None]
