"""Attention of the last few tokens of each text to all that came before, as Triton kernels.

Flash decoding (https://pytorch.org/blog/flash-decoding/): the places of a text are dealt to several programs, whose
results are then combined, for a batch alone would not fill a GPU. The query heads that share a key head are rows of
one product with it (arXiv:2305.13245). A program reads the places that its text has, so no mask is made.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, STAGES = 64, 3
"""Places that a program reads at once, and how many such blocks are under way; of float32 it is 16 and 2, for a
multiprocessor's shared memory holds no more of heads that are 128 wide."""
PARTS = 8
"""Programs for each text and key head."""


def attend(query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, scale: float) -> Tensor:
    """Of `query` (rows, heads, ahead, width) to `key` and `value` (rows, key heads, places, width), in the form of the
    query.

    A text begins at its place `first` (rows). Its first query stands at its place `last` (rows), the others behind it;
    each sees its own place and those before. A width is a power of two, at least 16.
    """
    rows, heads, ahead, width = query.shape
    shared = key.shape[1]
    queries = heads // shared * ahead
    several = max(16, triton.next_power_of_2(queries))
    query = query.contiguous()
    part = torch.empty(rows * shared, PARTS, several, width, dtype=torch.float32, device=query.device)
    # Of each part the greatest score and the sum of the weights relative to it.
    told = torch.empty(2, rows * shared, PARTS, several, dtype=torch.float32, device=query.device)
    found = torch.empty_like(query)
    shape = {"QUERIES": queries, "SEVERAL": several, "WIDTH": width, "PARTS": PARTS}
    _parts[rows * shared, PARTS](
        query, key, value, first, last, part, told[0], told[1],
        key.stride(0), key.stride(1), shared, ahead, scale * math.log2(math.e),  # the programs take powers of two
        **shape, **_blocks(key.dtype), num_warps=4,
    )  # fmt: skip
    _combined[rows * shared,](part, told[0], told[1], found, **shape, num_warps=4)
    return found


def _blocks(dtype: torch.dtype) -> dict[str, int | str]:
    if dtype.itemsize == 4:
        return {"BLOCK": BLOCK // 4, "num_stages": STAGES - 1, "PRECISION": "tf32x3"}
    return {"BLOCK": BLOCK, "num_stages": STAGES, "PRECISION": "tf32"}


@triton.jit
def _parts(
    query, key, value, first, last, part, most, total,
    row_stride, head_stride, shared, ahead, scale,
    QUERIES: tl.constexpr, SEVERAL: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The softmax, relative to its greatest score, over a part of the places: its sum and that of the values."""
    pair, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = pair // shared, pair % shared
    begin, place = tl.load(first + row), tl.load(last + row)
    blocks = tl.cdiv(place + ahead - begin, BLOCK)
    each = tl.cdiv(blocks, PARTS)
    start = begin + number * each * BLOCK
    end = tl.minimum(start + each * BLOCK, place + ahead)

    n, w, b = tl.arange(0, SEVERAL), tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    q = tl.load(query + pair * QUERIES * WIDTH + n[:, None] * WIDTH + w, mask=n[:, None] < QUERIES, other=0.0)
    sees = place + n % ahead
    base = row * row_stride + head * head_stride
    greatest = tl.full((SEVERAL,), -1e30, tl.float32)
    weights = tl.zeros((SEVERAL,), tl.float32)
    values = tl.zeros((SEVERAL, WIDTH), tl.float32)
    for at in range(start, end, BLOCK):
        j = at + b
        k = tl.load(key + base + j[None, :] * WIDTH + w[:, None], mask=j[None, :] < end, other=0.0)
        score = tl.dot(q, k, input_precision=PRECISION) * scale
        score = tl.where((j[None, :] <= sees[:, None]) & (j[None, :] < end), score, -1e30)
        new = tl.maximum(greatest, tl.max(score, 1))
        share = tl.exp2(score - new[:, None])
        # A query for whom all places so far lie behind it has only the least score, which is no weight.
        share = tl.where(score > -1e29, share, 0.0)
        less = tl.exp2(greatest - new)
        v = tl.load(value + base + j[:, None] * WIDTH + w[None, :], mask=j[:, None] < end, other=0.0)
        values = tl.dot(share.to(v.dtype), v, values * less[:, None], input_precision=PRECISION)
        weights = weights * less + tl.sum(share, 1)
        greatest = new
    here = pair * PARTS + number
    tl.store(most + here * SEVERAL + n, greatest)
    tl.store(total + here * SEVERAL + n, weights)
    tl.store(part + here * SEVERAL * WIDTH + n[:, None] * WIDTH + w, values)


@triton.jit
def _combined(
    part, most, total, found,
    QUERIES: tl.constexpr, SEVERAL: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    n, w = tl.arange(0, SEVERAL), tl.arange(0, WIDTH)
    greatest = tl.full((SEVERAL,), -1e30, tl.float32)
    weights = tl.zeros((SEVERAL,), tl.float32)
    values = tl.zeros((SEVERAL, WIDTH), tl.float32)
    for number in range(PARTS):
        here = pair * PARTS + number
        its = tl.load(most + here * SEVERAL + n)
        new = tl.maximum(greatest, its)
        less, share = tl.exp2(greatest - new), tl.exp2(its - new)
        weights = weights * less + tl.load(total + here * SEVERAL + n) * share
        values = values * less[:, None]
        values += tl.load(part + here * SEVERAL * WIDTH + n[:, None] * WIDTH + w) * share[:, None]
        greatest = new
    values /= weights[:, None]
    at = found + pair * QUERIES * WIDTH + n[:, None] * WIDTH + w
    tl.store(at, values.to(found.dtype.element_ty), mask=n[:, None] < QUERIES)
