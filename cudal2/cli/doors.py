"""The doors: `cudal2 serve`, the judge for other programs; `cudal2 archive`, a run's verdicts as a dataset, and back;
`cudal2 pack`, a run to be carried elsewhere, and `unpack`.

Each imports what it needs when it runs.
"""

import argparse
from pathlib import Path
from typing import Any, Literal

import msgspec

from cudal2.cli.arguments import add_verb, configured, options


def add(verbs: Any) -> None:
    """Add `serve`, `archive` with its verbs, `pack` and `unpack` to the command's verbs."""
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
    group = verbs.add_parser("archive", help="all verdicts of a run as a dataset for others, and a dataset as a run")
    what = group.add_subparsers(required=True, metavar="WHAT")
    text = "prompts, sources, verdicts and speeds as Parquet or JSON lines (out=RUN/dataset), with a card"
    example = "cudal2 archive export runs/demo format=jsonl out=data licence=mit"
    add_verb(what, "export", _export, text, places=("RUN",), keys=example)
    text = "add a dataset to a run, which is made if need be; its verdicts count as if they had been reached there"
    add_verb(what, "import", _import, text, places=("DATASET", "RUN"), keys="cudal2 archive import data runs/theirs")
    text = "a run or a campaign as files of at most 16 MB, to go on with it elsewhere"
    add_verb(
        verbs, "pack", _pack, text, places=("RUN", "OUT"), keys="cudal2 pack runs/mine parcel cache=~/.cache/cudal2"
    )
    text = "lay out a packed run, its part of the cache included"
    add_verb(verbs, "unpack", _unpack, text, places=("PARCEL", "RUN"), keys="cudal2 unpack parcel runs/mine")


def _serve(arguments: argparse.Namespace) -> None:
    config = configured(arguments)
    from cudal2.serving.server import run

    def ready(server: Any) -> None:
        who = f"whoever shows {config.token}" if server.token else "everybody on this machine"
        print(f"{server.url} judges for {config.target}, for {who}; verdicts go to {config.run}", flush=True)

    run(config, ready)


class _Cache(msgspec.Struct, frozen=True):
    cache: str = "~/.cache/cudal2"


class _Export(msgspec.Struct, frozen=True):
    format: Literal["parquet", "jsonl"] = "parquet"
    out: str = ""
    licence: str = ""


class _Nothing(msgspec.Struct, frozen=True):
    pass


def _export(arguments: argparse.Namespace) -> None:
    given, run = options(arguments, _Export), Path(arguments.paths[0])
    from cudal2 import dataset

    out = Path(given.out) if given.out else run / dataset.EXPORTED
    file, count = dataset.export(run, out, given.format, given.licence)
    print(f"{file}: {count} rows; {out / 'README.md'} says how they were made")


def _import(arguments: argparse.Namespace) -> None:
    options(arguments, _Nothing)
    from cudal2 import dataset

    given, run = map(Path, arguments.paths)
    rows, new = dataset.join(given, run)
    print(f"{run}: {rows} rows, {new} verdicts of them new")


def _pack(arguments: argparse.Namespace) -> None:
    from cudal2 import parcel

    run, out = arguments.paths
    count = parcel.pack(Path(run), Path(out), Path(options(arguments, _Cache).cache).expanduser())
    print(f"{out}: {count} files; on the other machine: cudal2 unpack {out} {run}")


def _unpack(arguments: argparse.Namespace) -> None:
    from cudal2 import parcel

    packed, run = arguments.paths
    parcel.unpack(Path(packed), Path(run), Path(options(arguments, _Cache).cache).expanduser())
    print(f"{run}: the command that it came from goes on with it, run={run}")
