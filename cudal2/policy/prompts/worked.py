"""What an expert works out of a shape before he chooses a tile, as numbers from 0 to LEVELS - 1: words of a prompt.

A small model cannot divide and round up in its head. How many waves of blocks each tile takes, and how full the last
one is, decides more than the sizes do.
"""

import math

from cudal2.problem import Problem

LEVELS = 96
TILES = (
    *((64, columns) for columns in (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)),
    *((128, columns) for columns in (64, 96, 128, 160, 176, 192, 224, 256)),
    *((256, columns) for columns in (128, 192, 256)),
)
"""Rows and columns of the tiles whose waves are told, in this order."""
FILLS = 6
"""In so many parts the last of several waves is told."""


def worked(problem: Problem, multiprocessors: int) -> list[int]:
    """The sizes, A and B on a scale of half and quarter octaves, then the waves of each tile."""
    m, n, k = problem.m, problem.n, problem.k
    sizes = [*(4 * math.log2(size) for size in (m, n, k)), *(2 * math.log2(size * k) for size in (m, n))]
    tiles = [math.ceil(m / rows) * math.ceil(n / columns) for rows, columns in TILES]
    return [min(round(size), LEVELS - 1) for size in sizes] + [waves(count, multiprocessors) for count in tiles]


def waves(tiles: int, multiprocessors: int) -> int:
    """Up to one wave its share by the quarter octave, 0 to 35; then how many, and how full the last one is."""
    rounds = -(-tiles // multiprocessors)
    if rounds == 1:
        return max(0, 35 + round(4 * math.log2(tiles / multiprocessors)))
    many = rounds - 2 if rounds <= 5 else 4 if rounds <= 8 else 5 if rounds <= 12 else 6 if rounds <= 32 else 7
    last = (tiles - (rounds - 1) * multiprocessors) / multiprocessors
    return 36 + FILLS * many + math.ceil(FILLS * last) - 1
