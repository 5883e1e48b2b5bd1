"""One grammar for all verbs: the places of a verb (a run, a file), then KEY=VALUE in any order; flags only for what is
no configuration."""

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

_KEY = re.compile(r"[+]{0,2}~?[A-Za-z_][\w-]*(?:[.@:][\w-]+)*=.*|[+]{0,2}hydra/.*|~[A-Za-z_]\w*|\+.*", re.DOTALL)

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def add_verb(
    group: Any,
    name: str,
    function: Any,
    text: str,
    *,
    places: Sequence[str] = (),
    entry: str = "",
    schema: str = "",
    configure: Callable[[argparse.Namespace], Any] | None = None,
    sweeps: bool = False,
    keys: str = "",
) -> argparse.ArgumentParser:
    """Adds the parser of verb `name` to `group`; the verb calls `function` with the parsed arguments.

    They have `paths`, one for each of `places`, and `overrides`, all KEY=VALUE. The last place may end with … and then
    takes any number. A verb with an `entry` in conf/ is configured by Hydra into a record named `schema`, if need be by
    a `configure` of its own. If it `sweeps`, -m runs it for several values. `keys` is an example of what it takes.
    """
    usage = " ".join(["%(prog)s", *places, "[KEY=VALUE …]" if keys or entry else ""])
    verb = group.add_parser(name, help=text, description=text, usage=usage.strip(), add_help=False, allow_abbrev=False)
    verb.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    verb.add_argument("-h", "--help", action="store_true", help="this page, with the configuration that is composed")
    if entry:
        verb.add_argument(
            "-c", "--cfg", choices=("job", "hydra", "all"), help="print the configuration; nothing is done"
        )
        verb.add_argument("-p", "--package", metavar="KEY", default="", help="with --cfg: only this part of it")
        verb.add_argument(
            "-i", "--info", nargs="?", const="all", metavar="KIND", help=f"how Hydra composes it: {', '.join(INFO)}"
        )
    if sweeps:
        text = "run it for each of several values, as seed=0,1 reward=log,paper"
        verb.add_argument("-m", "--multirun", action="store_true", help=text)
    verb.set_defaults(
        verb=function,
        again="the same command goes on: no kernel is judged twice",
        parser=verb,
        places=tuple(places),
        entry=entry,
        schema=schema,
        configure=configure or configured,
        sweeps=sweeps,
        example=keys,
    )
    return verb


def sort(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """Divides the verb's words, and those that argparse left over, into `paths` and `overrides`.

    Raises ValueError where there are too many or too few paths, or an empty one.
    """
    words = _joined([*arguments.words, *rest])
    if getattr(arguments, "info", None) not in (None, *INFO):  # what followed --info was no kind of it
        words.insert(0, arguments.info)
        arguments.info = "all"
    places = arguments.places
    is_key = [bool(_KEY.fullmatch(word)) and not (places and _exists(word)) for word in words]
    arguments.paths = [_home(word) for word, key in zip(words, is_key) if not key]
    arguments.overrides = [word for word, key in zip(words, is_key) if key]
    runs = [word for word in arguments.overrides if word.startswith("run=")]
    if places and places[0].startswith("RUN") and not arguments.paths and runs and not arguments.sweep:
        arguments.overrides.remove(runs[-1])
        arguments.paths = [_home(_unquoted(runs[-1].removeprefix("run=")))]
    if arguments.help:
        return
    if "" in arguments.paths:
        raise ValueError("an empty word names no file and no folder (a shell variable that is not set is empty)")
    many = bool(places) and places[-1].endswith("…")
    if len(arguments.paths) > len(places) and not many and not (arguments.sweep and places == ("RUN",)):
        extra = arguments.paths[len(places)]
        raise ValueError(f"{extra} is no KEY=VALUE; several values are one word, with commas: 64_64_64,128_64_64")
    if len(arguments.paths) < len(places) and not arguments.sweep:
        raise ValueError(
            f"{places[len(arguments.paths)]} is missing: {arguments.parser.format_usage().partition(' ')[2].strip()}"
        )


def usage(arguments: argparse.Namespace) -> str:
    """The verb with what it takes, in one line."""
    return arguments.parser.format_usage().partition(" ")[2].strip()


def configured(arguments: argparse.Namespace, *words: str) -> Any:
    """The verb's configuration: of its run, if its place is one, of `words` and of KEY=VALUE."""
    from cudal2.config import load

    run = [f"run={_quoted(path)}" for path in arguments.paths] if arguments.places == ("RUN",) else []
    return load(arguments.entry, [*run, *words, *arguments.overrides], schema(arguments))


def schema(arguments: argparse.Namespace) -> Any:
    """The record that the verb's configuration is."""
    from cudal2 import config

    return getattr(config, arguments.schema)


def options(arguments: argparse.Namespace, schema: type[msgspec.Struct]) -> Any:
    """The KEY=VALUE of a verb that Hydra does not configure, as a record. Raises ValueError for a key or value that it
    does not have."""
    given = dict(word.split("=", 1) for word in arguments.overrides if "=" in word)
    known = schema.__struct_fields__
    if wrong := [key for key in given if key not in known]:
        raise ValueError(f"there is no key {wrong[0]}; there is {', '.join(known) or 'none'}")
    types = {field.name: field.type for field in msgspec.structs.fields(schema)}
    values = {key: _unquoted(value) for key, value in given.items()}
    values |= {key: _home(value) for key, value in values.items() if types[key] is str}
    try:
        return msgspec.convert(values, schema, strict=False)
    except msgspec.ValidationError as error:
        from cudal2.config import words

        raise ValueError(words.refused(error, schema)) from error


def stay_offline(policy: str) -> None:
    """Sets libraries offline, unless the policy is a name on the hub."""
    if not policy or policy.startswith("package:") or _exists(policy):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def show(arguments: argparse.Namespace) -> bool:
    """Prints what --help, --cfg or --info asks for; whether any of them was given."""
    if arguments.help:
        print(arguments.parser.format_help().rstrip())
        if arguments.example:
            print(f"\nfor example {arguments.example}")
        if arguments.entry:
            from cudal2.config import compose

            missing = arguments.places == ("RUN",) and not arguments.paths
            arguments.paths = ["RUN"] if missing else arguments.paths
            print(f"\n{compose.brief(arguments.entry, configured(arguments))}")
        return True
    if not arguments.entry or not (arguments.cfg or arguments.info):
        return False
    from cudal2.config import compose

    if arguments.cfg == "job":
        print(compose.job(arguments.configure(arguments), arguments.package))
        return True
    kind = arguments.cfg or f"info-{arguments.info}"
    run = [f"run={_quoted(path)}" for path in arguments.paths] if arguments.places == ("RUN",) else []
    print(compose.hydras(kind, arguments.entry, [*run, *arguments.overrides], schema(arguments), arguments.package))
    return True


def _joined(words: Sequence[str]) -> list[str]:
    """A list that was typed with blanks after its commas came as several words: KEY=[0, 1]."""
    whole: list[str] = []
    for word in words:
        if whole and _KEY.fullmatch(whole[-1]) and whole[-1].endswith(",") and not _KEY.fullmatch(word):
            whole[-1] += word
        else:
            whole.append(word)
    return whole


def _unquoted(value: str) -> str:
    whole = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if whole else value


def _exists(word: str) -> bool:
    """Whether a word names a file or folder; none has a name as long as a list of shapes may be."""
    try:
        return Path(_home(word)).exists()
    except OSError:
        return False


def _home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - pathlib's raises for a user who is not there


def _quoted(path: str) -> str:
    from cudal2.config.words import quoted

    return quoted(path)
