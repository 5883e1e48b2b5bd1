"""What to explore so that the labeller knows many shapes: hundreds of drawn ones, a few settings for each.

    python experiments/h200/cost_model/cover.py known experiments/h200/layers cover    # or another word; no GPU
    python experiments/h200/explore.py cover/settings.jsonl $(cat cover/shapes.txt) cover/out.jsonl 480
    python experiments/h200/refit.py adopt cover/out.jsonl 2         # the two fastest of each into data/settings

The rounds of ../layers.py measured a hundred settings on each of 208 shapes. What a model gets wrong on others is which
of the settings it likes is fastest there, so each shape is given the LIKED of its rows that the model likes most, and
DRAWN others by chance. Problems are those that labels.py draws, so none that is kept apart.

`fresh` asks for settings that nobody measured, on small sizes of any multiple of eight with more than 64 rows, where
the best known ones lose most. `doubted` asks again for what the model, fitted to other weights, likes most on a shape,
but one cold run was slow. `grid` covers the shapes of the grid that training may see: for each the known settings that
the model likes most, over all and of each family, those of the nearest shapes, and fresh ones. `room` asks so for many
more on shapes M_N_K,M_N_K,…: to see what is missed there. What is fastest on shapes kept apart is never adopted.
`wide` asks for some twenty on each of 800 open sizes off the lattice and 400 drawn ones that nobody explored. `lines`
asks again, on shapes with more than 64 rows that begin within 64 bytes, for what was fast there and some that was not:
what the copy engine brings into the L2 of such a row has changed. `emptied` does so for up to 64 rows: explore.py
empties the L2 before a kernel's turn since, and weights that are read once leave it first. `middle` goes on with what
`emptied` had no time for and with up to 1,024 rows, among them open models' large weights with whole tiles of rows. It
asks for some settings by chance, too: of a round that has only fast ones no model learns which are slow.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from explored import BY_NAME, FAMILIES, TARGET
from labeller import EMPTIED, SEGMENT, SLOW, Measured, Model, explored, measured, on_the_grid, shown
from labels import drawn, pools, rows_of

from cudal2 import corpus, llm
from cudal2.cost_model.model import FEW
from cudal2.problem import Problem, off_lattice, parse
from cudal2.records import to_json
from cudal2.search import prior
from cudal2.search.known import shipped_settings
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed, draw
from cudal2.split import open_families, training, unseen

SHAPES, LARGEST, FLOP = 900, 1 << 28, 4e11
"""How many, and the largest weight (elements) and product."""
LIKED, DRAWN = 14, 6
"""Settings of a shape that the model likes, and others."""
AFRESH, SMALL, POOL, TRIED, BUILT = 64, 5e10, 6000, 100, 420
"""How many sizes get fresh settings, the largest (FLOP), how many settings are drawn, liked for a size, and built."""
THIRDS, DOUBTED = 3, 4
"""In how many parts the weights are doubted, and how many liked settings of a shape."""
FRESH = ("warp_specialised", "split_k", "split_k", "stream_k", "small_cluster", "by_parity")
"""The families of fresh settings, as often as they are drawn."""
SIZES, DRAWN_ONES, AFRESH_FROM = 800, 400, 4001
"""How many sizes off the lattice and drawn ones are covered widely, and the seed of the former."""

FASTEST, OTHERS, BUILDABLE = 10, 3, 700
"""Of the settings that were measured on a shape so many are asked again, the fastest and others; and built in all."""
MIDDLE, WHOLE, LARGE = 1024, (128, 256, 512), 1 << 24
"""The most rows of the round so called; the rows of a large weight there, and the elements that it has at least."""


def fitting(some: Iterable[Problem]) -> list[Problem]:
    """Those that training may see and that are not too large to explore."""
    return [one for one in some if one.n * one.k <= LARGEST and one.flop <= FLOP and not unseen(one)]


def shapes(count: int = SHAPES, seed: str = "cover") -> list[Problem]:
    """So many drawn sizes, of fp16 without an epilogue."""
    plain = dict.fromkeys(Problem(one.m, one.n, one.k) for one in drawn())
    return random.Random(seed).sample(fitting(plain), count)


def new(every: Measured) -> list[Problem]:
    """SIZES off the lattice and DRAWN_ONES that nobody explored."""
    sizes = fitting(off_lattice(2 * SIZES, AFRESH_FROM))[:SIZES]
    others = [one for one in shapes(2 * DRAWN_ONES, "new") if one not in every][:DRAWN_ONES]
    return list(dict.fromkeys([*sizes, *others]))


def large() -> list[Problem]:
    """Open models' LARGE weights, with WHOLE tiles of rows."""
    layers = [llm.find(name)[1] for name in llm.names(open_families())]
    weights = dict.fromkeys((one.n, one.k) for one in layers if one.n * one.k >= LARGE)
    return fitting(Problem(m, n, k) for n, k in weights for m in WHOLE)


def again(every: Measured, how: str, since: Container[str] = ()) -> tuple[list[Problem], list[str]]:
    """The shapes whose measurements are out of date, and for each what was fastest, what the model likes, others.

    `since` names those that were asked since the L2 is emptied."""
    old = {
        "lines": lambda one: one.m > FEW and one.k % SEGMENT,
        "emptied": lambda one: one.m <= FEW,
        "middle": lambda one: one.m <= MIDDLE and one.mnk not in since,
    }[how]
    more = large() if how == "middle" else []
    chosen = list(filter(old, dict.fromkeys([*every, *new({}), *more])))
    model, rng, wanted = Model(shown(on_the_grid()) | every), random.Random(how), dict[str, list[str]]()
    pool = sorted({one for problem in chosen for one in every.get(problem, {})})
    columns = model.pool(pool)
    for problem in chosen:
        (liked,) = model.speeds([(problem, columns)])
        here = sorted(known := every.get(problem, {}), key=known.__getitem__, reverse=True)
        fast, others = here[:FASTEST], here[FASTEST:]
        likes = islice((one for one in able(pool, problem, liked) if one not in fast), LIKED - len(fast))
        asked = [*fast, *likes, *rng.sample(others, min(OTHERS, len(others)))]
        if how == "middle":
            asked += islice(able(pool, problem, np.array([rng.random() for _ in pool])), OTHERS)
        for one in dict.fromkeys(asked):
            wanted.setdefault(one, []).append(problem.mnk)
    return chosen, rows(oftenest(wanted)[:BUILDABLE], wanted)


def rows(settings: Sequence[str], where: Mapping[str, list[str]]) -> list[str]:
    return [json.dumps(json.loads(setting) | {"shapes": where[setting]}) for setting in settings]


def oftenest(wanted: Mapping[str, list[str]]) -> list[str]:
    """The settings that most shapes want first."""
    return sorted(wanted, key=lambda one: -len(wanted[one]))


def able(pool: Sequence[str], problem: Problem, liked: np.ndarray) -> Iterator[str]:
    """Of these settings those that the problem may have, the most liked first."""
    serves = {name: corpus.applies(family, problem) for name, family in BY_NAME.items()}
    for one in (pool[place] for place in np.argsort(-liked, kind="stable")):
        made = msgspec.json.decode(one, type=Setting)
        if serves[made.family] and allowed(problem, BY_NAME[made.family], made.knobs):
            yield one


def known(every: Measured, chosen: Sequence[Problem]) -> list[str]:
    """For each shape the LIKED settings that were fast for about as many rows, and DRAWN others."""
    model, rng = Model(every), random.Random("settings")
    by_rows, wanted = pools(every), dict[str, list[str]]()
    for problem in chosen:
        pool = by_rows[rows_of(problem.m), "tn"]
        (liked,) = model.speeds([(problem, model.pool(pool))])
        here = list(able(pool, problem, liked))
        others = here[LIKED:]
        for one in here[:LIKED] + rng.sample(sorted(others, key=pool.index), min(DRAWN, len(others))):
            wanted.setdefault(one, []).append(problem.mnk)
    return rows(list(wanted), wanted)


def fresh(every: Measured, chosen: Sequence[Problem]) -> list[str]:
    """Of settings drawn by chance that nobody measured those BUILT that most shapes have among the TRIED liked ones."""
    model, rng, pool = Model(shown(on_the_grid()) | every), random.Random("fresh"), set[str]()
    measured_ones = {one for some in every.values() for one in some}
    while len(pool) < POOL:
        family = BY_NAME[rng.choice(FRESH)]
        if one := draw(parse("1024_1024_1024"), family, rng):
            pool.add(to_json(one))
    settings = sorted(pool - measured_ones)
    columns, wanted = model.pool(settings), dict[str, list[str]]()
    for problem in chosen:
        (liked,) = model.speeds([(problem, columns)])
        for one in islice(able(settings, problem, liked), TRIED):
            wanted.setdefault(one, []).append(problem.mnk)
    return rows(oftenest(wanted)[:BUILT], wanted)


def doubted(every: Measured) -> tuple[list[Problem], list[str]]:
    """The shapes, and their DOUBTED most liked settings that were SLOW behind or more, by models of other weights."""
    weights = sorted({(one.n, one.k) for one in every})
    random.Random("doubted").shuffle(weights)
    wanted = dict[str, list[str]]()
    for third in range(THIRDS):
        apart = set(weights[third::THIRDS])
        here = {problem: some for problem, some in every.items() if (problem.n, problem.k) in apart}
        model = Model(shown(on_the_grid()) | {one: some for one, some in every.items() if one not in here})
        speeds = model.speeds([(problem, model.pool(some)) for problem, some in here.items()])
        for (problem, some), guessed in zip(here.items(), speeds):
            liked = dict(zip(some, guessed))
            for one in sorted(liked, key=liked.__getitem__, reverse=True)[:DOUBTED]:
                if some[one] <= -SLOW:
                    wanted.setdefault(one, []).append(problem.mnk)
    named = {name for names in wanted.values() for name in names}
    return [problem for problem in every if problem.mnk in named], rows(list(wanted), wanted)


class Wide(NamedTuple):
    """How much is tried of a shape beside what each family and the nearest shapes give."""

    pool: int
    """Fresh settings that are drawn."""
    liked: int
    """Known settings that the model likes most."""
    new: int
    """Fresh ones of these."""
    often: int
    """What fewer shapes like so much is not built."""
    of_each: int = 2
    """Known settings of each family that are liked."""
    nearest: int = 16
    """Settings of the nearest shapes."""


GRID, ROOM = Wide(pool=1200, liked=14, new=10, often=4), Wide(pool=1200, liked=60, new=24, often=2)
MANY = Wide(pool=1200, liked=12, new=4, often=8, of_each=0, nearest=4)


def widely(every: Measured, chosen: Sequence[Problem], how: Wide) -> list[str]:
    """Known settings and fresh ones, those for most of the shapes first."""
    model, rng = Model(shown(on_the_grid()) | every), random.Random("grid")
    known_ones = sorted({one for some in shipped_settings(TARGET).values() for one in map(to_json, some)})
    pool = {to_json(one) for _ in range(how.pool) if (one := draw(rng.choice(chosen), BY_NAME[rng.choice(FRESH)], rng))}
    fresh_ones = sorted(pool - set(known_ones))
    columns, fresh_columns = model.pool(known_ones), model.pool(fresh_ones)
    wanted = dict[str, list[str]]()
    for problem in chosen:
        liked, liked_fresh = model.speeds([(problem, columns), (problem, fresh_columns)])
        here, of_each = list(able(known_ones, problem, liked)), Counter[str]()
        some = here[: how.liked]
        for one in here:
            family = json.loads(one)["family"]
            of_each[family] += 1
            some += [one] * (of_each[family] <= how.of_each)
        near = map(to_json, prior.known_settings(TARGET, problem, FAMILIES)[: how.nearest])
        liked_ones = islice(able(fresh_ones, problem, liked_fresh), how.new)
        for one in dict.fromkeys([*some, *near, *liked_ones]):
            wanted.setdefault(one, []).append(problem.mnk)
    return rows([one for one in oftenest(wanted) if len(wanted[one]) >= how.often], wanted)


def main(how: str, folder: Path, out: Path, named: str = "") -> None:
    every = shown(measured(folder))
    if how == "fresh":
        sizes = fitting(off_lattice(2000, AFRESH))
        chosen = [one for one in sizes if one.m > 64 and one.flop <= SMALL][:AFRESH]
        lines = fresh(every, chosen)
    elif how == "doubted":
        chosen, lines = doubted(every)
    elif how == "grid":
        chosen = training()
        lines = widely(every, chosen, GRID)
    elif how == "wide":
        chosen = new(every)
        lines = widely(every, chosen, MANY)
    elif how in ("lines", "emptied", "middle"):
        chosen, lines = again(every, how, {line.problem for line in explored(folder, EMPTIED)})
    elif how == "room":
        chosen = [parse(name) for name in named.split(",")]
        lines = widely(every, chosen, ROOM)
    else:
        chosen = shapes()
        lines = known(every, chosen)
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.jsonl").write_text("\n".join(lines) + "\n")
    (out / "shapes.txt").write_text(",".join(problem.mnk for problem in chosen))
    print(f"{len(chosen)} shapes, {len(lines)} settings, {sum(len(json.loads(one)['shapes']) for one in lines)} pairs")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
