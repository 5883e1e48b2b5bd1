"""Evolution with a model in the judge's place: what the best of 16 and of 64 kernels is, as the model has it.

    python experiments/h200/cost_model/simulate.py 8 16         # kernels a generation, and in all; --out FILE.npy

For a search that is to be compared with itself after a change: the model that ships rates the settings that
either proposes for 25 layers that are kept apart and 25 shapes off the lattice, all of at least 64 rows. It errs, and
alike for both; what a search finds on a GPU has to be measured there. Prints the geometric mean of the best of the
first 4, 8 … kernels.
"""

import argparse
import random
from pathlib import Path

import numpy as np

from cudal2 import cost_model, llm
from cudal2.config import SearchConfig, SearchMethodConfig, ShapesConfig
from cudal2.problem import Problem, off_lattice
from cudal2.records import Environment
from cudal2.search.proposer import Task, Trial
from cudal2.search.proposers.evolution import Evolution
from cudal2.search.settings import parsed
from cudal2.search.trials import History
from cudal2.split import KEPT_APART, REPORTED

TARGET, DEVICE, SHAPES, ROWS = "sm_90a", "H200", 25, 64


def shapes() -> list[Problem]:
    layers = {Problem(rows, layer.n, layer.k) for rows, layer in map(llm.find, llm.names(KEPT_APART)) if rows >= ROWS}
    off = [problem for problem in off_lattice(*REPORTED) if problem.m >= ROWS]
    return random.Random(1).sample(sorted(layers), SHAPES) + off[:SHAPES]


def search(model: cost_model.Model, problem: Problem, generation: int, kernels: int) -> list[float]:
    """The logarithms of the speeds of all kernels, in order."""
    method = SearchMethodConfig(generation=generation, neighbours=0)
    config = SearchConfig(run="unused", target=TARGET, shapes=ShapesConfig(names=(problem.mnk,)), search=method)
    evolution = Evolution(History(config, Environment(DEVICE, 0, "", "", "", ""), None))
    trials, speeds = list[Trial](), list[float]()
    for number in range(kernels // generation):
        proposed = evolution.propose(Task(problem), {problem: trials}, number, generation)
        made = [(candidate.kernel_hash, prompt) for candidate, prompt in proposed.items()]
        settings = [parsed(Trial(prompt, number, 0, "")) for _, prompt in made]
        rated = model.speeds(problem, model.columns([(one.family, one.knobs) for one in settings])).tolist()
        trials += [
            Trial(prompt, number, index, key, float(np.exp(speed)))
            for index, ((key, prompt), speed) in enumerate(zip(made, rated, strict=True))
        ]
        speeds += rated
    return speeds


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("generation", type=int)
    parser.add_argument("kernels", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    counts = [count for count in (4, 8, 16, 64) if count <= given.kernels]
    judge = cost_model.shipped(TARGET)
    assert judge, "a model ships for this target"
    found = [search(judge, problem, given.generation, given.kernels) for problem in shapes()]
    best = np.array([[max(speeds[:count]) for count in counts] for speeds in found])
    print(*(f"best of {count}: {value:.3f} " for count, value in zip(counts, np.exp(best.mean(0)), strict=True)))
    if given.out:
        np.save(given.out, best)
