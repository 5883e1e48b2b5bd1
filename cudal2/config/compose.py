"""Composes the configuration of a verb from the files in `conf/` with Hydra, and checks it, once, at the start; and
shows it, as `--cfg`, `--info` and `--help` do.

`@hydra.main` could not carry the verbs. It reads the command line itself, so a verb's own words (a kernel's file, a
run's folder, --json) would be errors to it; it has one entry for a program that has a dozen; it changes the process's
logging and makes a folder for each start, also for a run that goes on in its old one; it ends in a traceback and exit
code 1 after a typing error; and `--help` would wait for its imports. So single runs use Hydra's compose API, and
several at once (`sweep/`) the object behind `@hydra.main`, with its launchers and sweepers.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from io import StringIO
from typing import Any, TypeVar

import msgspec
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cudal2.config import words
from cudal2.config.base import Schema
from cudal2.files import asset
from cudal2.target import find

Config = TypeVar("Config", bound=Schema)

_EXTRAS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "optuna": "optuna"}
_RENAMED = {"trainer.best_of": "trainer.algorithm=best_of trainer.options.k"}
"""Keys of earlier versions, and how the same is said now."""


def load(name: str, overrides: Sequence[str], schema: type[Config], base: Config | None = None) -> Config:
    """Compose `conf/NAME.yaml` with overrides (such as `worker=quick` or `seed=1`) into a record of `schema`.

    The files in `conf/` state only what differs from the defaults of `schema`. If there is a `base`, the configuration
    of an earlier start, its values take the place of these defaults and of what the files choose; only overrides change
    them. Raises ValueError, which names what is wrong, for an unknown group, key, value or target.
    """
    given = {words.key(word) for word in overrides}
    start = _start(schema)
    with one_line(name, start):
        for word in overrides:
            _check_hydra(word)
        spelled = words.spelled(overrides, schema)
        if base is not None:
            chosen = {key: getattr(start, key) for key in given.intersection(schema.__struct_fields__)}
            start = msgspec.structs.replace(base, **chosen)  # a group that is chosen is chosen whole
            spelled += [f"~{group}" for group in groups(name) if group not in given]
        with opened(name, start):
            composed = compose(name, spelled)
        plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        config = msgspec.convert(plain, schema)
        find(plain["target"])
    return config


@contextmanager
def opened(name: str, schema: Schema | type[Schema]) -> Iterator[Any]:
    """Hydra's own object over `conf/`, for the verb whose entry is `conf/NAME.yaml`, with the defaults of the schema
    or the values of a record."""
    start = _start(schema) if isinstance(schema, type) else schema
    ConfigStore.instance().store("schema", msgspec.to_builtins(start))
    with initialize_config_dir(str(asset("conf")), job_name=name, version_base="1.3"):
        yield GlobalHydra.instance().hydra


@contextmanager
def one_line(name: str, schema: Schema | type[Schema]) -> Iterator[None]:
    """Any error of the configuration in here becomes a ValueError of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, msgspec.ValidationError, ValueError) as error:
        start = _start(schema) if isinstance(schema, type) else schema
        raise ValueError(f"configuration {name}: {_message(error, name, start)}") from error


def groups(name: str) -> list[str]:
    """The groups of which `conf/NAME.yaml` chooses a file."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(asset("conf", f"{name}.yaml")))
    entries = [entry for entry in plain["defaults"] if isinstance(entry, dict)]
    return [group for entry in entries for group, choice in entry.items() if choice is not None]


def _start(schema: type[Config]) -> Config:
    return schema(**{field.name: "???" for field in msgspec.structs.fields(schema) if field.required})


def _check_hydra(word: str) -> None:
    """A single run has no use for Hydra's own keys, but for one; to ignore them would be worse."""
    name = words.key(word)
    if name in ("hydra.run.dir", "hydra.sweep.dir", "hydra.output_subdir"):
        raise ValueError(f"{word}: the folder of a run, and of several with -m, is run=FOLDER")
    if name.startswith(("hydra.", "hydra/")) and name != "hydra.searchpath":
        raise ValueError(f"{word} is for several runs, with -m; a single one takes hydra.searchpath=[DIR] alone")


def _message(error: Exception, entry: str, start: Schema) -> str:
    """What was wrong, in one line. Of a key that does not exist Hydra says how to add it, which cannot be; here those
    like it, and groups."""
    said = str(error)
    if several := re.search(r"(?:argument|parameters) '(.+?)'.*(?:--multirun|key=\[)", said, re.DOTALL):
        return f"{several[1]} are several values: with -m a run for each"
    if isinstance(error, msgspec.ValidationError):
        return words.refused(error, type(start))
    if isinstance(error, OverrideParseException):
        return f"{error.override} is not in Hydra's grammar of overrides: {' '.join(error.message.split())}"
    extra = re.search(r"Could not find 'hydra/\w+/(\w+)'", said)
    if extra and extra[1] in _EXTRAS:
        return f"{extra[1]} is not installed: pip install 'cudal2[{_EXTRAS[extra[1]]}]'"
    unknown = re.match(r"Could not override '(.+?)'", said)
    if not unknown:
        return " ".join(said.split("Config search path")[0].split())
    if unknown[1] in _RENAMED:
        return f"{unknown[1]}=VALUE is {_RENAMED[unknown[1]]}=VALUE now"
    group, _, name = unknown[1].rpartition(".")
    known = (key.rpartition(".") for key in _keys(msgspec.to_builtins(start)))
    keys = [(folder, own, f"{folder}.{own}".strip(".")) for folder, _, own in known]
    beside = {own: key for folder, own, key in keys if folder == group}
    likely = beside if group else beside | {one: one for one in choices(entry)}
    elsewhere = [key for _, own, key in keys if own in (name, unknown[1].replace(".", "_"))]
    near = elsewhere or [likely[own] for own in get_close_matches(name, likely, 1)] or [*beside.values()] * bool(group)
    remedy = f"there is {', '.join(near)}" if near else "the verb's --help lists all"
    return f"there is no key {unknown[1]}; {remedy}"


def _keys(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all values in a record and the records in it."""
    for name, value in values.items():
        yield from _keys(value, f"{prefix}{name}.") if value and isinstance(value, dict) else [prefix + name]


def job(config: Schema, package: str = "") -> str:
    """The checked configuration as YAML: what the verb would use. `package` names a part of it, such as worker.

    Raises ValueError where there is no such part.
    """
    shown: Any = msgspec.to_builtins(config)
    for part in filter(None, package.split(".")):
        if not isinstance(shown, dict) or part not in shown:
            raise ValueError(f"the configuration has no {package}; it has {', '.join(msgspec.to_builtins(config))}")
        shown = shown[part]
    return OmegaConf.to_yaml(shown).rstrip() if isinstance(shown, dict) else str(shown)


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
