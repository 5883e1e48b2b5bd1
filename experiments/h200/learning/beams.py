"""Plans by beam search, and plans that are drawn: what is among them, with a model in the judge's place.

    python experiments/h200/learning/beams.py experiments/h200/layers        # prints beams.txt; half an hour

The shipped policy for Hopper is asked for the layers that are kept apart and for sizes off the lattice, the 84 shapes
of ../layers. Of DRAWN beginnings of its texts, of some of them, and of its likeliest by beam search the cost model
takes four, as `search.rerank` does. As in ../known_settings/simulate.py two models are fitted, each to every other
weight's shapes: one chooses and the other judges, then the other way round. Beside it are sixteen kernels of evolution
by the same model. Logarithms less the best of these sixteen, with 95% intervals over shapes; how many plans there are
that serve the shape; and the seconds a shape that it took to find them, on one core.
"""

import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "known_settings"))
from simulate import TARGET, interval, models, search

from cudal2 import corpus, cost_model, llm
from cudal2.config import PolicyConfig, SearchConfig
from cudal2.policy import plans, prompts, sampling
from cudal2.policy.learnt import settled
from cudal2.policy.model import load
from cudal2.problem import Problem, off_lattice
from cudal2.search import liked, rerank
from cudal2.search.proposer import Setting
from cudal2.split import REPORTED
from cudal2.target import find

sys.path.insert(0, str(Path(__file__).parents[1]))
from layers import apart

DRAWN, OF_FOUR, BEAMS, KERNELS = 256, (4, 16, 64, 256), (16, 64, 256), 16
"""Beginnings that are drawn, how many of them four kernels are chosen among, and widths of the beam."""
HERE = find(TARGET)
Ways = dict[str, tuple[list[Setting], float]]
"""By the name of a way to find plans: the settings, and the seconds."""


class Asked:
    """The shipped policy, and its plans."""

    def __init__(self) -> None:
        self.config = PolicyConfig(temperature=1.0)
        self.model, self.tokenizer = load(self.config, TARGET)
        self.template = settled(SearchConfig(run="", target=TARGET), "").prompt

    def ways(self, problem: Problem) -> Ways:
        prompt = prompts.render(self.template, False, problem, HERE)
        found, start = Ways(), time.monotonic()
        drawn = self.drawn(sampling.tokenize(self.tokenizer, prompt))
        seconds = time.monotonic() - start
        for count in OF_FOUR:
            found[f"{count} drawn"] = drawn[:count], seconds * count / DRAWN
        for count in BEAMS:
            start = time.monotonic()
            (some,) = plans.likeliest(self.model, self.tokenizer, [prompt], count, self.config, HERE)
            found[f"{count} beams"] = [Setting(one.family, one.knobs) for one in some], time.monotonic() - start
        return found

    def drawn(self, ids: Sequence[int]) -> list[Setting]:
        """Those of DRAWN beginnings that state a plan."""
        size = plans._tokens(self.tokenizer, HERE)
        with torch.inference_mode():
            rows = self.model.generate(torch.tensor([ids] * DRAWN), do_sample=True, top_k=0, max_new_tokens=size)
        texts = self.tokenizer.batch_decode(rows[:, len(ids) :])
        return [Setting(*stated) for text in texts if (stated := corpus.stated(text, HERE))]


def best(own: cost_model.Model, judge: cost_model.Model, problem: Problem, some: Sequence[Setting]) -> list[float]:
    """What the judge says of the four that the other model likes most; there may be fewer."""
    cost_model.shipped = lambda target: own
    chosen = [some[place] for place in rerank.liked(HERE, problem, some)[:4]]
    return judge.speeds(problem, [(one.family, one.knobs) for one in chosen]).tolist() if chosen else [-1.0]


def main(folder: Path) -> None:
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    both, asked = models(folder), Asked()
    layers = [Problem(rows, layer.n, layer.k) for rows, layer in map(llm.find, apart())]
    off = off_lattice(*REPORTED)[: len(layers)]
    found = {problem: asked.ways(problem) for problem in (*layers, *off)}
    less, counts, seconds = (defaultdict[tuple[str, str], list[float]](list) for _ in range(3))
    for own, judge in (both, both[::-1]):
        cost_model.shipped = lambda target, own=own: own
        liked.most_liked.cache_clear()
        for where, problems in (("layers", layers), ("off the lattice", off)):
            for problem in problems:
                cost_model.shipped = lambda target, own=own: own
                rival = search(judge, problem, KERNELS)
                speeds = {"evolution": rival[:4]}
                for way, (some, took) in found[problem].items():
                    speeds[way] = best(own, judge, problem, some)
                    counts[where, way].append(len({str(one) for one in some}))
                    seconds[where, way].append(took)
                for way, (first, *others) in speeds.items():
                    less[where, f"{way}, first"].append(first - max(rival))
                    less[where, f"{way}, best of 4"].append(max(first, *others, -9) - max(rival))
    for (where, way), values in less.items():
        print(f"{where:15s} {way:24s} {interval(np.array(values))}")
    for (where, way), values in counts.items():
        print(f"{where:15s} {way:12s} {np.mean(values):5.1f} plans, {np.mean(seconds[where, way]):5.2f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
