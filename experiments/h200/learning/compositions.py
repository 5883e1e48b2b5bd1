"""Whether a policy writes compositions of parts that nobody showed it, and whether they are any good.

    WITHOUT='corpus.without={warp_specialised:{schedule:ping-pong,epilogue:tma boxes},split_k:{splits:4,reduce:cluster},decode:{load:registers,splits:2},small_cluster:{load:cp.async,order:row}}'
    cudal2 sft recipe=hopper_any run=runs/without/any "$WITHOUT"
    cudal2 sft recipe=hopper_any_known run=runs/without/known start=runs/without/any "$WITHOUT"
    cudal2 train experiment=h200_layers run=runs/without/grpo policy.path=runs/without/known
    python experiments/h200/learning/compositions.py runs/without/known runs/without/grpo
    python experiments/h200/learning/compositions.py --table          # how many shapes' best known setting is such a one

The first folder says what was kept out (`corpus.without`), the others hold what was judged: for each composition how
many kernels were written and right, and of how many problems one is the fastest. A kernel is of a composition if its
plan says so. One of these four is the best known on 331 of the 1,272 shapes in data/settings.
"""  # noqa: E501

import json
import sys
from collections import Counter
from pathlib import Path

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.files import asset
from cudal2.search.prior import listed
from cudal2.target import find

TARGET = "sm_90a"
WITHOUT = {
    "warp_specialised": {"schedule": "ping-pong", "epilogue": "tma boxes"},
    "split_k": {"splits": 4, "reduce": "cluster"},
    "decode": {"load": "registers", "splits": 2},
    "small_cluster": {"load": "cp.async", "order": "row"},
}


def composition(source: str, without: corpus.Without) -> str:
    """The family of which the source is a composition that was kept out, "" for none."""
    setting = corpus.stated(source, find(TARGET))
    return setting[0] if setting and corpus.kept_out(*setting, without) else ""


def count(run: Path, without: corpus.Without) -> None:
    written, right, best, steps = Counter[str](), Counter[str](), dict[str, tuple[float, str]](), list[int]()
    with Archive(run / "archive.sqlite") as archive:
        samples = list(archive.samples())
        of = {one: composition(archive.source(one), without) for one in {sample.source_hash for sample in samples}}
    for sample in samples:
        name, speed = of[sample.source_hash], sample.speedup or 0.0
        written[name] += 1
        right[name] += bool(speed)
        if name:
            steps.append(sample.origin.step)
        best[sample.problem.name] = max(best.get(sample.problem.name, (0.0, "")), (speed, name))
    fastest = Counter(name for _, name in best.values())
    print(f"{run}: {len(samples)} samples, {len(best)} problems; the first is of step {min(steps, default='none')}")
    for name in without:
        print(f"  {name}: {written[name]} written, {right[name]} right, the fastest of {fastest[name]} problems")


def table() -> None:
    """Of the shapes in data/settings, how many have such a setting as their best."""
    best = dict(reversed(listed(asset("data", "settings", f"{TARGET}.jsonl"))))
    found = Counter(one.family for one in best.values() if corpus.kept_out(one.family, one.knobs, WITHOUT))
    print(f"{sum(found.values())} of {len(best)} shapes", dict(found))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--table"]:
            table()
        case [policy, *runs]:
            kept = json.loads((Path(policy) / "config.json").read_bytes())["corpus"]["without"]
            for each in runs:
                count(Path(each), kept)
