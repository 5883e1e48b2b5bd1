"""What a search misses on shapes that nobody tuned for: what it tries first, beside all that was measured.

    python experiments/h200/known_settings/room.py experiments/h200/layers    # prints room.txt

room0.jsonl.xz and room1.jsonl.xz hold the same settings and shapes (`cost_model/cover.py room`), each from a GPU of its
own. The fastest is chosen by the first and timed by the second, so that luck is not counted; speedups are over
explore.py's rough baseline; intervals are of 95%, over weights. What a search tries first are its known settings by
default (`search.order=cost`), as this tree lists them.
"""

import json
import lzma
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cudal2 import llm
from cudal2.problem import Problem, parse
from cudal2.records import to_json
from cudal2.search import prior
from cudal2.search.proposer import Setting
from cudal2.split import KEPT_APART, kept_apart

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from explored import FAMILIES, TARGET
from picks import interval

COUNTS = (1, 4, 16)
ROWS = ((1, 16), (17, 64), (65, 1024), (1025, 8192), (1, 8192))
Speeds = dict[Problem, dict[str, float]]


def read(path: Path) -> tuple[Speeds, Speeds]:
    """The speedup of each setting, as JSON, on each shape; and that of what was slow, by its cold runs."""
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    base = {line["problem"]: line["us"] * line["speedup"] for line in lines if line["said"] == "ok"}
    found: tuple[Speeds, Speeds] = defaultdict(dict), defaultdict(dict)
    for line in lines:
        setting = to_json(Setting(line["family"], line["knobs"]))
        speed = line.get("speedup") or base[line["problem"]] / line["us"]
        found["speedup" not in line][parse(line["problem"])][setting] = speed
    return found


def first(problem: Problem, measured: Mapping[str, float], count: int) -> list[str]:
    """The first known settings of a search, of those that were measured: a later table may name others."""
    liked, near = (some(TARGET, problem, FAMILIES) for some in (prior.liked_settings, prior.known_settings))
    return [one for one in map(to_json, prior.alternating(liked, near)) if one in measured][:count]


def timed(problem: Problem, some: Sequence[str], chooser: Speeds, judge: Speeds) -> float:
    """The logarithm of the judge's figure for what the chooser finds fastest among some."""
    return math.log(judge[problem][max(some, key=chooser[problem].__getitem__)])


def alike(one: tuple[Speeds, Speeds], other: tuple[Speeds, Speeds]) -> tuple[Speeds, Speeds]:
    """Both with the same settings: where one was slow at once, the other's figure, for a cold run can be far too long;
    where both were, the better of these runs."""
    (timed_one, slow_one), (timed_other, slow_other) = one, other
    chooser, judge = dict[Problem, dict[str, float]](), dict[Problem, dict[str, float]]()
    for problem in timed_one:
        cold = {key: max(speed, slow_other[problem].get(key, 0)) for key, speed in slow_one[problem].items()}
        chooser[problem] = cold | timed_other[problem] | timed_one[problem]
        judge[problem] = cold | timed_one[problem] | timed_other[problem]
    return chooser, judge


def main(folder: Path) -> None:
    chooser, judge = alike(*(read(folder / f"room{number}.jsonl.xz") for number in (0, 1)))
    weights = {(layer.n, layer.k) for name in llm.names(KEPT_APART) for _, layer in [llm.find(name)]}
    for title, layers in (("layers kept apart", True), ("off the lattice", False)):
        shapes = [one for one in chooser if kept_apart(one) and ((one.n, one.k) in weights) is layers]
        print(f"\n{title}: {len(shapes)} shapes, {sum(len(chooser[one]) for one in shapes)} kernels timed")
        heads = [f"first {count}" for count in COUNTS]
        print(f"{'rows':<14}{'':>4}  " + "  ".join(f"{head:24}" for head in (*heads, "all", "all less the first 16")))
        for least, most in ROWS:
            here = [one for one in shapes if least <= one.m <= most]
            if not here:
                continue
            owner = np.array([one.n * 10**6 + one.k for one in here])
            tried = [[first(one, chooser[one], count) for one in here] for count in COUNTS]
            columns = [
                np.array([timed(one, ones, chooser, judge) for one, ones in zip(here, some)])
                for some in (*tried, [list(chooser[one]) for one in here])
            ]
            cells = [*(interval(one, owner) for one in columns), interval(columns[-1] - columns[-2], owner, float)]
            print(f"{least:>5} to {most:<6}{len(here):>4}  " + "  ".join(cells))
        kinds = Counter(json.loads(max(chooser[one], key=chooser[one].__getitem__))["family"] for one in shapes)
        print("fastest:", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
