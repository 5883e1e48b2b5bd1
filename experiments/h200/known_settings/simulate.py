"""Evolution with a model in the judge's place: what the best of so many kernels is, as the model has it.

    python experiments/h200/known_settings/simulate.py experiments/h200/layers        # prints simulate.txt
    python experiments/h200/known_settings/simulate.py experiments/h200/layers 16     # at most: simulate-tiles.txt

For a search that is to be compared with itself after a change. Two models are fitted, each to every other weight's
shapes: one is the search's cost model, the other judges, then the other way round. They err, and not quite alike; what
a search finds on a GPU has to be measured there. Once evolution tries its children as they are born, once the one of
BROOD that its cost model likes most, and once with other tiles for what it likes of the known settings, too (FITTED of
them; simulate.txt is of before there was that). For 25 layers that are kept apart and 25 shapes off the lattice, all of
at least 64 rows. Geometric means of the fastest of the judge's shape, then differences of logarithms to the line
before, with 95% intervals over shapes. A quarter of an hour, or four minutes for 16.
"""

import random
import sys
from pathlib import Path

import numpy as np

from cudal2 import cost_model, llm
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.problem import Problem, off_lattice
from cudal2.records import Environment
from cudal2.search import liked
from cudal2.search.proposer import Task, Trial
from cudal2.search.proposers import evolution
from cudal2.search.settings import parsed
from cudal2.search.trials import History
from cudal2.split import KEPT_APART, REPORTED

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from explored import TARGET
from labeller import Model, measured, on_the_grid, shown

DEVICE, SHAPES, ROWS = "H200", 25, 64
GENERATION, KERNELS, COUNTS = 8, 64, (1, 2, 4, 8, 16, 32, 64)


def shapes() -> list[Problem]:
    layers = {Problem(rows, layer.n, layer.k) for rows, layer in map(llm.find, llm.names(KEPT_APART)) if rows >= ROWS}
    off = [problem for problem in off_lattice(*REPORTED) if problem.m >= ROWS]
    return random.Random(1).sample(sorted(layers), SHAPES) + off[:SHAPES]


def models(folder: Path) -> list[cost_model.Model]:
    """Two, each of every other weight."""
    every = shown(on_the_grid() | measured(folder))
    weights = sorted({(one.n, one.k) for one in every})
    random.Random("halves").shuffle(weights)
    halves = [set(weights[place::2]) for place in range(2)]
    return [Model({one: some for one, some in every.items() if (one.n, one.k) in half}).exported() for half in halves]


def search(judge: cost_model.Model, problem: Problem, kernels: int) -> list[float]:
    """The logarithms of the speeds of so many kernels, in order."""
    method = SearchMethodConfig(generation=GENERATION, neighbours=0)
    config = SearchConfig(run="unused", target=TARGET, shapes=ShapesConfig(names=(problem.mnk,)), search=method)
    proposer = evolution.Evolution(History(config, Environment(DEVICE, 0, "", "", "", ""), None))
    trials, speeds = list[Trial](), list[float]()
    for number in range(kernels // GENERATION):
        proposed = proposer.propose(Task(problem), {problem: trials}, number, GENERATION)
        made = [(candidate.kernel_hash, prompt) for candidate, prompt in proposed.items()]
        settings = [parsed(Trial(prompt, number, 0, "")) for _, prompt in made]
        rated = judge.speeds(problem, [(one.family, one.knobs) for one in settings]).tolist()
        trials += [
            Trial(prompt, number, index, key, float(np.exp(speed)))
            for index, ((key, prompt), speed) in enumerate(zip(made, rated, strict=True))
        ]
        speeds += rated
    return speeds


def interval(values: np.ndarray) -> str:
    drawn = np.random.default_rng(0).integers(0, len(values), (4000, len(values)))
    return "{:.4f} [{:.4f}, {:.4f}]".format(values.mean(), *np.quantile(values[drawn].mean(1), (0.025, 0.975)))


def main(folder: Path, kernels: int) -> None:
    both, counts = models(folder), [count for count in COUNTS if count <= kernels]
    ways = (1, 0), (evolution.BROOD, 0), (evolution.BROOD, liked.FITTED)
    for own, judge in (both, both[::-1]):
        cost_model.shipped = lambda target, own=own: own
        found = []
        for evolution.BROOD, liked.FITTED in ways:
            liked.most_liked.cache_clear()
            speeds = [search(judge, problem, kernels) for problem in shapes()]
            found.append(np.array([[max(some[:count]) for count in counts] for some in speeds]))
            best = "".join(f"  best of {count}: {value:.4f}" for count, value in zip(counts, np.exp(found[-1].mean(0))))
            print(f"\na brood of {evolution.BROOD}, tiles for {liked.FITTED}{best}", flush=True)
            if len(found) > 1:
                print("difference " + "; ".join(interval(column) for column in (found[-1] - found[-2]).T), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else KERNELS)
