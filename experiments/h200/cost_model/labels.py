"""What to write for thousands of drawn problems, by the labeller: a file of settings that `cudal2 sft` learns from.

    python experiments/h200/cost_model/labels.py experiments/h200/layers experiments/h200/cost_model/labels.jsonl.xz

COUNT problems that training may see (`split.draw`): open models' layers, some with the K of another, and other sizes; 1
to 8,192 rows, of which a third are powers of two and a third multiples of 8 or 64; both types, all epilogues, and both
layouts, though only `tn` was explored and the model takes `nn` for as fast. Of the settings that were fast somewhere
with about as many rows one is learnt, out of MENU settings that lose hardly anything: where many are as fast, it would
else be another on each shape, and nobody could learn which. It is drawn: what the model says is HEAT slower has 1/e of
the chance. Who always learnt the first choice wrote one kernel a shape and nothing else, and had no second try. What of
them was measured fastest on each explored shape is added in every type and epilogue.

With more than FEW rows the tile may be another than the menu's: that of all which the family has there that the model
likes most, if it is FITS faster. Tiles that fit are worth much there, and hold for no other shape, so a policy has to
work them out. The menu is chosen by CHOOSING of the problems. All takes 25 minutes of one core.
"""

import lzma
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from explored import BY_NAME
from labeller import BEHIND, Measured, Model, measured, on_the_grid, shown

from cudal2 import corpus, llm
from cudal2.corpus.family import form
from cudal2.cost_model.facts import Columns
from cudal2.cost_model.model import FEW
from cudal2.problem import Layout, Problem
from cudal2.records import to_json
from cudal2.search.known import Known, shipped_settings
from cudal2.search.liked import with_tiles
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.split import draw, open_families, unseen

COUNT, CHOOSING, FLOP, TOP, PART = 60000, 12000, 1e13, 10, 8
"""How many problems, those of them that the menu is chosen by, and the largest; fast is what is among the TOP of a
shape, and in the fastest PART-th of it."""
LAYOUTS, TYPES, EPILOGUES = ("tn", "tn", "nn"), ("fp16", "bf16"), ("none", "bias", "bias_gelu")
MENU, ENOUGH, HEAT = 288, 0.3, 0.01
"""So many settings are learnt; where none of them suits a problem, ENOUGH is as bad as worse."""
LIKED, TILED, FITS = 8, 3, 0.003
"""So many settings of a problem may be drawn; of so many all tiles are tried, and one is taken that is so much faster
(in logarithms)."""


Pools = dict[tuple[int, Layout], list[str]]
Choices = dict[str, float]
"""Settings, as JSON, and how far behind the fastest they are."""


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


def pools(every: Measured) -> Pools:
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


def guessed(model: Model, problems: Sequence[Problem], by_class: Pools, settings: Sequence[str]) -> np.ndarray:
    """How far behind the fastest each of the settings is on each problem, as far as it is in the pool of its class."""
    place = {one: number for number, one in enumerate(settings)}
    found = np.full((len(problems), len(settings)), -BEHIND, np.float32)
    numbers_of: dict[tuple[int, Layout], list[int]] = {}
    for number, problem in enumerate(problems):
        numbers_of.setdefault((rows_of(problem.m), problem.layout), []).append(number)
    for kind_of, numbers in sorted(numbers_of.items()):
        pool = [one for one in by_class[kind_of] if one in place]
        places, columns = [place[one] for one in pool], model.pool(pool)
        liked = model.speeds([(problems[number], columns) for number in numbers])
        for number, line in zip(numbers, liked):
            line = np.where(able(problems[number], pool), line, -np.inf)
            found[number, places] = np.maximum(line - line.max(), -BEHIND)
    return found


def able(problem: Problem, settings: Iterable[str]) -> list[bool]:
    applies, kind = {name: corpus.applies(family, problem) for name, family in BY_NAME.items()}, form(problem)
    return [applies[family_of(one)] and fits(kind, one) for one in settings]


# Rules take long to ask, and say the same for all problems of a form.


@cache
def family_of(setting: str) -> str:
    return msgspec.json.decode(setting, type=Setting).family


@cache
def fits(kind: Problem, setting: str) -> bool:
    made = msgspec.json.decode(setting, type=Setting)
    return allowed(kind, BY_NAME[made.family], made.knobs)


@cache
def tiled(kind: Problem, setting: str) -> list[str]:
    """The setting with every tile that its family has there; first as it is."""
    made = msgspec.json.decode(setting, type=Setting)
    return list(dict.fromkeys([setting, *map(to_json, with_tiles(kind, BY_NAME[made.family], made))]))


def menu(behind: np.ndarray) -> list[int]:
    """MENU settings of which the fastest is hardly behind the fastest of all, in the mean: greedily, one by one."""
    chosen, best = list[int](), np.full(len(behind), -ENOUGH, np.float32)
    for _ in range(MENU):
        chosen.append(int(np.maximum(behind, best[:, None]).mean(0).argmax()))
        best = np.maximum(best, behind[:, chosen[-1]])
    print(f"{MENU} settings lose {-best.mean():.4f} in the mean, {np.mean(best < -0.02):.1%} of the problems 2%")
    return chosen


def fitted(model: Model, problems: Sequence[Problem], settings: Sequence[str], behind: np.ndarray) -> list[Choices]:
    """For each problem the settings that the model likes most of these, the first TILED with the tile that fits best,
    and how far behind each is."""
    columns: dict[tuple[Problem, str], Columns] = {}
    choices, asked, whose = list[Choices](), list[tuple[Problem, Columns]](), list[tuple[int, str]]()
    for number, (problem, line) in enumerate(zip(problems, behind)):
        kind, best = form(problem), np.argsort(-line, kind="stable")[:LIKED]
        choices.append({settings[one]: float(line[one]) for one in best})
        for one in [one for one, value in choices[-1].items() if value > -BEHIND][: TILED if problem.m > FEW else 0]:
            if (kind, one) not in columns:
                columns[kind, one] = model.pool(tiled(kind, one))
            asked.append((problem, columns[kind, one]))
            whose.append((number, one))
    for (number, one), liked in zip(whose, model.speeds(asked)):
        place = int(liked.argmax())
        if (faster := float(liked[place] - liked[0])) > FITS:
            other = tiled(form(problems[number]), one)[place]
            choices[number][other] = choices[number].pop(one) + faster
    return choices


def lines(every: Measured) -> Iterator[Known]:
    model, by_class = Model(shown(on_the_grid()) | every), pools(every)
    problems = drawn()
    settings = sorted({one for pool in by_class.values() for one in pool})
    some = random.Random("menu").sample(problems, CHOOSING)
    listed = [settings[one] for one in menu(guessed(model, some, by_class, settings))]
    rng, tiles = random.Random("heat"), 0
    for problem, choices in zip(problems, fitted(model, problems, listed, guessed(model, problems, by_class, listed))):
        values = np.array(list(choices.values()))
        (one,) = rng.choices(list(choices), np.exp((values - values.max()) / HEAT))
        tiles += one not in listed
        yield known(problem, one)
    print(f"{tiles / len(problems):.1%} have a tile that the menu does not hold")
    for problem, speeds in sorted(every.items()):
        if fast := max((one for one in speeds if one in listed), key=speeds.__getitem__, default=""):
            for dtype, epilogue in product(TYPES, EPILOGUES):
                asked = msgspec.structs.replace(problem, dtype=dtype, epilogue=epilogue)
                if fits(form(asked), fast):
                    yield known(asked, fast)


def known(problem: Problem, setting: str) -> Known:
    made = msgspec.json.decode(setting, type=Setting)
    return Known(problem.mnk, problem.layout, made.family, made.knobs, problem.dtype, problem.epilogue)


def main(folder: Path, out: Path) -> None:
    found = list(lines(shown(measured(folder))))
    random.Random("order").shuffle(found)
    out.write_bytes(lzma.compress(b"".join(msgspec.json.encode(one) + b"\n" for one in found), preset=9))
    distinct = {to_json(Setting(one.family, one.knobs)) for one in found}
    print(f"{len(found)} lines, {len({one.problem for one in found})} shapes, {len(distinct)} settings")
    print(Counter(one.family for one in found).most_common(), out.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
