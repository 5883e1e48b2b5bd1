"""`cudal2 report`: pages, pictures and tables about runs that are there; nothing is measured."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from cudal2.cli.arguments import add_verb, options

VERBS = ("page", "curves", "searches", "tables", "audit", "outsiders")


def add(verbs: Any) -> None:
    """Add `report` and its verbs to the command's verbs."""
    group = verbs.add_parser("report", help="a page about a run, or several side by side: pictures, tables, an audit")
    what = group.add_subparsers(required=True, metavar="WHAT")
    places = ("RUN…",)
    text = "one HTML page about a run (out=RUN/report.html); several runs, or those of a sweep, side by side"
    add_verb(what, "page", _page, text, places=places, keys="cudal2 report page runs/demo")
    text = "what several runs learnt, in one picture (out=comparison.png, .svg or .pdf) and a table"
    add_verb(what, "curves", _curves, text, places=places, keys="cudal2 report curves runs/a runs/b out=learning.png")
    text = "what searches of the same shapes found with how many kernels, in one picture (out=searches.png) and a table"
    add_verb(what, "searches", _searches, text, places=places, keys="cudal2 report searches runs/a-0 runs/b-0")
    text = "speedups over each library, as CUDA-L2 tabulates them; against=CSV: beside somebody's figures by shape"
    example = "cudal2 report tables runs/a runs/b together=true (of several environments, each speedup of its own)"
    add_verb(what, "tables", _tables, text, places=places, keys=example)
    text = "how many of the evaluated kernels are right, and why others are not"
    add_verb(what, "audit", _audit, text, places=places, keys="cudal2 report audit runs/cuda-l2")
    text = "which kernels no family renders and which of them win; the page then shows them too"
    verb = add_verb(what, "outsiders", _outsiders, text, places=places, keys="cudal2 report outsiders runs/mutation-0")
    verb.add_argument("--json", action="store_true", help="print one JSON value")


class _Out(msgspec.Struct, frozen=True):
    out: str = ""


class _Tables(msgspec.Struct, frozen=True):
    against: str = ""
    together: bool = False


class _Nothing(msgspec.Struct, frozen=True):
    pass


def _folders(arguments: argparse.Namespace) -> list[Path]:
    """The runs that were named; for the folder of a sweep, its runs."""
    from cudal2 import sweep

    folders = [run for name in arguments.paths for run in sweep.runs(Path(name))]
    if not folders:
        raise ValueError(f"{arguments.paths[0]} is the folder of a sweep of which no run is done yet")
    return folders


def _page(arguments: argparse.Namespace) -> None:
    folders, out = _folders(arguments), options(arguments, _Out).out
    from cudal2 import report

    alone = folders == [Path(arguments.paths[0])]
    if alone and Path(out).suffix not in report.PICTURES:
        print(report.run(folders[0], Path(out) if out else None))
        return
    beside = {"train": _curves, "search": _searches, "eval": lambda arguments: print(_tabulated(folders, None, True))}
    beside[_kind(folders)](arguments)


def _kind(folders: list[Path]) -> str:
    """What all of these runs have done that can be shown side by side."""
    from cudal2.archive import Archive

    by_run = []
    for folder in folders:
        with Archive.of(folder, create=False) as archive:
            by_run.append({sample.origin.kind for sample in archive.samples()})
    kinds = set.intersection(*by_run)
    return "train" if kinds & {"train", "sft"} else "search" if "search" in kinds else "eval"


def _curves(arguments: argparse.Namespace) -> None:
    folders = _folders(arguments)
    from cudal2 import report

    print(report.compare(folders, _picture(arguments, "comparison.png")))
    print(report.beside(folders))


def _picture(arguments: argparse.Namespace, name: str) -> Path:
    """Where a picture of several runs is written: of a sweep into its folder, of others here."""
    out, first = options(arguments, _Out).out, Path(arguments.paths[0])
    sweep = len(arguments.paths) == 1 and _folders(arguments) != [first]
    return Path(out) if out else (first if sweep else Path()) / name


def _searches(arguments: argparse.Namespace) -> None:
    from cudal2.policy import endpoint
    from cudal2.report import budget

    folders = _folders(arguments)
    print(budget.compare(folders, _picture(arguments, "searches.png")))
    for folder in folders:
        if asked := endpoint.spent(folder):
            print(f"\n{folder}: {endpoint.told(asked)}")


def _outsiders(arguments: argparse.Namespace) -> None:
    options(arguments, _Nothing)
    from cudal2.report import outsiders

    rows = [row for folder in _folders(arguments) for row in outsiders.run(folder).rows]
    print(outsiders.to_json(rows) if arguments.json else outsiders.describe(rows))


def _tables(arguments: argparse.Namespace) -> None:
    given = options(arguments, _Tables)
    print(_tabulated(_folders(arguments), Path(given.against) if given.against else None, given.together))


def _tabulated(folders: list[Path], against: Path | None, together: bool) -> str:
    """The results of evaluations as CUDA-L2's tables, one environment after the other: their speeds do not compare.
    With `together`, in one table."""
    from cudal2.evaluation import published, tables
    from cudal2.evaluation.records import Row

    theirs = published.read(against) if against else None
    results = _evaluated(folders, together)
    parts = []
    by_environment: dict[str, list[Row]] = {}
    for row in results.rows:
        by_environment.setdefault("" if together else row.fingerprint, []).append(row)
    for fingerprint, rows in by_environment.items():
        if together:
            devices = " and ".join(dict.fromkeys(one.device for one in results.environments.values()))
            parts.append(f"Of {len(results.environments)} environments together ({devices}):")
        elif len(by_environment) > 1:
            where = results.environments.get(fingerprint)
            parts.append(f"In environment {fingerprint}" + (f" ({where.device}; {where.harness}):" if where else ":"))
        parts.append(tables.text(rows) or "no correct kernel on any of these shapes")
        if theirs:
            parts.append(published.text(rows, theirs))
    return "\n\n".join(parts)


def _audit(arguments: argparse.Namespace) -> None:
    options(arguments, _Nothing)
    from cudal2.evaluation import audit, records

    results = _evaluated(_folders(arguments))
    measured = "; ".join(f"{count} on {name}" for name, count in records.machines(results).most_common())
    print(f"{audit.text(results.rows) or 'no kernel was evaluated'}\n\nMeasured: {measured}")


def _evaluated(folders: list[Path], together: bool = False) -> Any:
    """The results of several evaluations. Raises ValueError where there are none."""
    from cudal2.evaluation.results import joined, load

    results = joined([load(folder) for folder in folders], together)
    if not results.rows:
        raise ValueError(f"{folders[0]} holds no evaluation; run `cudal2 eval` on it first")
    return results
