"""`cudal2 bench`: a kernel, the baselines, the worker's speed and its honesty. Imports what it needs when it runs."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_overrides, add_verb


def add(verbs: Any) -> None:
    """Add `bench` and its verbs to the command's verbs."""
    group = verbs.add_parser("bench", help="measure a kernel, a baseline, or the worker itself")
    what = group.add_subparsers(required=True, metavar="WHAT")
    verb = add_verb(what, "kernel", _bench_kernel, "judge one source file; exit code 0 whatever the verdict")
    verb.add_argument(
        "file",
        help="a kernel in C++ or CUDA, what a model wrote (.txt, .md), or a folder with a cubin and its launch",
    )
    verb.add_argument("--abi", default="contract", choices=("contract", "cuda-l2"), help="whose entry point it defines")
    verb.add_argument("--edit", metavar="JSON", help="a file with an edit of the built kernel, which is judged instead")
    text = "what the hardware counts in a call (ncu), with --edit beside the unedited kernel: worker.counters=true"
    verb.add_argument("--counters", action="store_true", help=text)
    _measured(verb, problem_option=True)
    verb = add_verb(what, "baseline", _bench_baseline, "time the baselines on one problem")
    _measured(verb)
    verb = add_verb(what, "worker", _bench_worker, "verdicts a minute on kernels of the corpus, and where time goes")
    verb.add_argument("--count", type=int, default=16, help="kernels to judge (default 16)")
    verb.add_argument("--seed", type=int, default=0, help="which kernels (default 0)")
    _measured(verb, problem_option=True)
    text = "what a call of an exported kernel costs beside torch's own: of the host, back to back, and in a CUDA graph"
    verb = add_verb(what, "call", _bench_call, text)
    verb.add_argument("folder", help="what `cudal2 export` wrote, RUN/export")
    verb.add_argument("--count", type=int, default=50, help="kernels, spread over the folder's by size (default 50)")
    text = "measure all that are surely faster, and dispatch those by which no call takes longer than by torch"
    verb.add_argument("--settle", action="store_true", help=text)
    text = "measure inputs of fewer rows than those dispatched have; with --settle: from how many on each serves"
    verb.add_argument("--neighbours", action="store_true", help=text)
    text = "time kernels and torch.matmul by offline and server, both called from Python, and add that to RUN/eval"
    verb.add_argument("--clocks", metavar="RUN", help=text)
    verb.add_argument("--accumulate", default="f32", choices=("f32", "f16"))
    verb.add_argument("--json", action="store_true", help="print one JSON value")
    add_overrides(verb, "overrides of the worker's configuration for --clocks, e.g. worker=sweep worker.host_calls=20")
    verb = add_verb(what, "aa", _bench_aa, "time the best baseline as if it were a candidate: 1.00 is right")
    verb.add_argument("--repeats", type=int, default=20, help="measurements (default 20)")
    _measured(verb, problem_option=True)


def _bench_call(arguments: argparse.Namespace) -> None:
    if arguments.clocks:
        _bench_clocks(arguments)
        return
    if arguments.overrides:
        raise ValueError(f"{' '.join(arguments.overrides)}: without --clocks nothing of a worker's is used")
    from cudal2 import bench
    from cudal2.calling import cost, neighbours, settling

    folder, called = Path(arguments.folder), neighbours if arguments.neighbours else cost
    if arguments.settle:
        rows, count = settling.run(called, folder, arguments.accumulate)
        what = "serve fewer rows than their own" if arguments.neighbours else "are dispatched"
        print(f"{folder}: {count} kernels {what} now", file=sys.stderr)
    else:
        rows = called.run(folder, arguments.accumulate, arguments.count)
    print(json.dumps(rows) if arguments.json else f"{bench.table(rows)}\n{cost.summary(rows)}")


def _bench_clocks(arguments: argparse.Namespace) -> None:
    if arguments.settle or arguments.neighbours:
        raise ValueError(
            "--clocks settles nothing, and calls kernels with their own number of rows; leave the rest out"
        )
    import msgspec

    from cudal2.calling import clocks
    from cudal2.config import BenchConfig, load
    from cudal2.evaluation import tables
    from cudal2.runtime import manifest

    folder = Path(arguments.folder)
    target = manifest.read(folder).target
    config = load("bench", [f"target={target}", *arguments.overrides], BenchConfig)
    rows = clocks.run(folder, Path(arguments.clocks), config, arguments.accumulate, arguments.count)
    whole = msgspec.json.encode(rows).decode() if arguments.json else tables.text(rows)
    print(whole or "no kernel is right and served its calls")


def _bench_kernel(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    if arguments.counters:
        arguments.overrides.append("worker.counters=true")
    config = _bench_config(arguments, Path(arguments.file))
    edit = Path(arguments.edit) if arguments.edit else None
    result = bench.kernel(Path(arguments.file), _problem(arguments), config, arguments.abi, edit)
    print(json.dumps(result) if arguments.json else bench.describe_kernel(result))


def _bench_baseline(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    rows = bench.baseline(_problem(arguments), _bench_config(arguments))
    print(json.dumps(rows) if arguments.json else bench.table(rows))


def _bench_worker(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    result = bench.worker(_problems(arguments), _bench_config(arguments), arguments.count, arguments.seed)
    print(json.dumps(result) if arguments.json else bench.table([result]))


def _bench_aa(arguments: argparse.Namespace) -> None:
    from cudal2 import bench

    rows = bench.aa(_problems(arguments), _bench_config(arguments), arguments.repeats)
    print(json.dumps(rows) if arguments.json else bench.table(rows))


def _bench_config(arguments: argparse.Namespace, file: Path | None = None) -> Any:
    from cudal2 import bench
    from cudal2.config import BenchConfig, load

    named = any(override.startswith("target=") for override in arguments.overrides)
    target = [] if named else [f"target={arguments.target or bench.default_target(file)}"]
    return load("bench", [*target, *arguments.overrides], BenchConfig)


def _problem(arguments: argparse.Namespace) -> Any:
    from cudal2.problem import parse

    return parse(arguments.problem, arguments.layout, arguments.accumulate)


def _problems(arguments: argparse.Namespace) -> list[Any]:
    from cudal2.problem import parse

    return [parse(text, arguments.layout, arguments.accumulate) for text in arguments.problem.split(",")]


def _measured(verb: argparse.ArgumentParser, problem_option: bool = False) -> None:
    text = "M_N_K or the name of an LLM layer"
    if problem_option:
        verb.add_argument(
            "--problem",
            default="256_256_256",
            help=f"{text} (default 256_256_256); aa and worker take several, by commas",
        )
    else:
        verb.add_argument("problem", help=text)
    verb.add_argument("--target", help="default: this machine's GPU, or its processor where it has none")
    verb.add_argument("--layout", default="tn", choices=("nn", "tn"))
    verb.add_argument("--accumulate", default="f32", choices=("f32", "f16"))
    verb.add_argument("--json", action="store_true", help="print one JSON value")
    add_overrides(verb, "overrides of the worker's configuration, e.g. worker.threads=1")
