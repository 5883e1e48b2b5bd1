"""The configuration of a verb as `--cfg`, `--info` and `--help` show it."""

import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import msgspec
import yaml
from omegaconf import OmegaConf

from cudal2.assets import asset
from cudal2.config import words
from cudal2.config.base import Schema
from cudal2.config.compose import one_line, opened


def job(config: Schema, package: str = "") -> str:
    """The checked configuration as YAML: what the verb would use. `package` names a part of it, such as worker.

    Raises ValueError where there is no such part.
    """
    found: Any = msgspec.to_builtins(config)
    for part in filter(None, package.split(".")):
        if not isinstance(found, dict) or part not in found:
            raise ValueError(f"the configuration has no {package}; it has {', '.join(msgspec.to_builtins(config))}")
        found = found[part]
    return OmegaConf.to_yaml(found).rstrip() if isinstance(found, dict) else str(found)


def hydras(kind: str, name: str, overrides: Sequence[str], schema: type[Schema], package: str = "") -> str:
    """What Hydra itself knows: its configuration (`kind` hydra or all), or one of the kinds of its `--info`.

    Raises ValueError where these overrides do not compose, SystemExit where there is no such `package`.
    """
    said = StringIO()
    with one_line(name, schema), opened(name, schema) as hydra, redirect_stdout(said):
        given = words.spelled(overrides, schema)
        if kind in ("hydra", "all"):
            hydra.show_cfg(name, given, kind, package or None)
        else:
            hydra.show_info(kind.removeprefix("info-"), name, given)
    return said.getvalue().rstrip()


def choices(name: str) -> dict[str, list[str]]:
    """The groups of the verb whose entry is `conf/NAME.yaml`, and the files to choose from in each."""
    plain = yaml.safe_load(asset("conf", f"{name}.yaml").read_text())
    named = [group for entry in plain["defaults"] if isinstance(entry, dict) for group in entry]
    return {group: sorted(path.stem for path in asset("conf", group).glob("*.yaml")) for group in named}


def brief(name: str, config: Schema) -> str:
    """The end of a verb's help: its groups with their choices, and its keys with their values, a record in a line."""
    wide = shutil.get_terminal_size((120, 24)).columns
    lines = ["groups (GROUP=NAME):", *(f"  {group}: {', '.join(files)}" for group, files in choices(name).items())]
    lines.append("configuration (KEY=VALUE; --cfg job prints it a key a line):")
    for key, value in msgspec.to_builtins(config).items():
        flow = yaml.safe_dump(value, default_flow_style=True, width=wide - 6, sort_keys=False, allow_unicode=True)
        lines.append(f"  {key}: " + flow.replace("\n...", "").strip().replace("\n", "\n    "))
    return "\n".join(lines)
