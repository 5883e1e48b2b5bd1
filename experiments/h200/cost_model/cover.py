"""What to explore so that the labeller knows many shapes: hundreds of drawn ones, a few settings for each.

    python experiments/h200/cost_model/cover.py experiments/h200/layers cover          # needs no GPU
    python experiments/h200/explore.py cover/settings.jsonl $(cat cover/shapes.txt) cover/out.jsonl 480
    python experiments/h200/refit.py adopt cover/out.jsonl 2         # the two fastest of each into data/settings

The rounds of layers.py measured a hundred settings on each of 208 shapes. What a model gets wrong on others is which of
the settings it likes is fastest there, so each shape is given the LIKED of its rows that the model likes most, and
DRAWN others by chance. Problems are those that labels.py draws, so none that is kept apart.
"""

import json
import random
import sys
from pathlib import Path

import msgspec
from labeller import Model, measured
from labels import BY_NAME, drawn, pools, rows_of

from cudal2 import corpus
from cudal2.problem import Problem
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed

SHAPES, LARGEST, FLOP = 900, 1 << 28, 4e11
"""How many, and the largest weight (elements) and product."""
LIKED, DRAWN = 14, 6
"""Settings of a shape that the model likes, and others."""


def shapes() -> list[Problem]:
    """So many drawn sizes, of fp16 without an epilogue; a weight has at most LARGEST elements."""
    plain = dict.fromkeys(Problem(one.m, one.n, one.k) for one in drawn())
    fit = [one for one in plain if one.n * one.k <= LARGEST and one.flop <= FLOP]
    return random.Random("cover").sample(fit, SHAPES)


def main(folder: Path, out: Path) -> None:
    every = measured(folder)
    model, chosen, rng = Model(every), shapes(), random.Random("settings")
    by_rows, wanted = pools(every, model), dict[str, list[str]]()
    asked = [(problem, by_rows[rows_of(problem.m)]) for problem in chosen]
    for (problem, pool), liked in zip(asked, model.speeds(asked)):
        made = [msgspec.json.decode(one, type=Setting) for one in pool.settings]
        able = [
            place
            for place, one in enumerate(made)
            if corpus.applies(BY_NAME[one.family], problem) and allowed(problem, BY_NAME[one.family], one.knobs)
        ]
        able.sort(key=lambda place: -liked[place])
        others = able[LIKED:]
        for place in able[:LIKED] + rng.sample(others, min(DRAWN, len(others))):
            wanted.setdefault(pool.settings[place], []).append(problem.mnk)
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(json.loads(setting) | {"shapes": names}) for setting, names in wanted.items()]
    (out / "settings.jsonl").write_text("\n".join(lines) + "\n")
    (out / "shapes.txt").write_text(",".join(problem.mnk for problem in chosen))
    print(f"{len(chosen)} shapes, {len(lines)} settings, {sum(map(len, wanted.values()))} pairs")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
