"""What to explore of families with operands exchanged, of which nobody knows anything: beside the best known settings.

    python experiments/h200/swap_ab/propose.py experiments/h200/layers swapround 1200      # shapes; no GPU
    python experiments/h200/explore.py swapround/settings.jsonl $(cat swapround/shapes.txt) swapround/out.jsonl 500
    python experiments/h200/swap_ab/propose.py experiments/h200/layers splitround 1200 swap_ab_split_k  # the next

Open shapes with more than 64 rows, drawn, each with the three fastest of the settings that were measured there, and
what the labeller likes of the new families, read as if it were of the families that they are made of; some by chance,
too. The labeller was that of the round before, and its folder of layers had no more than that (`middle`; `swapped`).
`swap_ab_split_k` is for products that fill few multiprocessors: of other shapes it is given a few.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "cost_model"))

from cover import able, oftenest, rows
from explored import BY_NAME
from labeller import Measured, Model, measured, on_the_grid, shown

from cudal2 import corpus
from cudal2.corpus import Knobs
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.proposer import Setting

SPLIT = "swap_ab_split_k"
LIKE = {"swap_ab": "warp_specialised", "swap_ab_stream_k": "stream_k", SPLIT: "split_k"}
USUAL: dict[str, Knobs] = {
    "swap_ab": {
        "step": 64,
        "stages": "fit",
        "producer": "warpgroup",
        "grid": "persistent",
        "blocks": 1,
        "hint": "none",
    },
    "swap_ab_stream_k": {"step": 64, "producer": "warpgroup", "epilogue": "direct"},
    SPLIT: {"step": 64, "producer": "warpgroup", "order": "splits"},
}
VALUES: dict[str, dict[str, tuple[int | str, ...]]] = {
    "swap_ab": {"raster": ("column", "columns 8", "hilbert 4"), "in_flight": (1,), "accumulate": ("f32",)},
    "swap_ab_stream_k": {"raster": ("column",), "in_flight": (1,), "least": (4,)},
    SPLIT: {"raster": ("column",)},
}
LIKED, CHANCE = {"swap_ab": 9, "swap_ab_stream_k": 4, SPLIT: 11}, {"swap_ab": 3, "swap_ab_stream_k": 1, SPLIT: 4}
KNOWN, BUILT, BUILT_KNOWN = 3, 460, 160
FEW_TILES = 3 << 20
"""Elements of C: 192 tiles of 128 by 128."""


def settings(name: str) -> Iterator[Setting]:
    """All in one style, with what VALUES leaves of the knobs; of stages as many as fit."""
    family = BY_NAME[name]
    values = {**family.knobs, "style": ("plain",), **VALUES[name]}
    for combined in product(*values.values()):
        knobs = dict(zip(values, combined, strict=True))
        deeper = int(knobs.get("stages", 0)) + 1
        more = deeper in family.knobs.get("stages", ()) and not corpus.refusal(family, knobs | {"stages": deeper}, "tn")
        if not more and not corpus.refusal(family, knobs, "tn"):
            yield Setting(name, knobs)


def read_as(setting: Setting) -> str:
    return to_json(Setting(LIKE[setting.family], USUAL[setting.family] | setting.knobs))


def wanted_shapes(every: Measured, count: int, split: bool, rng: random.Random) -> list[Problem]:
    """Three quarters have rows that fill no tiles of 128, or, to be split, few tiles."""

    def first(one: Problem) -> bool:
        return one.m * one.n <= FEW_TILES if split else one.m <= 1024 and one.m % 128 > 0

    many = [one for one in every if one.m > 64]
    some, others = [one for one in many if first(one)], [one for one in many if not first(one)]
    chosen = rng.sample(some, min(len(some), count * 3 // 4))
    chosen += rng.sample(others, min(len(others), count - len(chosen)))
    rng.shuffle(chosen)
    return chosen


def main(folder: Path, out: Path, count: int, names: Sequence[str]) -> None:
    every: Measured = shown(measured(folder))
    model, rng = Model(shown(on_the_grid()) | every), random.Random("swap_ab")
    pools = {name: list(settings(name)) for name in names}
    texts = {name: list(map(to_json, pool)) for name, pool in pools.items()}
    columns = {name: model.pool([read_as(one) for one in pool]) for name, pool in pools.items()}
    chosen = wanted_shapes(every, count, SPLIT in names, rng)
    wanted, known = dict[str, list[str]](), dict[str, list[str]]()
    for problem in chosen:
        fastest = sorted(every[problem], key=every[problem].__getitem__, reverse=True)
        for one in fastest[:KNOWN]:
            known.setdefault(one, []).append(problem.mnk)
        for name in names:
            (liked,) = model.speeds([(problem, columns[name])])
            likes = list(islice(able(texts[name], problem, liked), LIKED[name] * 8))
            for one in [*likes[: LIKED[name]], *rng.sample(likes[LIKED[name] :], CHANCE[name])]:
                wanted.setdefault(one, []).append(problem.mnk)
    lines = rows(oftenest(wanted)[:BUILT], wanted) + rows(oftenest(known)[:BUILT_KNOWN], known)
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.jsonl").write_text("\n".join(lines) + "\n")
    (out / "shapes.txt").write_text(",".join(problem.mnk for problem in chosen))
    pairs = sum(len(json.loads(one)["shapes"]) for one in lines)
    print(f"{len(chosen)} shapes, {len(lines)} settings of {len(wanted)} and {len(known)}, {pairs} pairs")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or ["swap_ab", "swap_ab_stream_k"])
