"""Whether a search should learn from its own verdicts on a shape what the cost model has wrong there.

    python experiments/h200/known_settings/adaptive.py experiments/h200/layers    # prints adaptive.txt

The shapes, settings and two GPUs of room.py; the model never saw these shapes. Picked are settings in the order of the
model, those that differ in their tile first, as a search does; or one after the other by what the model says, a
Gaussian process of what it had wrong in the picks so far, and so many (KAPPAS) standard deviations of that (GP-UCB, N.
Srinivas et al., arXiv:0912.3995). Settings are the nearer to each other the more knobs they share. The first GPU times
what is picked, the second the fastest of it; logarithms less the fastest of all, with 95% intervals over weights.
"""

import math
import sys
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from cudal2 import corpus, cost_model
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.proposer import Setting
from cudal2.search.settings import first_of_each, shape_of
from cudal2.split import kept_apart
from cudal2.target import find

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from picks import interval
from room import Speeds, alike, read, timed

PICKS = (1, 2, 4, 8, 16)
LENGTHS, SPREADS, KAPPAS = (0.5, 2.0), (0.04, 0.08), (0.0, 1.0)
"""Of the process: the distance over which errors are alike, how large they are (logarithms), and how much is dared."""
SHARED, NOISE = 0.1, 0.015
"""What the model has wrong of a whole shape, and what one look is off."""
OTHER_FAMILY, OTHER_KNOB, NO_KNOB = 1.5, 0.35, 0.15
TILES = ("tile_m", "tile_n", "bm", "bn")


def distance(one: Setting, other: Setting) -> float:
    found = 0.0 if one.family == other.family else OTHER_FAMILY
    for knob in {*one.knobs, *other.knobs}:
        here, there = one.knobs.get(knob), other.knobs.get(knob)
        if here is None or there is None:
            found += NO_KNOB
        elif knob in TILES:
            found += min(1.0, abs(math.log2(here / there)))
        elif here != there:
            found += OTHER_KNOB
    return found


def in_order(settings: list[Setting], guessed: np.ndarray) -> list[int]:
    fastest = [settings[place] for place in np.argsort(-guessed, kind="stable")]
    place = {to_json(one): number for number, one in enumerate(settings)}
    return [place[to_json(one)] for one in first_of_each(fastest, shape_of)]


def learning(apart: np.ndarray, guessed: np.ndarray, seen: np.ndarray, length: float, spread: float, kappa: float):
    """The places of the settings `apart` from each other, each chosen by what the ones before it measured."""
    alike, wrong = SHARED**2 + spread**2 * np.exp(-apart / length), seen - guessed
    picked = [int(np.argmax(guessed))]
    while len(picked) < min(PICKS[-1], len(guessed)):
        known = alike[np.ix_(picked, picked)] + NOISE**2 * np.eye(len(picked))
        weights = np.linalg.solve(known, alike[picked]).T
        mean = weights @ (wrong - wrong[picked[0]])[picked]
        sure = np.diag(alike) - np.einsum("ij,ij->i", weights, alike[:, picked])
        score = guessed + mean + kappa * np.sqrt(np.maximum(sure, 0))
        score[picked] = -np.inf
        picked.append(int(np.argmax(score)))
    return picked


def of_shape(problem: Problem, chooser: Speeds, judge: Speeds) -> dict[str, list[float]]:
    model, families = cost_model.shipped("sm_90a"), {family.name for family in corpus.families(find("sm_90a"))}
    every = [msgspec.json.decode(key, type=Setting) for key in chooser[problem]]
    settings = [one for one in every if one.family in families and model.knows(one.family)]
    keys = [to_json(one) for one in settings]
    guessed = model.speeds(problem, [(one.family, one.knobs) for one in settings])
    seen = np.log([chooser[problem][key] for key in keys])
    apart = np.array([[distance(one, other) for other in settings] for one in settings])
    ways = {"the model's order, varied": in_order(settings, guessed)}
    for length, spread, kappa in product(LENGTHS, SPREADS, KAPPAS):
        ways[f"length {length} spread {spread} dares {kappa}"] = learning(apart, guessed, seen, length, spread, kappa)
    best = timed(problem, keys, chooser, judge)
    return {
        way: [timed(problem, [keys[place] for place in places[:count]], chooser, judge) - best for count in PICKS]
        for way, places in ways.items()
    }


def main(folder: Path) -> None:
    chooser, judge = alike(*(read(folder / f"room{number}.jsonl.xz") for number in (0, 1)))
    shapes = [one for one in chooser if kept_apart(one)]
    owner = np.array([one.n * 10**6 + one.k for one in shapes])
    found = [of_shape(one, chooser, judge) for one in shapes]
    print(f"{len(shapes)} shapes{'':23}" + "".join(f"{f'best of {count}':>26}" for count in PICKS))
    for way in found[0]:
        columns = np.array([one[way] for one in found]).T
        print(f"{way:32}" + "".join(f"{interval(column, owner, float):>26}" for column in columns))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
