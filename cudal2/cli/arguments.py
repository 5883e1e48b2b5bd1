"""Arguments that several verbs take."""

import argparse
import os
from pathlib import Path
from typing import Any

from cudal2.assets import asset


def add_verb(group: Any, name: str, function: Any, text: str) -> argparse.ArgumentParser:
    """Adds the parser of verb `name` to `group`; the verb calls `function` with the parsed arguments."""
    verb = group.add_parser(name, help=text, description=text)
    verb.set_defaults(verb=function, again="the same command goes on: no kernel is judged twice")
    return verb


def add_overrides(verb: argparse.ArgumentParser, text: str) -> None:
    """Lets `verb` take any number of KEY=VALUE beside its options."""
    verb.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=text)


def stay_offline(policy: str) -> None:
    """Sets libraries offline, unless the policy is a name on the hub."""
    if not policy or policy.startswith("package:") or Path(policy).expanduser().exists():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def shapes(arguments: argparse.Namespace) -> list[str]:
    """`--shapes` as overrides: lists in conf/shapes and problems, separated by commas."""
    if arguments.shapes is None:
        return []
    lists = {path.stem: path for path in asset("conf", "shapes").glob("*.yaml")}
    if arguments.shapes in lists:
        return [f"shapes={arguments.shapes}"]
    from omegaconf import OmegaConf

    words = arguments.shapes.split(",")
    names = [name for word in words for name in (OmegaConf.load(lists[word]).names if word in lists else [word])]
    return [f"shapes.names=[{','.join(names)}]"]
