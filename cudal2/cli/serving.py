"""`cudal2 serve`: the judge for other programs. Imports what it needs when it runs."""

import argparse
from typing import Any

from cudal2.cli.arguments import add_verb, configured


def add(verbs: Any) -> None:
    """Add `serve` to the command's verbs."""
    verb = add_verb(
        verbs,
        "serve",
        _serve,
        "the judge as a service for other programs: prompts, verdicts and rewards as JSON over HTTP",
        entry="serve",
        schema="ServeConfig",
        keys="cudal2 serve target=sm_90a run=runs/serve port=8765 reward=milestone limits.waiting=256",
    )
    verb.set_defaults(again="the same command goes on: what was judged is recalled")


def _serve(arguments: argparse.Namespace) -> None:
    config = configured(arguments)
    from cudal2.serving.run import run

    def ready(server: Any) -> None:
        who = f"whoever shows {config.token}" if server.token else "everybody on this machine"
        print(f"{server.url} judges for {config.target}, for {who}; verdicts go to {config.run}", flush=True)

    run(config, ready)
