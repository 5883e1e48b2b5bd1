"""The best of the new families beside the best of what was known, by rows and by how rows fill tiles of 128 and 64.

    python experiments/h200/swap_ab/table.py experiments/h200/layers/swapped.jsonl.xz
    cd experiments/h200/layers && python ../swap_ab/table.py split.jsonl.xz --new swap_ab_split_k --before *.jsonl.xz

Of a round of exploring that asked for both: speedups over its rough baseline, geometric means over shapes. `asked` says
how many settings of either there were for a shape in the mean: the best of more is more by luck alone. With
`--before` what was the fastest of a shape in these rounds counts as known, too: other looks, on other days.
"""

import argparse
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

NEW = ("swap_ab", "swap_ab_stream_k")
LARGE, LINE = 3e9, 64
"""Work (FLOP) from which on, and multiples of which in K, a product counts as large and its rows as whole lines."""
FEW, LONG = 3 << 20, 4096
"""Elements of C up to which, and K from which on, its tiles are few and its sums long."""


class Shape(NamedTuple):
    m: int
    n: int
    k: int
    known: list[float]
    new: list[float]

    @property
    def gain(self) -> float:
        return max(self.new) / max(self.known)


def timed(path: Path) -> Iterator[dict]:
    """The lines of a round that have a speedup, of kernels as their families render them."""
    rows = map(json.loads, lzma.decompress(path.read_bytes()).splitlines())
    return (row for row in rows if row.get("speedup") and "edit" not in row)


def read(path: Path, new: Container[str], before: Sequence[Path] = ()) -> list[Shape]:
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for row in timed(path):
        found[row["problem"]][row["family"] in new].append(row["speedup"])
    for row in (row for earlier in before for row in timed(earlier)):
        if row["problem"] in found and row["family"] not in new:
            found[row["problem"]][0].append(row["speedup"])
    return [Shape(*map(int, name.split("_")), *both) for name, both in found.items() if all(both)]


def together(values: list[float]) -> float:
    return math.exp(mean(map(math.log, values)))


def show(title: str, shapes: list[Shape], kind: Callable[[Shape], str]) -> None:
    kinds = defaultdict(list)
    for shape in shapes:
        kinds[kind(shape)].append(shape)
    print(f"\n{title:34s} shapes    known     new    both   new is faster")
    for name, some in sorted(kinds.items()):
        best = [(max(one.known), max(one.new), max(*one.known, *one.new)) for one in some]
        figures = "".join(f"{together(list(values)):8.3f}" for values in zip(*best))
        print(f"  {name:32s} {len(some):6d} {figures}   {sum(one.gain > 1 for one in some)}")


def rows_of(shape: Shape) -> str:
    return next(f"up to {most:5d} rows" for most in (128, 256, 512, 1024, 16384) if shape.m <= most)


def whole(shape: Shape) -> str:
    return "rows fill tiles of 128" if shape.m % 128 == 0 else "of 64" if shape.m % 64 == 0 else "of neither"


def main(path: Path, new: Sequence[str], before: Sequence[Path]) -> None:
    shapes = read(path, new, before)
    long = [one for one in shapes if one.m * one.n <= FEW and one.k >= LONG]
    large = [one for one in shapes if 2 * one.m * one.n * one.k >= LARGE and one.k % LINE == 0]
    print(f"asked: {mean(len(one.known) for one in shapes):.1f} known, {mean(len(one.new) for one in shapes):.1f} new")
    kinds = ("every shape", shapes), ("3e9 FLOP and more, whole lines", large), ("few tiles, long sums", long)
    for title, some in kinds:
        show(title, some, lambda _: "all")
        show(title, some, rows_of)
        show(title, some, whole)
    print("\nWhere the new ones gain most, and least")
    order = sorted(shapes, key=lambda one: -one.gain)
    for one in order[:15] + order[-5:]:
        print(f"  {one.m}x{one.n}x{one.k}: {max(one.known):.3f} {max(one.new):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("round", type=Path)
    parser.add_argument("--new", nargs="+", default=NEW)
    parser.add_argument("--before", nargs="*", type=Path, default=())
    told = parser.parse_args()
    main(told.round, told.new, told.before)
