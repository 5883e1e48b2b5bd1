"""Tiles: their sizes with all other constants of the compiler, and the order in which those of C are computed."""

import random
import re

from cudal2.search.mutations.text import change_one

# constexpr int STAGES = 4, Int<128>, wait<1>(), wait_group.read 2
_NUMBER = re.compile(
    r"(?<=\b[A-Z] = )\d+(?=[,;])|(?<=[A-Z0-9_]{2} = )\d+(?=[,;])|(?<=\bInt<)\d+(?=>)|(?<=[a-z]<)\d(?=>\()"
    r"|(?<=wait_group\.read )\d|(?<=wait_group )\d"
)


def constants(source: str, mate: str, rng: random.Random) -> str | None:
    """Changes a compile-time constant to a near value: tile sizes, stages, groups of tiles, copies in flight."""
    return change_one(source, [(_NUMBER, lambda match: str(rng.choice(near(int(match[0])))))], rng)


def near(value: int) -> list[int]:
    """The values worth trying instead: one step less, one and two steps more (of 8 for multiples of 8 from 16 on,
    else 1), and half, one and a half and two times the value."""
    step = 1 if value < 16 or value % 8 else 8
    others = {value - step, value + step, value + 2 * step, value * 2, value // 2, value * 3 // 2}
    return sorted(other for other in others if other >= 0 and other != value)


_COORDINATE = re.compile(r"^( +)(tm|tn) = ([^;{}]*);$", re.MULTILINE)
_PLACE = re.compile(r"(?<=place_tile\()(\w+), tiles_m, tiles_n(?=,)")
_ORIGIN = re.compile(r"(?<=tile_origin\()blockIdx\.x(?=,)")
# Over the tiles of C or the blocks of one: for (int i0 = 0; i0 < M; i0 += MC)
_LOOP = re.compile(r"for \(int (\w+) = 0; \1 < ([MN]|mc?|nc?); \1 \+= (\w+)\)")


def raster(source: str, mate: str, rng: random.Random) -> str | None:
    """The order in which the tiles of C are computed: from the end, mirrored, or alternately forwards and backwards."""
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
