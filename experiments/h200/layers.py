"""Settings for the layers of models: what to explore on those that may be learnt from, and what to keep of it.

    python experiments/h200/layers.py propose OUT        # needs no GPU
    python experiments/h200/explore.py OUT/settings.jsonl $(cat OUT/shapes.txt) OUT/out.jsonl 480
    python experiments/h200/layers.py adopt OUT/out.jsonl              # into data/settings
    cudal2 search shapes=$(python experiments/h200/layers.py apart) target=sm_90a run=runs/apart search.kernels=16

`propose` takes layers of the open models in turn, each for fewer or more rows. For up to 64 rows it proposes settings of
`decode` and `stationary` for each height of their tiles, and known ones of other families; for more rows the known ones
that most shapes share. `apart` names layers of models that are kept apart, as many for each number of rows.
"""

import json
import random
import sys
from collections import Counter
from itertools import product
from pathlib import Path

from cudal2 import corpus, llm
from cudal2.corpus import Knobs
from cudal2.files import asset
from cudal2.problem import Problem
from cudal2.search.prior import read_known
from cudal2.split import KEPT_APART, open_families
from cudal2.target import find

TARGET = "sm_90a"
FAMILIES = {family.name: family for family in corpus.families(find(TARGET))}
FEW, MANY = (1, 8, 16, 32, 64), (128, 256, 512, 1024, 2048, 4096, 8192)
LAYERS, LAYERS_OF_MANY, LARGEST = 24, 8, 1 << 28
"""So many layers are explored with few rows and with each number of many; a weight has at most so many elements."""
APART = 5
"""Layers kept apart for each number of rows."""
SHARED, KEPT = 110, 4
"""Known settings that are tried with many rows; settings kept of a shape."""
TILES = {8: (1, 8), 16: (9, 16), 32: (17, 32), 64: (33, 64)}
"""Heights of tiles for few rows, and for which rows."""

STATIONARY: list[Knobs] = [
    {"warps": warps, "side": side, "splits": splits, "share": share, "blocks": blocks}
    for (warps, side), (splits, share), blocks in product(
        ((8, 1), (16, 2), (16, 4), (8, 2), (12, 3), (16, 8)), ((1, 1), (2, 1), (4, 1), (1, 2), (1, 4)), (1, 2)
    )
] + [
    {"warps": warps, "side": side} | more
    for (warps, side), more in product(
        ((8, 1), (16, 2), (16, 4)),
        ({"tile_n": 32}, {"depth": 2}, {"depth": 8}, {"hint": "evict first"}, {"blocks": 3}, {"depth": 2, "blocks": 4}),
    )
]
REGISTERS: Knobs = {"load": "registers", "deal": "parts"}
DECODE: list[Knobs] = [
    REGISTERS | more
    for more in (
        {},
        {"tile_n": 32},
        {"warps": 16, "side": 2},
        {"warps": 16, "side": 2, "tile_n": 32},
        {"warps": 16, "side": 4, "splits": 2},
        {"warps": 16, "side": 4},
        {"warps": 12, "side": 3},
        {"warps": 12, "side": 6},
        {"splits": 4},
        {"splits": 2},
    )
] + [{"tile_n": 32, "blocks": 2}, {"splits": 2, "blocks": 3}]


def few() -> list[dict]:
    """Settings for up to 64 rows."""
    found = []
    for (name, variants), (tile, rows) in product((("stationary", STATIONARY), ("decode", DECODE)), TILES.items()):
        family = FAMILIES[name]
        usual: Knobs = {knob: values[0] for knob, values in family.knobs.items()}
        for more in variants:
            knobs = usual | {"tile_m": tile} | more
            if not corpus.refusal(family, knobs, "tn"):
                found.append({"family": name, "knobs": knobs, "rows": rows})
    return found


def known(least: int, most: int, count: int, rows: tuple[int, int]) -> list[dict]:
    """The known settings that most shapes of so many rows share, of families for any rows; of fp16 `tn`."""
    shared = Counter[str]()
    for line in read_known(asset("data", "settings", f"{TARGET}.jsonl")):
        m = int(line.problem.split("_")[0])
        if least <= m <= most and line.family not in ("decode", "small") and line.layout == "tn":
            shared[json.dumps({"family": line.family, "knobs": line.knobs})] += 1
    settings = [json.loads(text) for text, _ in shared.most_common()]
    able = [one for one in settings if not corpus.refusal(FAMILIES[one["family"]], one["knobs"], "tn")]
    return [one | {"rows": rows} for one in able[:count]]


def shapes() -> list[str]:
    """Layers of open models, those of few rows before those of many, each with another number of rows in turn."""
    named = {llm.find(name)[1] for name in llm.names(open_families())}
    able = sorted({(layer.n, layer.k) for layer in named if layer.n * layer.k <= LARGEST})
    random.Random("layers").shuffle(able)
    chosen = [(m, *able[place]) for place in range(LAYERS) for m in FEW]
    turns = [
        (m, *able[(number + 7 * place) % len(able)]) for place, m in enumerate(MANY) for number in range(LAYERS_OF_MANY)
    ]
    random.Random("turns").shuffle(turns)
    return [Problem(*shape).mnk for shape in chosen + turns]


def apart() -> list[str]:
    """Names of layers of models that are kept apart: as many for each number of rows, chosen by chance."""
    by_rows: dict[int, list[str]] = {}
    for name in llm.names(KEPT_APART):
        by_rows.setdefault(llm.find(name)[0], []).append(name)
    rng, chosen = random.Random("apart"), []
    for names in by_rows.values():
        distinct = list({llm.find(name)[1]: name for name in names}.values())
        chosen += rng.sample(distinct, APART)
    return chosen


def propose(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = [
        *few(),
        *known(1, 128, 45, (9, 64)),
        *known(1, 128, 10, (1, 8)),
        *known(128, 16384, SHARED, (65, 16384)),
    ]
    merged: dict[str, dict] = {}
    for one in settings:  # a setting that is tried with few rows and with many is one line
        key = json.dumps([one["family"], one["knobs"]], sort_keys=True)
        before = merged.get(key, one)["rows"]
        merged[key] = one | {"rows": (min(before[0], one["rows"][0]), max(before[1], one["rows"][1]))}
    (folder / "settings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in merged.values()))
    (folder / "shapes.txt").write_text(",".join(shapes()))
    print(f"{len(shapes())} shapes, {len(merged)} settings", Counter(one["family"] for one in merged.values()))


def adopt(out: Path) -> None:
    """Puts the fastest of each shape in the place of what was known of it."""
    found: dict[str, list[dict]] = {}
    for row in map(json.loads, out.open()):
        if row["said"] == "ok":
            found.setdefault(row["problem"], []).append(row)
    lines = [
        {"problem": problem, "layout": "tn", "family": row["family"], "knobs": row["knobs"]}
        for problem, rows in found.items()
        for row in sorted(rows, key=lambda row: row["us"])[:KEPT]
    ]
    path = Path("data") / "settings" / f"{TARGET}.jsonl"
    before = [line for line in map(json.loads, path.open()) if line["problem"] not in found]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*before, *lines]))
    print(f"{path}: {len(found)} shapes more or anew, {len({line['problem'] for line in before})} as they were")


if __name__ == "__main__":
    if sys.argv[1] == "apart":
        print(",".join(apart()))
    else:
        {"propose": propose, "adopt": adopt}[sys.argv[1]](Path(sys.argv[2]))
