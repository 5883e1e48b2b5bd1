"""`cudal2 sass`: the assembly game on one kernel. Imports what it needs when it runs."""

import argparse
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_overrides, add_verb, shapes

_AGAIN = "the same command goes on: no edit is measured twice"
_WHAT = "a source (.cu), a cubin, the folder of a run, or a folder with kernel.cubin and launch.json"


def add(verbs: Any) -> None:
    """Add `sass` and its verbs to the command's verbs."""
    group = verbs.add_parser("sass", help="the assembly game: a finished kernel's instructions in a faster order")
    what = group.add_subparsers(required=True, metavar="WHAT")
    for name, function, text in (
        ("list", _list, "the instructions with their scheduling fields, and which may move"),
        (
            "check",
            _check,
            "the rules that the compiler's schedule, or an edit, breaks; exit code 1 where there are any",
        ),
        ("play", _play, "one search for a faster schedule; resumable"),
        ("compare", _compare, "all searches with as many measurements each; resumable"),
    ):
        verb = add_verb(what, name, function, text)
        verb.add_argument("kernel", help=_WHAT)
        if name in ("list", "check"):
            verb.add_argument("--edit", metavar="JSON", help="a file with an edit, which is made before")
        if name == "compare":
            verb.add_argument("--methods", help="with commas between (default all)")
        verb.set_defaults(again=_AGAIN)
        add_overrides(verb, "e.g. judge=gpu problem=4096_4096_4096 search.method=ppo search.measurements=2000 run=DIR")
    verb = add_verb(what, "polish", _polish, "play on a run's best kernel of each shape; what wins joins its archive")
    verb.add_argument("run", help="the folder of a run")
    verb.add_argument("--shapes", help="lists in conf/shapes and M_N_K, as in sample or 64_64_64 (default the run's)")
    verb.add_argument("--methods", help="with commas between (default search.method)")
    verb.add_argument("--jobs", type=int, default=1, help="games that share a GPU of worker.devices (default 1)")
    verb.set_defaults(again=_AGAIN)
    add_overrides(verb, "e.g. judge=gpu worker.devices=[0,1] search.measurements=100")


def _opened(arguments: argparse.Namespace) -> tuple[Any, Any]:
    from cudal2.config import SassConfig, load
    from cudal2.polish import subject

    config = load("sass", arguments.overrides, SassConfig)
    return config, subject.find(Path(arguments.kernel), config)


def _list(arguments: argparse.Namespace) -> None:
    from cudal2.polish import shown

    _, subject = _opened(arguments)
    print(shown.listing(_edited(arguments, subject.listing)))


def _check(arguments: argparse.Namespace) -> int:
    from cudal2.polish import shown
    from cudal2.sass.dependence import violations

    _, subject = _opened(arguments)
    listing = _edited(arguments, subject.listing)
    broken = violations(listing)
    print(shown.violations(listing, broken))
    return 1 if broken else 0


def _edited(arguments: argparse.Namespace, listing: Any) -> Any:
    from cudal2.records import edit_from_json
    from cudal2.sass.game.moves import edited

    if not arguments.edit:
        return listing
    try:
        return edited(listing, edit_from_json(Path(arguments.edit).read_bytes()))
    except OSError as error:
        raise ValueError(f"cannot read {arguments.edit}: {error}") from error


def _play(arguments: argparse.Namespace) -> None:
    from cudal2.polish import finish, run

    config, subject = _opened(arguments)
    found, floor = run.play(subject, config)
    print(finish.finished(subject, config, found, floor))


def _compare(arguments: argparse.Namespace) -> None:
    from cudal2.polish import finish, run
    from cudal2.sass import searches

    config, subject = _opened(arguments)
    methods = tuple(arguments.methods.split(",")) if arguments.methods else searches.METHODS
    found, floor = run.compare(subject, config, methods)
    print(finish.finished(subject, config, found, floor))


def _polish(arguments: argparse.Namespace) -> None:
    from cudal2.config import EvalConfig, SassConfig, load
    from cudal2.polish import shapes as polishing

    config, folder = load("sass", arguments.overrides, SassConfig), Path(arguments.run)
    if named := shapes(arguments):
        alike = f"shapes.layout={config.layout}", f"shapes.accumulate={config.accumulate}"
        problems = load("eval", [f"run={folder}", *named, *alike], EvalConfig).shapes.problems()
    else:
        problems = polishing.played(folder, config)
    methods = tuple(arguments.methods.split(",")) if arguments.methods else ()
    results = polishing.run(
        folder, problems, config, methods, arguments.jobs, lambda one: print(f"{one.said}\n", flush=True)
    )
    print(polishing.summary(results))
