"""A plain persistent matmul in Triton: what `wall.py` compares with. Needs Triton; compiles for one GPU of Hopper's."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from cudal2.problem import Problem

TILES = (
    *((16, 32, 256, 4, 4), (16, 64, 128, 4, 6), (16, 128, 128, 4, 4)),
    *((64, 32, 128, 4, 5), (64, 64, 128, 4, 4), (64, 128, 64, 4, 5)),
    *((128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3)),
)
"""Rows, columns and depth of a tile, warps, and stages of the pipeline."""


@triton.jit
def persistent(
    a, b, bias, c, M, N, K, BIASED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):
    """C [M,N] = A [M,K] · B [N,K] transposed, through descriptors. A block takes one tile after another, down bands
    of eight tiles, so that blocks at work share rows of A and of B."""
    down, across = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    for tile in range(tl.program_id(0), down * across, tl.num_programs(0)):
        band = tile // (8 * across) * 8
        height, inside = min(down - band, 8), tile - band * across
        row, column = (band + inside % height) * ROWS, inside // height * COLUMNS
        sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for k in range(0, K, DEPTH):
            sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
        if BIASED:
            at = column + tl.arange(0, COLUMNS)
            sums += tl.load(bias + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
        c.store([row, column], sums.to(c.dtype))


def calls_of(problem: Problem) -> list[Callable[..., None]]:
    """What enqueues a product of A, B, perhaps a bias, and C, with each tile that suits so many rows."""
    able = [tile for tile in TILES if (tile[0] <= 64 if problem.m <= 64 else tile[0] >= 64)]
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    return [call_of(problem, tile, multiprocessors) for tile in able]


def call_of(problem: Problem, tile: tuple[int, ...], multiprocessors: int) -> Callable[..., None]:
    rows, columns, depth, warps, stages = tile
    blocks = min(multiprocessors, -(-problem.m // rows) * -(-problem.n // columns))

    def call(a: torch.Tensor, b: torch.Tensor, *more: torch.Tensor) -> None:
        boxes = (a, (rows, depth)), (b, (columns, depth)), (more[-1], (rows, columns))
        left, right, out = (TensorDescriptor.from_tensor(matrix, list(box)) for matrix, box in boxes)
        shape = problem.m, problem.n, problem.k, len(more) > 1, rows, columns, depth
        persistent[(blocks,)](left, right, more[0], out, *shape, num_warps=warps, num_stages=stages)

    return call
