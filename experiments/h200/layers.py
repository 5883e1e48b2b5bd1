"""Settings for the layers of models: what to explore on those that may be learnt from, and what to keep of it.

    python experiments/h200/layers.py propose OUT        # needs no GPU
    python experiments/h200/explore.py OUT/settings.jsonl $(cat OUT/shapes.txt) OUT/out.jsonl 480
    python experiments/h200/layers.py adopt OUT/out.jsonl              # into data/settings
    cudal2 search shapes=$(python experiments/h200/layers.py apart) target=sm_90a run=runs/apart search.kernels=16

`propose` takes layers of the open models in turn, each for fewer or more rows. For up to 64 rows it proposes settings
of `decode` and `stationary` for each height of their tiles, and known ones of others; for more rows the known ones that
most shapes share. More rounds may follow, each is explored in its turn and all are adopted together: `again` with tiles
that fill the multiprocessors, `wide` with settings drawn by chance from families that few rows or a last wave may suit,
`nearby` with what is one knob away from the fastest of all rounds before, `odd` with sizes of any multiple of eight,
`unaligned` with those of them whose K is no multiple of 16: kernels that fetch rows by parity, or once for a cluster.
`apart` names layers of models that are kept apart, as many for each number of rows. What came of it: rounds.py.
"""

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from refit import adopt, explored, repaired

from cudal2 import corpus, llm
from cudal2.arch import MULTIPROCESSORS
from cudal2.corpus import Family, Knobs
from cudal2.files import asset
from cudal2.problem import Problem, off_lattice, parse
from cudal2.search.known import read_known
from cudal2.search.settings import allowed
from cudal2.split import KEPT_APART, open_families, unseen
from cudal2.target import find

TARGET = "sm_90a"
FAMILIES = {family.name: family for family in corpus.families(find(TARGET))}
FEW, MANY = (1, 8, 16, 32, 64), (128, 256, 512, 1024, 2048, 4096, 8192)
LAYERS, LAYERS_OF_MANY, LARGEST = 24, 8, 1 << 28
"""So many layers are explored with few rows and with each number of many; a weight has at most so many elements."""
APART = 3
"""Layers kept apart for each number of rows, unless told."""
SHARED, KEPT = 110, 4
"""Known settings that are tried with many rows; settings kept of a shape."""
AGAIN, FULL, FILLING = (65, 2048), 0.9, {"warp_specialised": 110, "split_k": 45, "small_cluster": 45}
"""Rows of a second round, what blocks must fill of their waves, and how many settings of which families."""
FEW_ROWS, NEAREST, NEAR = (9, 64), 3, 250
"""Rows of settings near the fastest besides AGAIN, how many of a shape are fast, and settings for each span of rows."""
ODD = 32
"""Sizes of any multiple of eight."""
UNALIGNED, CLUSTERED = 48, {"warp_specialised": 150, "stream_k": 50, "split_k": 60}
MORE_ROWS, WORK = (65, 16384), 4e11
"""Sizes whose K is no multiple of 16, how many settings of clusters are drawn for them, their rows and largest work."""
REPAIRS = ("consumers", "schedule", "epilogue", "producer", "cluster", "stages", "reduce", "order")
"""Knobs that may follow a tile, one or two of them."""
TILES = {8: (1, 8), 16: (9, 16), 32: (17, 32), 64: (33, 64)}
"""Heights of tiles for few rows, and for which rows; `stationary` has the first two."""

STATIONARY: list[Knobs] = [
    {"warps": warps, "side": side, "depth": depth, "splits": splits, "share": share, "blocks": blocks}
    for (warps, side), depth, (splits, share), blocks in product(
        ((16, 1), (16, 2), (16, 4), (16, 8), (12, 3), (8, 1), (8, 2), (8, 4)),
        (4, 8),
        ((1, 1), (2, 1), (1, 2), (1, 4)),
        (1, 2),
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
            if tile in family.knobs["tile_m"] and not corpus.refusal(family, knobs, "tn"):
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


def apart(count: int = APART) -> list[str]:
    """Names of layers of models that are kept apart: as many for each number of rows, chosen by chance."""
    by_rows: dict[int, list[str]] = {}
    for name in llm.names(KEPT_APART):
        by_rows.setdefault(llm.find(name)[0], []).append(name)
    rng, chosen = random.Random("apart"), []
    for names in by_rows.values():
        distinct = list({llm.find(name)[1]: name for name in names}.values())
        chosen += rng.sample(distinct, count)
    return chosen


def write(folder: Path, settings: list[dict], chosen: list[str]) -> None:
    """What explore.py is told; a setting that is tried with few rows and with many is one line."""
    merged: dict[str, dict] = {}
    for one in settings:
        key = json.dumps([one["family"], one["knobs"]], sort_keys=True)
        before = merged.get(key, one)["rows"]
        merged[key] = one | {"rows": (min(before[0], one["rows"][0]), max(before[1], one["rows"][1]))}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.jsonl").write_text("".join(json.dumps(one) + "\n" for one in merged.values()))
    (folder / "shapes.txt").write_text(",".join(chosen))
    print(f"{len(chosen)} shapes, {len(merged)} settings", Counter(one["family"] for one in merged.values()))


def propose(folder: Path) -> None:
    settings = [*few(), *known(1, 128, 45, (9, 64)), *known(1, 128, 10, (1, 8))]
    write(folder, [*settings, *known(128, 16384, SHARED, (65, 16384))], shapes())


def fastest(rounds: list[dict[str, list[dict]]], name: str) -> list[dict]:
    """What was right on a shape in all rounds; of equally fast rows that of the first round comes first."""
    return sorted((row for found in rounds for row in found.get(name, [])), key=lambda row: -row["speedup"])


def again(outs: list[Path], folder: Path, span: tuple[int, int]) -> None:
    """Near the fastest of each shape of so many rows: tiles and splits that fill the multiprocessors."""
    wanted, chosen, tried = {name: Counter[str]() for name in FILLING}, list[str](), set[str]()
    rounds = [explored(out) for out in outs]
    for name in rounds[0]:
        problem = parse(name)
        rows = fastest(rounds, name)
        tried.update(json.dumps([row["family"], row["knobs"]]) for row in rows)
        if not span[0] <= problem.m <= span[1]:
            continue
        chosen.append(name)
        for family, count in ((FAMILIES[kind], count) for kind, count in wanted.items()):
            best = [row["knobs"] for row in rows if row["family"] == family.name][:2]
            near = [knobs for known in best for knobs in refitted(family, known, problem)]
            count.update(dict.fromkeys((json.dumps([family.name, knobs]) for knobs in near), 1))
    settings = []
    for family, most in FILLING.items():
        fresh = [json.loads(text)[1] for text, _ in wanted[family].most_common() if text not in tried]
        print(f"{len(fresh)} settings of {family} near the fastest")
        settings += [{"family": family, "knobs": knobs, "rows": span} for knobs in fresh[:most]]
    write(folder, settings, chosen)


WIDE = [
    ("split_k", (9, 64), 150, {"tile_m": 64, "cluster": "1x1", "producer": "warp", "consumers": 1}),
    ("stream_k", (9, 64), 60, {"tile_m": 64, "cluster": "1x1", "producer": "warp", "consumers": 1}),
    ("warp_specialised", (9, 64), 90, {"tile_m": 64, "accumulate": "f32", "producer": "warp", "raster": "column"}),
    ("small_cluster", (9, 64), 60, {"tile_m": 64, "order": "column"}),
    ("stream_k", (65, 2048), 100, {}),
    ("split_k", (65, 1024), 100, {}),
    ("warp_specialised", (65, 2048), 60, {"accumulate": "f32", "step": 64}),
]
"""Family, rows, how many settings, and the knobs that are not drawn."""


def by_chance(
    family: Family, count: int, drawn: Mapping, fixed: Knobs, least: int, rng: random.Random, never: str = ""
) -> list[Knobs]:
    """So many distinct settings of `tn`: drawn knobs, over them the fixed ones; tiles of at least so many sums, and not
    the cluster `never`."""
    distinct = set[str]()
    while len(distinct) < count:
        knobs = {knob: rng.choice(values) for knob, values in drawn.items()} | fixed | {"style": "plain"}
        ordered = {knob: knobs[knob] for knob in family.knobs}
        fits = int(knobs["tile_m"]) * int(knobs["tile_n"]) >= least and knobs.get("cluster") != never
        if fits and not corpus.refusal(family, ordered, "tn"):
            distinct.add(json.dumps(ordered))
    return [json.loads(text) for text in sorted(distinct)]


def wide(folder: Path) -> None:
    """A third round, on the shapes of the first up to 2,048 rows."""
    rng, settings = random.Random("wide"), []
    for name, rows, count, fixed in WIDE:
        family = FAMILIES[name]
        drawn = {knob: values for knob, values in family.knobs.items() if knob not in fixed | {"style": 0}}
        some = by_chance(family, count, drawn, fixed, 8192 if rows[0] > 64 else 1024, rng)
        settings += [{"family": name, "knobs": knobs, "rows": rows} for knobs in some]
    write(folder, settings, [name for name in shapes() if 9 <= parse(name).m <= AGAIN[1]])


def nearby(outs: list[Path], folder: Path) -> None:
    """One knob away from the fastest of each shape that the last of these rounds had."""
    rounds, chosen, tried = [explored(out) for out in outs], list[str](), set[str]()
    wanted = {span: Counter[str]() for span in (FEW_ROWS, AGAIN)}
    for name in rounds[-1]:
        problem = parse(name)
        count = wanted[FEW_ROWS if problem.m <= FEW_ROWS[1] else AGAIN]
        rows = fastest(rounds, name)
        chosen.append(name)
        tried.update(json.dumps([row["family"], row["knobs"]]) for row in rounds[-1][name])
        for row in rows[:NEAREST]:
            family = FAMILIES[row["family"]]
            changed = [row["knobs"] | {knob: value} for knob, values in family.knobs.items() for value in values]
            able = [knobs for knobs in changed if knobs["style"] == "plain" and allowed(problem, family, knobs)]
            count.update(dict.fromkeys((json.dumps([family.name, knobs]) for knobs in able), 1))
    settings = []
    for span, count in wanted.items():
        fresh = [json.loads(text) for text, _ in count.most_common() if text not in tried]
        settings += [{"family": family, "knobs": knobs, "rows": span} for family, knobs in fresh[:NEAR]]
    write(folder, settings, chosen)


def odd_sizes() -> list[Problem]:
    """Any multiples of eight, log-uniform, none of them kept apart."""
    rng, chosen = random.Random("odd"), list[Problem]()
    while len(chosen) < ODD:
        sizes = (8 * round(2 ** rng.uniform(math.log2(low), math.log2(512))) for low in (9, 32, 32))
        problem = Problem(*sizes)
        if not unseen(problem):
            chosen.append(problem)
    return chosen


def odd(folder: Path) -> None:
    """Known settings on odd sizes."""
    write(folder, known(128, 16384, 2 * SHARED, (65, 16384)), [problem.mnk for problem in odd_sizes()])


def unaligned(folder: Path) -> None:
    """Rows that begin in the middle of a sector: fetched by parity, or once for all blocks of a cluster; known ones."""
    drawn = [one for one in off_lattice(1000, UNALIGNED) if one.k % 16 and one.m > 64 and one.n * one.k <= LARGEST]
    chosen = [one.mnk for one in drawn if not unseen(one) and one.flop <= WORK][:UNALIGNED]
    settings, rng, rows = known(65, 16384, SHARED // 2, MORE_ROWS), random.Random("unaligned"), MORE_ROWS
    for knobs in corpus.settings(FAMILIES["by_parity"], "tn"):
        plain = (knobs["accumulate"], knobs["in_flight"], knobs["style"]) == ("f32", 1, "plain")
        if plain and knobs["raster"] in ("column", "rows 8"):
            settings.append({"family": "by_parity", "knobs": knobs, "rows": rows})
    fixed: Knobs = {"accumulate": "f32", "step": 64, "in_flight": 1, "producer": "warpgroup"}
    for name, count in CLUSTERED.items():
        some = by_chance(FAMILIES[name], count, FAMILIES[name].knobs, fixed, 8192, rng, never="1x1")
        settings += [{"family": name, "knobs": knobs, "rows": rows} for knobs in some]
    write(folder, settings, chosen)


def refitted(family: Family, knobs: Knobs, problem: Problem) -> list[Knobs]:
    """The setting with each tile and number of splits that fill the multiprocessors, other knobs as they must be."""
    found = []
    splits = family.knobs.get("splits", (1,))
    for tile_m, tile_n, parts in product(family.knobs["tile_m"], family.knobs["tile_n"], splits):
        if parts == "auto":
            continue
        blocks = math.ceil(problem.m / int(tile_m)) * math.ceil(problem.n / int(tile_n)) * int(parts)
        waves = blocks / (MULTIPROCESSORS[TARGET] * int(knobs.get("blocks", 1)))
        small = int(tile_m) * int(tile_n) < (8192 if problem.m > 256 else 4096 if problem.m > 64 else 1024)
        if small or int(tile_m) >= problem.m + 64 or waves / math.ceil(waves) < FULL or (int(parts) > 1 and waves > 2):
            continue
        tiled = knobs | {"tile_m": tile_m, "tile_n": tile_n} | ({"splits": parts} if len(splits) > 1 else {})
        found += [one for one in [repaired(family, tiled, problem, REPAIRS)] if one]
    return found


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["propose", folder]:
            propose(Path(folder))
        case ["again", least, most, *outs, folder]:
            again([Path(out) for out in outs], Path(folder), (int(least), int(most)))
        case ["wide", folder]:
            wide(Path(folder))
        case ["nearby", *outs, folder]:
            nearby([Path(out) for out in outs], Path(folder))
        case ["odd", folder]:
            odd(Path(folder))
        case ["unaligned", folder]:
            unaligned(Path(folder))
        case ["adopt", *outs]:
            adopt([Path(out) for out in outs], KEPT)
        case ["apart", *count]:
            print(",".join(apart(*map(int, count))))
