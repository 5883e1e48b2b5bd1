"""What by_parity.py and swapped.py share: a family's kernels, edited, beside the same unedited.

So a new kind of kernel can be measured before it becomes a family, with nothing else changed: written into a folder as
`search.method=folder` reads it, checked in the tests' emulator, and compared.
"""

import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem, parse
from cudal2.target import find

FAMILY = next(family for family in corpus.families(find("sm_90a")) if family.name == "warp_specialised")
SCHEDULES = ("ping-pong", "cooperative", "staggered")
USUAL: Knobs = {
    **{"step": 64, "stages": "fit", "consumers": 2, "producer": "warpgroup", "raster": "column", "grid": "persistent"},
    **{"epilogue": "tma boxes", "blocks": 1, "in_flight": 1, "hint": "none", "accumulate": "f32", "style": "plain"},
}
USUAL_TILES = ((64, 128), (64, 192), (64, 256), (128, 128), (128, 192), (128, 256), (192, 128), (256, 128))


class Edit(NamedTuple):
    """A kind of kernel: its name, which settings of which family it is made of, and what becomes of a source."""

    name: str
    settings: Callable[[Problem], list[Knobs]]
    make: Callable[[str], str]
    family: Family = FAMILY


def edited(source: str, changes: Sequence[tuple[str, str]]) -> str:
    """The source with each pattern replaced wherever it stands; ValueError where one stands nowhere."""
    for pattern, text in changes:
        source, times = re.subn(pattern, text, source)
        if not times:
            raise ValueError(f"the source has no {pattern}")
    return source


def able(some: Iterable[Knobs], problem: Problem, family: Family = FAMILY) -> list[Knobs]:
    """Of settings that state some knobs those that the family's rules allow, with all knobs in their order."""
    whole = [{knob: (USUAL | knobs)[knob] for knob in family.knobs} for knobs in some]
    return [knobs for knobs in whole if not corpus.refusal(family, knobs, problem)]


def usual(problem: Problem) -> list[Knobs]:
    """The family as it is, in the common tiles, for the comparison."""
    return able(
        (
            {"tile_m": m, "tile_n": n, "schedule": schedule, "cluster": cluster}
            for m, n in USUAL_TILES
            for schedule in SCHEDULES
            for cluster in ("1x1", "2x1", "4x1")
        ),
        problem,
    )


def write(edit: Edit, folder: Path, problem: Problem) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in (Edit("usual", usual, str), edit):
        for knobs in kind.settings(problem):
            name = "{tile_m}x{tile_n}-{schedule}-{cluster}".format(**knobs)
            (folder / f"{name}-{kind.name}.cu").write_text(kind.make(corpus.render(kind.family, knobs, problem)))


def compare(edit: Edit, run: Path) -> None:
    with Archive(run / "archive.sqlite") as archive:
        samples = [sample for sample in archive.samples() if sample.speedup]
    for problem in dict.fromkeys(sample.problem for sample in samples):
        of = [(sample.speedup or 0.0, sample.origin.prompt) for sample in samples if sample.problem == problem]
        kinds = ("1x1-usual", "usual", edit.name)
        best = (max((one for one in of if kind in one[1]), default=(0.0, "none")) for kind in kinds)
        print(problem.mnk, *(f"{speed:.3f} {name}" for speed, name in best), sep="  ")


def check(edit: Edit, count: int) -> None:
    """Raises AssertionError where a kernel is wrong in the tests' emulator."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
    from families import hopper

    rng = random.Random(0)
    for number in range(count):
        knobs = rng.choice(edit.settings(parse("256_256_256")))
        m, n = (rng.randint(1, 3 * int(knobs[tile])) for tile in ("tile_m", "tile_n"))
        problem = Problem(m, 8 * (n // 8 + 1), 8 * rng.randint(1, 60))
        library = hopper.build(edit.make(corpus.render(edit.family, knobs, problem)))
        wrong = hopper.run(library, problem, seed=number, processors=rng.randint(1, 6))
        assert not wrong, (problem.name, knobs, wrong)
        print(problem.name, *(knobs[knob] for knob in ("tile_m", "tile_n", "schedule", "cluster")), flush=True)
    print(f"{count} of {count} are right")


def main(edit: Edit) -> None:
    match sys.argv[1:]:
        case ["write", folder, problem]:
            write(edit, Path(folder), parse(problem))
        case ["check", count]:
            check(edit, int(count))
        case ["compare", run]:
            compare(edit, Path(run))
