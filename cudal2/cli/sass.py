"""`cudal2 sass`: the assembly game on one kernel. Imports what it needs when it runs."""

import argparse
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_verb, configured

_WHAT = "a source (.cu), a cubin, the folder of a run, or a folder with kernel.cubin and launch.json"


def add(verbs: Any) -> None:
    """Add `sass` and its verbs to the command's verbs."""
    group = verbs.add_parser("sass", help="the assembly game: a finished kernel's instructions in a faster order")
    what = group.add_subparsers(required=True, metavar="WHAT")
    for name, function, text, place, example in (
        (
            "list",
            _list,
            "the instructions with scheduling fields, and which may move",
            "KERNEL",
            "edit=EDIT.json",
        ),
        (
            "check",
            _check,
            "the rules that the compiler's schedule, or an edit, breaks; exit code 1 where there are any",
            "KERNEL",
            "edit=EDIT.json",
        ),
        ("play", _play, "one search for a faster schedule; resumable", "KERNEL", "search.method=ppo run=DIR"),
        (
            "compare",
            _compare,
            "all searches, or methods=…, with as many measurements each; resumable",
            "KERNEL",
            "judge=gpu problem=4096_4096_4096 methods=greedy,ppo search.measurements=2000",
        ),
        (
            "polish",
            _polish,
            "play on a run's best kernel of each shape; what wins joins its archive",
            "RUN",
            "shapes=sample judge=gpu worker.devices=0,1 jobs=4 search.measurements=100",
        ),
    ):
        verb = add_verb(
            what,
            name,
            function,
            text if place == "RUN" else f"{text}. KERNEL is {_WHAT}",
            places=(place,),
            entry="sass",
            schema="SassConfig",
            sweeps=name == "play",
            keys=f"cudal2 sass {name} {'runs/demo' if place == 'RUN' else 'kernel.cu'} {example}",
        )
        verb.set_defaults(again="the same command goes on: no edit is measured twice")


def _opened(arguments: argparse.Namespace) -> tuple[Any, Any]:
    from cudal2.sass.polish import subject

    config = configured(arguments)
    return config, subject.find(Path(arguments.paths[0]), config)


def _list(arguments: argparse.Namespace) -> None:
    from cudal2.sass import text

    config, subject = _opened(arguments)
    print(text.listing(_edited(config.edit, subject.listing)))


def _check(arguments: argparse.Namespace) -> int:
    from cudal2.sass import text
    from cudal2.sass.dependence import violations

    config, subject = _opened(arguments)
    listing = _edited(config.edit, subject.listing)
    broken = violations(listing)
    print(text.violations(listing, broken))
    return 1 if broken else 0


def _edited(file: str, listing: Any) -> Any:
    from cudal2.records import edit_from_json
    from cudal2.sass.game.play import edited

    if not file:
        return listing
    try:
        return edited(listing, edit_from_json(Path(file).read_bytes()))
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error}") from error


def _play(arguments: argparse.Namespace) -> None:
    from cudal2.sass.polish import run, shapes

    config, subject = _opened(arguments)
    found, floor = run.play(subject, config)
    print(shapes.finished(subject, config, found, floor))


def _compare(arguments: argparse.Namespace) -> None:
    from cudal2.sass import searches
    from cudal2.sass.polish import run, shapes

    config, subject = _opened(arguments)
    found, floor = run.compare(subject, config, config.methods or searches.METHODS)
    print(shapes.finished(subject, config, found, floor))


def _polish(arguments: argparse.Namespace) -> None:
    from msgspec.structs import replace

    from cudal2.config.problems import kind_keys
    from cudal2.sass.polish import shapes as polishing

    config, folder = configured(arguments), Path(arguments.paths[0])
    if config.shapes.names:
        problems = replace(config.shapes, **kind_keys(config)).problems()
    else:
        problems = polishing.played(folder, config)
    results = polishing.run(
        folder, problems, config, config.methods, config.jobs, lambda one: print(f"{one.said}\n", flush=True)
    )
    print(polishing.summary(results))
