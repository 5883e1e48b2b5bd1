"""The order in which the tiles of C are computed: from the end, mirrored, or alternately forwards and backwards."""

import random
import re

from cudal2.search.text import change_one

_COORDINATE = re.compile(r"^( +)(tm|tn) = ([^;{}]*);$", re.MULTILINE)
_PLACE = re.compile(r"(?<=place_tile\()(\w+), tiles_m, tiles_n(?=,)")
_ORIGIN = re.compile(r"(?<=tile_origin\()blockIdx\.x(?=,)")
# Over the tiles of C or the blocks of one: for (int i0 = 0; i0 < M; i0 += MC)
_LOOP = re.compile(r"for \(int (\w+) = 0; \1 < ([MN]|mc?|nc?); \1 \+= (\w+)\)")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    return change_one(
        source,
        [
            (_COORDINATE, lambda match: _turned(match, rng)),
            (_PLACE, lambda match: f"tiles_m * tiles_n - 1 - {match[1]}, tiles_m, tiles_n"),
            (_ORIGIN, lambda match: "gridDim.x - 1 - blockIdx.x"),
            (_LOOP, _downwards),
        ],
        rng,
    )


def _turned(match: re.Match[str], rng: random.Random) -> str:
    """The coordinate counted from the other end: always, or where the other coordinate is odd."""
    space, name, _ = match.groups()
    other = "tn" if name == "tm" else "tm"
    condition = rng.choice(("", f"if ({other} & 1) "))
    return f"{match[0]}\n{space}{condition}{name} = tiles_{name[1]} - 1 - {name};"


def _downwards(match: re.Match[str]) -> str:
    name, end, step = match.groups()
    return f"for (int {name} = ({end} - 1) / {step} * {step}; {name} >= 0; {name} -= {step})"
