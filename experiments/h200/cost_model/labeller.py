"""A model of speed fitted to the rounds of exploring (../layers.py): what to write for a shape that nobody measured.

    python experiments/h200/cost_model/labeller.py experiments/h200/layers data/cost_model/sm_90a.npz

What it learns is how far a setting stays behind the fastest measured of its shape, so that no baseline's whims are
learnt. Its facts are those of `cudal2/cost_model/facts.py`. The command writes what ships, which has seen no shape that
training may not see.
"""

import lzma
import math
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import recorded
from explored import Line, today
from sklearn.ensemble import HistGradientBoostingRegressor

from cudal2 import cost_model
from cudal2.cost_model.facts import Columns, numbered
from cudal2.cost_model.model import FEW
from cudal2.cost_model.trees import LEAVES
from cudal2.problem import Problem, parse
from cudal2.records import to_json
from cudal2.search.proposer import Setting
from cudal2.split import unseen

ROUNDS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "cover",
    "unaligned",
    "fresh",
    "doubted",
    "grid",
    "sizes",
    "wide",
    "lines",
    "emptied",
    "middle",
    "swapped",
    "split",
    "tiles",
)
EMPTIED = "emptied"
ANEW = (EMPTIED, "middle")
"""The rounds since which the L2 is emptied before a kernel's turn, and a B that is read once leaves it first: of shapes
that were asked anew, what earlier rounds say is out of date."""
MENDED = ("warp_specialised", "split_k", "small_cluster", "stream_k", "store_bound")
"""Families that were made faster, between the second round and the third, where a tile reaches over an edge."""
SEGMENT = 32
"""Numbers in 64 bytes: what the copy engine brings into the L2 of rows that begin within them changed before the round
of lines."""
FAR = 0.1
"""What was so far behind before (in logarithms) will not be the fastest since."""
BEHIND = 1.0
"""A setting that is further behind (in logarithms) is as bad as this."""
SLOW = 0.3
"""What was dropped after its one cold run is behind by so much at least, and by BEHIND at most: with short kernels such
a run can take ten times too long."""
WEIGHT = 6.0
"""The nearer a setting is to the fastest of its shape, the more its error counts: by exp(WEIGHT × logarithm)."""
TREES, RATE, LEAF = 800, 0.2, 60
"""Trees of a fit, each of as many leaves as what ships allows; how much of what is left each tree takes away; and pairs
in a leaf at least (with half the rate, and 20 pairs, a first pick was 0.3% slower: capacity.py)."""
CODES = 64
"""Codes of a word, each a bit of what a test is passed by."""

Measured = dict[Problem, dict[str, float]]
"""For each shape how far each setting, as JSON, is behind the fastest; at most 0."""


def measured(folder: Path, rounds: Sequence[str] = ROUNDS, far: float = FAR) -> Measured:
    """What the rounds hold of settings as the families are now. Of a shape that was asked anew what had been `far`
    behind before counts, too: the new round has little but what is fast."""
    held = {name: explored(folder, name) for name in rounds}
    anew = {line.problem for name, lines in held.items() if name in ANEW for line in lines}
    kept = {name: [line for line in lines if not mended(name, line)] for name, lines in held.items()}
    before = behind([one for one in lines if superseded(name, one, anew)] for name, lines in kept.items())
    found = behind([one for one in lines if not superseded(name, one, anew)] for name, lines in kept.items())
    for problem in found.keys() & before.keys():
        for setting, speed in before[problem].items():
            if speed <= -far:
                found[problem].setdefault(setting, speed)
    return found


def behind(rounds: Iterable[Sequence[Line]]) -> Measured:
    """Of these lines by round; a slow one is compared by its one cold run."""
    timed: dict[tuple[str, str], list[float]] = defaultdict(list)
    slow: dict[tuple[str, str], float] = {}
    for lines in rounds:
        bases: dict[str, list[float]] = defaultdict(list)
        for line in lines:
            if line.speedup:
                bases[line.problem].append(line.us * line.speedup)
        for line in lines:
            if setting := today(line):
                key = line.problem, to_json(setting)
                if line.speedup:
                    timed[key].append(math.log(line.speedup))
                elif line.us and line.problem in bases:
                    slow[key] = math.log(median(bases[line.problem]) / line.us)
    found: Measured = defaultdict(dict)
    for (mnk, setting), speeds in timed.items():
        found[parse(mnk)][setting] = float(np.mean(speeds))
    best = {problem: max(some.values()) for problem, some in found.items()}
    for (mnk, setting), speed in slow.items():
        if (problem := parse(mnk)) in best:
            found[problem].setdefault(setting, best[problem] - min(max(best[problem] - speed, SLOW), BEHIND))
    return {problem: {one: speed - best[problem] for one, speed in some.items()} for problem, some in found.items()}


def explored(folder: Path, name: str) -> list[Line]:
    return msgspec.json.Decoder(Line).decode_lines(lzma.decompress((folder / f"{name}.jsonl.xz").read_bytes()))


def on_the_grid() -> Measured:
    """The same of speeds.jsonl: two to four settings for each shape of the grid, on an H200."""
    found: Measured = defaultdict(dict)
    for row in recorded.read():
        if row.device == "H200":
            found[row.problem][to_json(row.setting)] = row.speed
    best = {problem: max(some.values()) for problem, some in found.items() if len(some) > 1}
    return {problem: {one: speed - best[problem] for one, speed in found[problem].items()} for problem in best}


def shown(found: Measured) -> Measured:
    """Without the shapes that training may not see."""
    return {problem: some for problem, some in found.items() if not unseen(problem)}


def mended(name: str, line: Line) -> bool:
    """Whether the family has been made faster since for such a shape, or was slowed down by a fault."""
    if name == "first" and line.family == "stationary":
        return True
    m, n, _ = map(int, line.problem.split("_"))
    small = m < int(line.knobs.get("tile_m", 0)) or n < int(line.knobs.get("tile_n", 0))
    moved = line.family != "small_cluster" or line.knobs["load"] == "tma"
    return name in ("first", "second") and line.family in MENDED and small and moved


def superseded(name: str, line: Line, anew: Container[str]) -> bool:
    """Whether a later round asked again of such a shape, as kernels or the clock had changed."""
    m, _, k = map(int, line.problem.split("_"))
    astray = m > FEW and k % SEGMENT > 0
    return (line.problem in anew and not since(EMPTIED, name)) or (astray and not since("lines", name))


def since(one: str, name: str) -> bool:
    """Whether a round is that one or a later one."""
    return ROUNDS.index(name) >= ROUNDS.index(one)


class Model:
    """Trees for few rows and trees for more, of one fit or of several that saw other parts of the facts."""

    def __init__(
        self,
        seen: Measured,
        fits: int = 1,
        trees: int = TREES,
        leaves: int = LEAVES,
        rate: float = RATE,
        leaf: int = LEAF,
        behind: float = BEHIND,
        weight: float = WEIGHT,
    ) -> None:
        self.codes = numbered(made({one for some in seen.values() for one in some}))
        self.models: dict[bool, list] = {}
        for few in (True, False):
            here = {problem: some for problem, some in seen.items() if (problem.m <= FEW) == few}
            facts = np.vstack([self.pool(some).facts(problem) for problem, some in here.items()])
            wanted = np.maximum(np.concatenate([list(some.values()) for some in here.values()]), -behind)
            words = range(facts.shape[1] - len(self.codes), facts.shape[1])
            self.models[few] = [
                HistGradientBoostingRegressor(
                    max_iter=trees,
                    learning_rate=rate,
                    max_leaf_nodes=leaves,
                    min_samples_leaf=leaf,
                    l2_regularization=1.0,
                    max_features=0.4,
                    categorical_features=list(words),
                    early_stopping=False,
                    random_state=seed,
                ).fit(facts, wanted, np.exp(weight * wanted))
                for seed in range(fits)
            ]

    def pool(self, settings: Iterable[str]) -> Columns:
        """Settings, as JSON, as the model reads them."""
        return Columns(made(settings), self.codes)

    def speeds(self, asked: Sequence[tuple[Problem, Columns]]) -> list[np.ndarray]:
        """How far behind the fastest each setting of each pool is, for its problem."""
        found: list[np.ndarray] = [np.zeros(0)] * len(asked)
        for few in (True, False):
            here = [place for place, (problem, _) in enumerate(asked) if (problem.m <= FEW) == few]
            for start in range(0, len(here), 50):  # trees take long to begin
                some = here[start : start + 50]
                facts = [asked[place][1].facts(asked[place][0]) for place in some]
                speeds = np.mean([model.predict(np.vstack(facts)) for model in self.models[few]], axis=0)
                ends = np.cumsum([len(one) for one in facts])
                for place, part in zip(some, np.split(speeds, ends[:-1])):
                    found[place] = part
        return found

    def exported(self) -> cost_model.Model:
        """The same model without the library that fitted it."""
        return cost_model.Model(self.codes, *(exported(self.models[few], len(self.codes)) for few in (True, False)))


def most_liked_first(some: Mapping[str, float], guessed: np.ndarray) -> np.ndarray:
    """How far behind the fastest of their shape these settings were measured, in the order of what was guessed."""
    return np.array(list(some.values()))[np.argsort(-guessed, kind="stable")]


def made(settings: Iterable[str]) -> list[cost_model.Setting]:
    return [(one.family, one.knobs) for one in (msgspec.json.decode(text, type=Setting) for text in settings)]


Test = tuple[int, float, bool, int, int]
"""The values of a test's fields in `Trees`, from `column` to `left_out`."""


def exported(models: Sequence[HistGradientBoostingRegressor], words: int) -> cost_model.Trees:
    """The mean of these models, as one sum of trees; their last `words` columns are codes, which come first in them."""
    tests, values, begins = list[Test](), list[float](), list[tuple[int, int]]()
    for model in models:
        categories = model._preprocessor.named_transformers_["encoder"].categories_
        for (predictor,) in model._predictors:
            begins.append((len(tests), len(values)))
            some, leaves = walked(0, predictor.nodes, predictor.raw_left_cat_bitsets, categories, 0)
            assert 1 < len(leaves) <= LEAVES, "each tree tests something"
            tests += some
            values += leaves
    column, threshold, is_word, passing, left_out = zip(*tests)
    return cost_model.Trees(
        ((np.array(column) - words) % models[0].n_features_in_).astype(np.uint8),
        np.array(threshold),
        np.array(is_word),
        np.array(passing, np.uint64),
        np.array(left_out, np.uint32),
        *np.array(begins).T,
        np.array(values, np.float32) / len(models),
        np.mean([model._baseline_prediction for model in models]),
    )


def walked(
    place: int, nodes: np.ndarray, bits: np.ndarray, categories: Sequence[np.ndarray], leaf: int
) -> tuple[list[Test], list[float]]:
    """The tests below a node, and the values of its leaves, from the left; the first of these has the number `leaf`."""
    node = nodes[place]
    if node["is_leaf"]:
        return [], [float(node["value"])]
    left, left_leaves = walked(node["left"], nodes, bits, categories, leaf)
    right, right_leaves = walked(node["right"], nodes, bits, categories, leaf + len(left_leaves))
    column, word = int(node["feature_idx"]), bool(node["is_categorical"])
    left_out = 2**LEAVES - 1 - ((1 << len(left_leaves)) - 1 << leaf)
    passing = members(categories[column], bits[node["bitset_idx"]], bool(node["missing_go_to_left"])) if word else 0
    test = column, 0.0 if word else float(node["num_threshold"]), word, passing, left_out
    return [test, *left, *right], left_leaves + right_leaves


def members(categories: np.ndarray, bits: np.ndarray, others: bool) -> int:
    """The codes that pass, as bits; one that was not there passes as `others` do."""
    places = {int(code): place for place, code in enumerate(categories)}
    passes = (
        bool(bits[places[code] // 32] >> places[code] % 32 & 1) if code in places else others for code in range(CODES)
    )
    return sum(1 << code for code, one in enumerate(passes) if one)


def main(folder: Path, out: Path) -> None:
    every = shown(on_the_grid() | measured(folder))
    learnt = Model(every)
    learnt.exported().write(out)
    again, some = cost_model.read(out), list(every.items())[::80]
    pools = [(problem, learnt.pool(settings)) for problem, settings in some]
    here = [again.speeds(problem, made(settings)) for problem, settings in some]
    errors = [np.abs(one - there).max() for one, there in zip(here, learnt.speeds(pools), strict=True)]
    print(f"{len(every)} shapes, {sum(map(len, every.values()))} pairs, {out.stat().st_size} bytes")
    print(f"exported, it differs by at most {max(errors):.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
