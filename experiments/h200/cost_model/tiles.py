"""What to explore of what the shipped model likes most, with tiles of a shape's own: its errors lie where it likes.

    python experiments/h200/cost_model/tiles.py tilesround 1100      # shapes; no GPU
    python experiments/h200/explore.py tilesround/settings.jsonl $(cat tilesround/shapes.txt) tilesround/out.jsonl 430

New open sizes off the lattice, a quarter with up to 64 rows, each with what evolution would begin with
(`search/liked.py`, no two alike before all are), as far as it is among the BUILT settings that most shapes want; and
some by chance, so that a model learns what is slow. With another number as the third argument other sizes are drawn.

    git show 751c1b52:data/cost_model/sm_90a.npz > before.npz
    python experiments/h200/cost_model/tiles.py told before.npz experiments/h200/layers

How a model that had seen none of these shapes had ordered what was then measured there: its first pick and the best of
its four over the fastest, and one by chance.
"""

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from cover import fitting, oftenest, rows
from explored import TARGET
from labeller import behind, explored, made, most_liked_first

from cudal2 import cost_model
from cudal2.cost_model.model import FEW
from cudal2.problem import Problem, off_lattice
from cudal2.records import to_json
from cudal2.search.liked import most_liked
from cudal2.search.settings import first_of_each, shape_of

SEED, FEW_ROWS = 7001, 0.25
ROWS = ((1, 16), (17, 64), (65, 1024), (1025, 8192), (1, 8192))
WANTED, LIKED, CHANCE, BUILT = 40, 10, 2, 650
"""Settings of a shape that count as wanted; those that are asked, the first and by chance; and built in all."""


def sizes(count: int, seed: int) -> list[Problem]:
    """So many, in any order."""
    every = fitting(off_lattice(6 * count, seed))
    few = [one for one in every if one.m <= FEW][: int(count * FEW_ROWS)]
    many = [one for one in every if one.m > FEW][: count - len(few)]
    return random.Random(seed).sample([*few, *many], len(few) + len(many))


def main(out: Path, count: int, seed: int) -> None:
    chosen, rng, likes = sizes(count, seed), random.Random(seed), dict[Problem, list[str]]()
    for problem in chosen:
        likes[problem] = [to_json(one) for one in first_of_each(most_liked(TARGET, problem) or [], shape_of)]
    often = Counter(one for some in likes.values() for one in some[:WANTED])
    built, wanted = {one for one, _ in often.most_common(BUILT)}, dict[str, list[str]]()
    for problem, some in likes.items():
        here = [one for one in some if one in built]
        others = here[LIKED:]
        for one in [*here[:LIKED], *rng.sample(others, min(CHANCE, len(others)))]:
            wanted.setdefault(one, []).append(problem.mnk)
    lines = rows(oftenest(wanted), wanted)
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.jsonl").write_text("\n".join(lines) + "\n")
    (out / "shapes.txt").write_text(",".join(problem.mnk for problem in chosen))
    firsts = sum(some[0] in built for some in likes.values())
    print(
        f"{len(chosen)} shapes, {len(lines)} settings, {sum(map(len, wanted.values()))} pairs; {firsts} first choices"
    )


def told(model: cost_model.Model, folder: Path) -> None:
    found = list[tuple[int, float, float, float]]()
    for problem, some in behind([explored(folder, "tiles")]).items():
        in_order = most_liked_first(some, model.speeds(problem, made(some)))
        found.append((problem.m, in_order[0], in_order[:4].max(), in_order.mean()))
    rows, *logs = np.array(found).T
    for least, most in ROWS:
        here = (least <= rows) & (rows <= most)
        first, four, chance = (np.exp(one[here].mean()) for one in logs)
        print(f"{least} to {most} rows, {here.sum()} shapes: {first:.3f}, of four {four:.3f}, by chance {chance:.3f}")


if __name__ == "__main__":
    if sys.argv[1] == "told":
        told(cost_model.read(Path(sys.argv[2])), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else SEED)
