"""What to write for thousands of drawn problems, by the labeller: a file of settings that `cudal2 sft` learns from.

    python experiments/h200/cost_model/labels.py experiments/h200/layers experiments/h200/cost_model/labels.jsonl.xz

COUNT problems that training may see (`split.draw`): open models' layers, some with the K of another, and other sizes; 1
to 8,192 rows, of which a third are powers of two and a third multiples of 8 or 64; both types, all epilogues, and both
layouts, though only `tn` was explored and the model takes `nn` for as fast. Of the settings that were fast somewhere
with about as many rows one is learnt, out of MENU settings that lose hardly anything: where many are as fast, it would
else be another on each shape, and nobody could learn which. It is drawn: what the model says is HEAT slower has 1/e of
the chance. Who always learnt the first choice wrote one kernel a shape and nothing else, and had no second try. What of
them was measured fastest on each explored shape is added in every type and epilogue. It takes half an hour.
"""

import lzma
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from explored import BY_NAME, FAMILIES
from labeller import BEHIND, Measured, Model, measured, on_the_grid, shown

from cudal2 import corpus, llm
from cudal2.problem import Layout, Problem
from cudal2.records import to_json
from cudal2.search.known import Known, shipped_settings
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.split import draw, open_families, unseen

COUNT, FLOP, TOP, PART = 60000, 1e13, 10, 8
"""How many problems, and the largest; fast is what is among the TOP of a shape, and in the fastest PART-th of it."""
LAYOUTS, TYPES, EPILOGUES = ("tn", "tn", "nn"), ("fp16", "bf16"), ("none", "bias", "bias_gelu")
MENU, ENOUGH, HEAT = 144, 0.3, 0.01
"""So many settings are learnt; where none of them suits a problem, ENOUGH is as bad as worse."""


def rounded(problem: Problem, rng: random.Random) -> Problem:
    """A third as it is, a third with a power of two as M, and the others with a multiple of 8 or 64 if M is large."""
    unit = rng.choice((1, 2 ** round(math.log2(problem.m)), 64 if problem.m >= 256 else 8))
    return msgspec.structs.replace(problem, m=max(problem.m // unit, 1) * unit if problem.m >= unit else problem.m)


def drawn() -> list[Problem]:
    rng, found = random.Random("labels"), dict[Problem, None]()
    layers = [llm.find(name)[1] for name in llm.names(open_families())]
    weights = {(layer.n, layer.k) for layer in layers}
    for problem in draw(COUNT, 2026, FLOP, 1, LAYOUTS, TYPES, EPILOGUES):
        if (problem.n, problem.k) in weights and rng.random() < 0.5:
            problem = msgspec.structs.replace(problem, k=rng.choice(layers).k)
        one = rounded(problem, rng)
        if not unseen(one) and one.flop <= FLOP:
            found[one] = None
    return list(found)


def rows_of(m: int) -> int:
    """The class of so many rows: heights of tiles for few, octaves for many."""
    return next((number for number, most in enumerate((1, 8, 16, 32, 64)) if m <= most), math.ceil(math.log2(m)))


def pools(every: Measured) -> dict[tuple[int, Layout], list[str]]:
    """For each class of rows and each layout the settings that were fast there; above 64 rows also with half or twice
    as many, and for one row with eight. The families for few rows have no `nn` kernels: it takes all up to 128 rows."""
    fast: dict[int, set[str]] = {}
    for problem, some in every.items():
        best = sorted(some, key=some.__getitem__, reverse=True)[: min(TOP, 1 + len(some) // PART)]
        fast.setdefault(rows_of(problem.m), set()).update(best)
    for problem, settings in shipped_settings("sm_90a").items():
        if (problem.layout, problem.dtype, problem.epilogue) == ("tn", "fp16", "none"):
            fast.setdefault(rows_of(problem.m), set()).update(map(to_json, settings))
    found = dict[tuple[int, Layout], list[str]]()
    for one, layout in product(range(15), get_args(Layout)):
        near = [other for other in fast if (other <= 4) == (one <= 4) and abs(other - one) <= (one > 4 or one == 0)]
        near = [other for other in fast if other <= 7] if layout == "nn" and one <= 4 else near
        found[one, layout] = sorted(set().union(*(fast[other] for other in near)))
    return found


def guessed(every: Measured, model: Model) -> tuple[list[Problem], list[str], np.ndarray]:
    """The drawn problems, the settings that one of them may have, and how far behind the fastest each is there."""
    by_class, problems_of = pools(every), dict[tuple[int, Layout], list[Problem]]()
    for problem in drawn():
        problems_of.setdefault((rows_of(problem.m), problem.layout), []).append(problem)
    settings = sorted({one for pool in by_class.values() for one in pool})
    place = {one: number for number, one in enumerate(settings)}
    asked, found = list[Problem](), list[np.ndarray]()
    for kind_of, problems in sorted(problems_of.items()):
        pool, fits = by_class[kind_of], dict[tuple[object, ...], np.ndarray]()
        made = [msgspec.json.decode(one, type=Setting) for one in pool]
        columns = model.pool(pool)
        for problem, liked in zip(problems, model.speeds([(problem, columns) for problem in problems])):
            serves = {family.name: corpus.applies(family, problem) for family in FAMILIES}
            kind = corpus.family.form(problem), *serves.values()
            if kind not in fits:
                able = [serves[one.family] and allowed(problem, BY_NAME[one.family], one.knobs) for one in made]
                fits[kind] = np.array(able)
            line = np.full(len(settings), -np.inf, np.float32)
            line[[place[one] for one in pool]] = np.where(fits[kind], liked, -np.inf)
            asked.append(problem)
            found.append(np.maximum(line - line.max(), -BEHIND))
    return asked, settings, np.array(found)


def menu(behind: np.ndarray) -> list[int]:
    """MENU settings of which the fastest is hardly behind the fastest of all, in the mean: greedily, one by one."""
    chosen, best = list[int](), np.full(len(behind), -ENOUGH, np.float32)
    for _ in range(MENU):
        chosen.append(int(np.maximum(behind, best[:, None]).mean(0).argmax()))
        best = np.maximum(best, behind[:, chosen[-1]])
    print(f"{MENU} settings lose {-best.mean():.4f} in the mean, {np.mean(best < -0.02):.1%} of the problems 2%")
    return chosen


def lines(every: Measured) -> Iterator[Known]:
    problems, settings, behind = guessed(every, Model(shown(on_the_grid()) | every))
    chosen = menu(behind)
    listed = {settings[one] for one in chosen}
    made = [msgspec.json.decode(settings[one], type=Setting) for one in chosen]
    rng = random.Random("heat")
    for problem, line in zip(problems, behind[:, chosen]):
        yield known(problem, rng.choices(made, np.exp((line - line.max()) / HEAT))[0])
    for problem, some in sorted(every.items()):
        if fast := max((one for one in some if one in listed), key=some.__getitem__, default=""):
            setting = msgspec.json.decode(fast, type=Setting)
            for dtype, epilogue in product(TYPES, EPILOGUES):
                asked = msgspec.structs.replace(problem, dtype=dtype, epilogue=epilogue)
                if allowed(asked, BY_NAME[setting.family], setting.knobs):
                    yield known(asked, setting)


def known(problem: Problem, setting: Setting) -> Known:
    return Known(problem.mnk, problem.layout, setting.family, setting.knobs, problem.dtype, problem.epilogue)


def main(folder: Path, out: Path) -> None:
    found = list(lines(shown(measured(folder))))
    random.Random("order").shuffle(found)
    out.write_bytes(lzma.compress(b"".join(msgspec.json.encode(one) + b"\n" for one in found), preset=9))
    distinct = {to_json(Setting(one.family, one.knobs)) for one in found}
    print(f"{len(found)} lines, {len({one.problem for one in found})} shapes, {len(distinct)} settings")
    print(Counter(one.family for one in found).most_common(), out.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
