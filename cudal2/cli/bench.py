"""`cudal2 bench`: a kernel, the baselines, the worker's speed and its honesty. Imports what it needs when it runs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_verb, configured


def add(verbs: Any) -> None:
    """Add `bench` and its verbs to the command's verbs."""
    group = verbs.add_parser("bench", help="measure a kernel, a baseline, or the worker itself")
    what = group.add_subparsers(required=True, metavar="WHAT")
    for name, function, text, places, example in (
        (
            "kernel",
            _kernel,
            "judge a source, what a model wrote (.txt, .md), a folder with a cubin; exit code 0 whatever the verdict",
            ("FILE",),
            "kernel.cu problem=256_384_512 layout=nn accumulate=f16 abi=cuda-l2 edit=EDIT.json worker.counters=true",
        ),
        ("baseline", _baseline, "time the baselines on one problem", (), "problem=4096_4096_4096 target=sm_90a"),
        (
            "floor",
            _floor,
            "how long a kernel takes that only reads a problem's operands, beside the baselines (GPU)",
            (),
            "problem=8_4096_4096,1_3584_18944 target=sm_90a",
        ),
        (
            "worker",
            _worker,
            "verdicts a minute on kernels of the corpus, and where time goes",
            (),
            "problem=64_64_64,256_256_256 count=32 seed=1",
        ),
        (
            "call",
            _call,
            "what a call of an exported kernel costs beside torch's own: of the host, back to back, in a CUDA graph",
            ("FOLDER",),
            "runs/demo/export count=50 settle=true neighbours=true, or clocks=RUN",
        ),
        (
            "aa",
            _aa,
            "time the best baseline as if it were a candidate: 1.00 is right",
            (),
            "problem=64_64_64 repeats=20",
        ),
    ):
        verb = add_verb(
            what,
            name,
            function,
            text,
            places=places,
            entry="bench",
            schema=f"Bench{name.capitalize()}Config",
            configure=_call_config if name == "call" else _config,
            keys=f"cudal2 bench {name} {example}",
        )
        verb.add_argument("--json", action="store_true", help="print one JSON value")


def _config(arguments: argparse.Namespace) -> Any:
    """The target is this machine's unless the words name one."""
    from cudal2 import bench

    if any(word.startswith("target=") for word in arguments.overrides):
        return configured(arguments)
    file = Path(arguments.paths[0]) if arguments.paths else None
    return configured(arguments, f"target={bench.default_target(file)}")


def _call_config(arguments: argparse.Namespace) -> Any:
    """The target is that of the exported kernels."""
    from cudal2.runtime import manifest

    config = configured(arguments)
    if config.clocks:
        return configured(arguments, f"target={manifest.read(Path(arguments.paths[0])).target}")
    if unused := [word for word in arguments.overrides if word.startswith(("worker", "target"))]:
        raise ValueError(f"{' '.join(unused)}: without clocks=RUN nothing of a worker's is used")
    return config


def _call(arguments: argparse.Namespace) -> None:
    config, folder = _call_config(arguments), Path(arguments.paths[0])
    if config.clocks:
        _clocks(folder, config, arguments.json)
        return
    from cudal2 import bench
    from cudal2.overhead import cost, neighbours

    called = neighbours if config.neighbours else cost
    if config.settle:
        rows, count = cost.settle_all(called, folder, config.accumulate)
        what = "serve fewer rows than their own" if config.neighbours else "are dispatched"
        print(f"{folder}: {count} kernels {what} now", file=sys.stderr)
    else:
        rows = called.run(folder, config.accumulate, config.count)
    print(json.dumps(rows) if arguments.json else f"{bench.table(rows)}\n{cost.summary(rows)}")


def _clocks(folder: Path, config: Any, as_json: bool) -> None:
    import msgspec

    from cudal2.evaluation import tables
    from cudal2.overhead import clocks

    rows = clocks.run(folder, Path(config.clocks), config, config.accumulate, config.count)
    whole = msgspec.json.encode(rows).decode() if as_json else tables.text(rows)
    print(whole or "no kernel is right and served its calls")


def _kernel(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    file = Path(arguments.paths[0])
    compiled = bench.compiled_in(file)  # before a GPU is looked for, which would not help
    config = _config(arguments)
    edit, problem = Path(config.edit) if config.edit else None, _problems(config)[0]
    if compiled:
        result = bench.compiled(file, *compiled, config, edit)
    else:
        result = bench.kernel(file, problem, config, config.abi, edit)
    print(json.dumps(result) if arguments.json else bench.describe_kernel(result))


def _baseline(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    config = _config(arguments)
    rows = bench.baseline(_problems(config)[0], config)
    print(json.dumps(rows) if arguments.json else bench.table(rows))


def _floor(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    config = _config(arguments)
    rows = bench.floor(_problems(config), config)
    print(json.dumps(rows) if arguments.json else bench.table(rows))


def _worker(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    config = _config(arguments)
    result = bench.worker(_problems(config), config, config.count, config.seed)
    print(json.dumps(result) if arguments.json else bench.table([result]))


def _aa(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    config = _config(arguments)
    rows = bench.aa(_problems(config), config, config.repeats)
    print(json.dumps(rows) if arguments.json else bench.table(rows))


def _problems(config: Any) -> list[Any]:
    from cudal2.config import problems

    names = [config.problem] if isinstance(config.problem, str) else config.problem
    return [problems.named(name, config) for name in names]
