"""How near a look-up's and a cost model's picks come to the best known kernel, on layers of models kept from both.

    python experiments/h200/first_cost_model/layers.py experiments/h200/layers    # prints layers.txt

Six weights (N and K) at a time of 48 are kept out with all their numbers of rows: the look-up loses their lines, and
the model is fitted on what is left. Of each shape only the settings that were measured there can be picked. The regret
is the geometric mean over shapes of (the fastest of the picks) / (the fastest of all measured), with 95% intervals, for
which weights are drawn anew. What a picker does not know it picks last, at random.

`model`: `fitted.fit`, on speeds.jsonl and these records. `rows`: with facts of kernels for few rows. `listed`: only
what the look-up lists, in the model's order. `blended`: the same by the logarithm of the speed less 0.01 for each place
in the look-up's list. Last, the kernels that a search judged on 41 layers of models kept apart (apart.jsonl.xz), where
the look-up's order is that in which they were tried.
"""

import lzma
import math
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import fitted
import msgspec
import numpy as np
from measure import UNITS, UNKNOWN, regret
from rows import facts_of_rows

from cudal2.problem import Problem, parse
from cudal2.records import to_json
from cudal2.search.proposer import Setting

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
import recorded
from explored import Line, today
from picks import interval, looked_up
from recorded import Row

DEVICE, FOLDS = "H200", 8
PICKS = (1, 2, 4, 8, 16)
ROWS = ((1, 16), (17, 64), (65, 2048), (2049, 16384), (1, 16384))


def measured(folder: Path) -> tuple[list[Row], list[Row]]:
    """What was timed, and what was dropped as slow: its speed is the baseline's time over the one cold time.

    Left out: `stationary` of the first round (a fault of the family, since mended), and what no longer renders.
    """
    timed: dict[tuple[str, str], list[float]] = defaultdict(list)
    slow: dict[tuple[str, str], float] = {}
    for name in ("first", "second"):
        lines = msgspec.json.Decoder(Line).decode_lines(lzma.decompress((folder / f"{name}.jsonl.xz").read_bytes()))
        bases: dict[str, list[float]] = defaultdict(list)
        for line in lines:
            if line.speedup:
                bases[line.problem].append(line.us * line.speedup)
        for line in lines:
            setting = None if name == "first" and line.family == "stationary" else today(line)
            if setting and line.speedup:
                timed[line.problem, to_json(setting)].append(math.log(line.speedup))
            elif setting:
                slow[line.problem, to_json(setting)] = math.log(median(bases[line.problem]) / line.us)
    slow = {key: speed for key, speed in slow.items() if key not in timed}
    return [row(*key, float(np.mean(some))) for key, some in timed.items()], [row(*one, s) for one, s in slow.items()]


def kept_apart(path: Path) -> list[list[Row]]:
    """What a search judged on each layer of the models kept apart, in the order in which it was tried."""
    found: dict[str, list[Row]] = defaultdict(list)
    for line in msgspec.json.Decoder(Line).decode_lines(lzma.decompress(path.read_bytes())):
        mnk = line.problem.split("_tn")[0]
        found[mnk].append(Row(parse(mnk), Setting(line.family, line.knobs), DEVICE, math.log(line.speedup)))
    return list(found.values())


def row(mnk: str, setting: str, speed: float) -> Row:
    return Row(parse(mnk), msgspec.json.decode(setting, type=Setting), DEVICE, speed)


def guesses(seen: Sequence[Row], pools: Sequence[list[Row]]) -> dict[str, list[np.ndarray]]:
    """What each model, having learnt from the rows seen, likes of others."""
    facts, sizes, liked = fitted.facts, fitted.SIZES, dict[str, list[np.ndarray]]()
    for name, used, known in (("model", facts, ()), ("rows", facts_of_rows, ("side",))):
        fitted.facts, fitted.SIZES = used, (*sizes, *known)
        model = fitted.fit(seen, UNITS)
        liked[name] = [model.speeds(pool) for pool in pools]
    fitted.facts, fitted.SIZES = facts, sizes
    return liked


def pickers(near: np.ndarray, liked: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {"look-up": near}
    for name, some in liked.items():
        found[name] = some
        found[f"{name}, listed"] = np.where(near > UNKNOWN, some, UNKNOWN)
        found[f"{name}, blended"] = np.where(near > UNKNOWN, some + 0.01 * near, UNKNOWN)
    return found | {"random": np.zeros(len(near))}


def ranked(pool: Sequence[Row], order: Sequence[str]) -> np.ndarray:
    places = {setting: -float(place) for place, setting in enumerate(order)}
    return np.array([places.get(to_json(one.setting), UNKNOWN) for one in pool])


def show(title: str, pools: Sequence[list[Row]], likes: Sequence[dict[str, np.ndarray]]) -> None:
    rng = np.random.default_rng(0)
    told = list(zip(pools, likes))
    lost = {name: np.array([regret(pool, some[name], rng, PICKS) for pool, some in told]) for name in likes[0]}
    weights = np.array([pool[0].problem.n * 10**6 + pool[0].problem.k for pool in pools])
    held = np.mean([(len(pool), (some["look-up"] > UNKNOWN).sum()) for pool, some in told], axis=0)
    print(f"\n{title}: {len(pools)} shapes of {len(set(weights))} weights")
    print("{:.1f} settings each, of which the look-up lists {:.1f}".format(*held))
    print(f"{'':26s}" + "".join(f"{f'{count} picks':24s}" for count in PICKS))
    for name, values in lost.items():
        print(f"{name:26s}" + "".join(interval(column, weights) for column in values.T))
    for name in list(lost)[1:-1]:
        less = lost[name] - lost["look-up"]
        print(f"{f'{name} - look-up':26s}" + "".join(interval(column, weights, float) for column in less.T))
    for name in ("look-up", "model", "rows, blended", "random"):
        near = (lost[name] > math.log(0.98)).mean(axis=0)
        print(f"{f'{name}, within 2%':26s}" + "".join(f"{share:<24.2f}" for share in near))
    for name in ("look-up", "rows, blended"):
        places = np.argsort(lost[name][:, 0])[:4]
        cases = (f"{pools[place][0].problem.mnk} {math.exp(lost[name][place, 0]):.2f}" for place in places)
        print(f"first picks of {name} that lose most: " + ", ".join(cases))


def main(folder: Path) -> None:
    timed, slow = measured(folder)
    shapes = {one.problem for one in timed}
    others = [one for one in recorded.read() if one.problem not in shapes]
    print(f"{len(timed)} timed and {len(slow)} slow pairs of setting and shape; {len(others)} pairs of other shapes")
    gathered: dict[Problem, list[Row]] = defaultdict(list)
    for one in (*timed, *slow):
        gathered[one.problem].append(one)
    weights = sorted({(one.n, one.k) for one in gathered})
    random.Random(0).shuffle(weights)
    pools, likes = list[list[Row]](), list[dict[str, np.ndarray]]()
    for fold in range(FOLDS):
        apart = set(weights[fold::FOLDS])
        seen = [one for one in (*timed, *others) if (one.problem.n, one.problem.k) not in apart]
        tested = [pool for problem, pool in gathered.items() if (problem.n, problem.k) in apart]
        liked = guesses(seen, tested)
        for place, pool in enumerate(tested):
            near = ranked(pool, looked_up(pool[0].problem, apart))
            likes.append(pickers(near, {name: some[place] for name, some in liked.items()}))
        pools += tested
    judged = kept_apart(Path(__file__).with_name("apart.jsonl.xz"))
    liked, tried = guesses([*timed, *others], judged), list[dict[str, np.ndarray]]()
    for place, pool in enumerate(judged):
        listed = looked_up(pool[0].problem)
        near = np.array([-float(at) if to_json(one.setting) in listed else UNKNOWN for at, one in enumerate(pool)])
        tried.append(pickers(near, {name: some[place] for name, some in liked.items()}))
    for kind, some, told in (("", pools, likes), ("kept apart, judged by a search, ", judged, tried)):
        for least, most in ROWS:
            here = [place for place, pool in enumerate(some) if least <= pool[0].problem.m <= most]
            show(f"{kind}{least} to {most} rows", [some[place] for place in here], [told[place] for place in here])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
