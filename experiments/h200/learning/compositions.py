"""Whether a policy writes compositions of parts that nobody showed it, and whether they are any good.

    WITHOUT='corpus.without={warp_specialised:{schedule:ping-pong,epilogue:tma boxes},split_k:{splits:4,reduce:cluster},decode:{load:registers,splits:2},small_cluster:{load:cp.async,order:row}}'
    cudal2 sft recipe=hopper_any run=runs/without/any "$WITHOUT" epochs=4 context=704
    cudal2 sft recipe=hopper_any_known run=runs/without/known start=runs/without/any "$WITHOUT" epochs=4 context=704
    cudal2 train experiment=h200_layers run=runs/without/grpo policy.path=runs/without/known trainer.minutes=6
    python experiments/h200/learning/compositions.py runs/without/grpo runs/seeds/seed-0    # the second was shown all
    python experiments/h200/learning/compositions.py --table          # how many shapes' best known setting is such a one

The folders hold what was judged: for each composition how many kernels were written and right, and of how many problems
one is the fastest. A kernel is of a composition if its plan says so. Beside the first folder the fastest kernels of each
other: on all problems that both have, and on those where a composition won there, in logarithms.
"""  # noqa: E501

import sys
from collections import Counter
from pathlib import Path

import numpy as np
from first import interval

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.files import asset
from cudal2.search.known import listed
from cudal2.target import find

TARGET = "sm_90a"
WITHOUT = {
    "warp_specialised": {"schedule": "ping-pong", "epilogue": "tma boxes"},
    "split_k": {"splits": 4, "reduce": "cluster"},
    "decode": {"load": "registers", "splits": 2},
    "small_cluster": {"load": "cp.async", "order": "row"},
}


Fastest = dict[str, tuple[float, str]]
"""For each problem the speed of the fastest kernel, and the family of which it is a composition, "" for none."""


def composition(source: str) -> str:
    """The family of which the source is a composition that was kept out, "" for none."""
    setting = corpus.stated(source, find(TARGET))
    return setting[0] if setting and corpus.kept_out(*setting, WITHOUT) else ""


def count(run: Path) -> Fastest:
    written, right, best = Counter[str](), Counter[str](), Fastest()
    with Archive(run / "archive.sqlite") as archive:
        samples = list(archive.samples())
        of = {one: composition(archive.source(one)) for one in {sample.source_hash for sample in samples}}
    for sample in samples:
        name, speed = of[sample.source_hash], sample.speedup or 0.0
        written[name] += 1
        right[name] += bool(speed)
        best[sample.problem.name] = max(best.get(sample.problem.name, (0.0, "")), (speed, name))
    fastest = Counter(name for _, name in best.values())
    print(f"{run}: {len(samples)} samples, {len(of)} distinct, {len(best)} problems")
    for name in WITHOUT:
        print(f"  {name}: {written[name]} written, {right[name]} right, the fastest of {fastest[name]} problems")
    return best


def beside(best: Fastest, other: Fastest) -> None:
    less = {name: np.log(best[name][0] / other[name][0]) for name in best if name in other and best[name][0]}
    won = [name for name in less if other[name][1]]
    for what, names in (("all", list(less)), ("where a composition won", won)):
        logs = np.array([less[name] for name in names])
        print(f"  the first folder over this, {what}: {interval(logs)}, {len(names)} problems")


def table() -> None:
    """Of the shapes in data/settings, how many have such a setting as their best."""
    best = dict(reversed(listed(asset("data", "settings", f"{TARGET}.jsonl"))))
    found = Counter(one.family for one in best.values() if corpus.kept_out(one.family, one.knobs, WITHOUT))
    print(f"{sum(found.values())} of {len(best)} shapes", dict(found))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--table"]:
            table()
        case [run, *others]:
            first = count(Path(run))
            for other in others:
                beside(first, count(Path(other)))
