"""Arguments that several verbs take."""

import argparse
import os
from pathlib import Path
from typing import Any


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
