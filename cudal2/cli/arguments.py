"""Arguments that several verbs take."""

import argparse
import os
from pathlib import Path
from typing import Any


def add_verb(group: Any, name: str, function: Any, text: str) -> argparse.ArgumentParser:
    """The parser of verb `name` in `group`, which calls `function` with what it parsed."""
    verb = group.add_parser(name, help=text, description=text)
    verb.set_defaults(verb=function, again="the same command goes on: no kernel is judged twice")
    return verb


def add_overrides(verb: argparse.ArgumentParser, text: str) -> None:
    """What `verb` takes beside its options: KEY=VALUE, any number of them."""
    verb.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=text)


def stay_offline(policy: str) -> None:
    """Nothing is asked of a hub unless the policy is named there."""
    if not policy or policy.startswith("package:") or Path(policy).expanduser().exists():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
