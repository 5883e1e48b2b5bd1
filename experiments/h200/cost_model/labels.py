"""What to write for thousands of drawn problems, by the labeller: a file of settings that `cudal2 sft` learns from.

    python experiments/h200/cost_model/labels.py experiments/h200/layers experiments/h200/cost_model/labels.jsonl.xz

COUNT problems that training may see (`split.draw`): open models' layers, some with the K of another, and other sizes; 1
to 8,192 rows, of which a third are powers of two and a third multiples of 8 or 64; both types, all epilogues. Settings
that were fast somewhere with about as many rows are ordered by the model. The first is learnt, and where the second or
third is predicted to be nearly as fast, sometimes it too. What was measured fastest on the explored shapes is added,
MEASURED of each, in every type and epilogue.
"""

import lzma
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from labeller import Measured, Model, Pool, measured
from measure import FAMILIES

from cudal2 import corpus, llm
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search import prior
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.split import draw, open_families, unseen

COUNT, FLOP, TOP, MEASURED = 42000, 1e12, 10, 2
TYPES, EPILOGUES = ("fp16", "bf16"), ("none", "bias", "bias_gelu")
FURTHER, NEARLY = 2, 0.01
"""So many settings beside the first may be learnt; of those this much slower 1 in e is, once or twice halved."""
BY_NAME = {family.name: family for family in FAMILIES}


def rounded(problem: Problem, rng: random.Random) -> Problem:
    """A third as it is, a third with a power of two as M, and the others with a multiple of 8 or 64 if M is large."""
    unit = rng.choice((1, 2 ** round(math.log2(problem.m)), 64 if problem.m >= 256 else 8))
    return msgspec.structs.replace(problem, m=max(problem.m // unit, 1) * unit if problem.m >= unit else problem.m)


def drawn() -> list[Problem]:
    rng, found = random.Random("labels"), dict[Problem, None]()
    layers = [llm.find(name)[1] for name in llm.names(open_families())]
    weights = {(layer.n, layer.k) for layer in layers}
    for problem in draw(COUNT, 2026, FLOP, 1, ("tn",), TYPES, EPILOGUES):
        if (problem.n, problem.k) in weights and rng.random() < 0.5:
            problem = msgspec.structs.replace(problem, k=rng.choice(layers).k)
        one = rounded(problem, rng)
        if not unseen(one) and one.flop <= FLOP:
            found[one] = None
    return list(found)


def rows_of(m: int) -> int:
    """The class of so many rows: heights of tiles for few, octaves for many."""
    return next((number for number, most in enumerate((1, 8, 16, 32, 64)) if m <= most), math.ceil(math.log2(m)))


def pools(every: Measured, model: Model) -> dict[int, Pool]:
    """For each class of rows the settings that were fast there; above 64 rows also with half or twice as many, and for
    one row with eight."""
    fast: dict[int, set[str]] = {}
    for problem, some in every.items():
        best = sorted(some, key=some.__getitem__, reverse=True)[:TOP]
        fast.setdefault(rows_of(problem.m), set()).update(best)
    for problem, settings in prior._shipped("sm_90a").items():
        if (problem.layout, problem.dtype, problem.epilogue) == ("tn", "fp16", "none"):
            fast.setdefault(rows_of(problem.m), set()).update(map(to_json, settings))
    found = dict[int, Pool]()
    for one in range(15):
        near = [other for other in fast if (other <= 4) == (one <= 4) and abs(other - one) <= (one > 4 or one == 0)]
        found[one] = Pool(sorted(set().union(*(fast[other] for other in near))), model.codes)
    return found


def lines(every: Measured) -> Iterator[prior.Known]:
    model, rng = Model(every), random.Random("further")
    by_rows, decoded = pools(every, model), dict[str, Setting]()
    print({one: len(pool.settings) for one, pool in by_rows.items()}, flush=True)
    by_class: dict[int, list[Problem]] = {}
    for problem in drawn():
        by_class.setdefault(rows_of(problem.m), []).append(problem)
    for rows, problems in sorted(by_class.items()):
        pool = by_rows[rows]
        made = [decoded.setdefault(one, msgspec.json.decode(one, type=Setting)) for one in pool.settings]
        speeds = model.speeds([(problem, pool) for problem in problems])
        fits: dict[tuple[object, ...], np.ndarray] = {}
        for problem, liked in zip(problems, speeds):
            kind = corpus.family.form(problem), *(corpus.applies(family, problem) for family in FAMILIES)
            if kind not in fits:
                able = [allowed(problem, BY_NAME[one.family], one.knobs) for one in made]
                serves = [corpus.applies(BY_NAME[one.family], problem) for one in made]
                fits[kind] = np.where(np.array(able) & np.array(serves), 0.0, -np.inf)
            liked = liked + fits[kind]
            order = np.argsort(-liked)[: FURTHER + 1]
            for place, which in enumerate(order):
                behind = liked[order[0]] - liked[which]
                if rng.random() < math.exp(-behind / NEARLY) / 2**place:
                    yield known(problem, made[which])
    for problem, some in sorted(every.items()):
        for one in sorted(some, key=some.__getitem__, reverse=True)[:MEASURED]:
            setting = msgspec.json.decode(one, type=Setting)
            for dtype in TYPES:
                for epilogue in EPILOGUES:
                    asked = msgspec.structs.replace(problem, dtype=dtype, epilogue=epilogue)
                    if not unseen(problem) and allowed(asked, BY_NAME[setting.family], setting.knobs):
                        yield known(asked, setting)


def known(problem: Problem, setting: Setting) -> prior.Known:
    return prior.Known(problem.mnk, problem.layout, setting.family, setting.knobs, problem.dtype, problem.epilogue)


def main(folder: Path, out: Path) -> None:
    found = list(lines(measured(folder)))
    random.Random("order").shuffle(found)
    out.write_bytes(lzma.compress(b"".join(msgspec.json.encode(one) + b"\n" for one in found), preset=9))
    distinct = {to_json(Setting(one.family, one.knobs)) for one in found}
    print(f"{len(found)} lines, {len({one.problem for one in found})} shapes, {len(distinct)} settings")
    print(Counter(one.family for one in found).most_common(), out.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
