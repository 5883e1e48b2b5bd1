"""Which multiplication is asked for: shape, layout, accumulator, number type and epilogue; the lists users name."""

import math
import random
from collections.abc import Iterable
from itertools import product
from typing import Literal, get_args

import msgspec

from cudal2 import dtype as dtypes
from cudal2 import llm
from cudal2.dtype import DType

Layout = Literal["nn", "tn"]
Accumulate = Literal["f32", "f16"]

GRID_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
"""Every M, N and K of the 1,000-shape evaluation grid (CUDA-L2, arXiv:2512.02551)."""

LLM_SHAPES = {
    # Prefill of 2048 tokens: M tokens, N outputs, K inputs of each linear layer.
    "qwen2.5-0.5b.qkv": (2048, 1152, 896),
    "qwen2.5-0.5b.up": (2048, 4864, 896),
    "qwen2.5-0.5b.down": (2048, 896, 4864),
    "llama-3-8b.qkv": (2048, 6144, 4096),
    "llama-3-8b.out": (2048, 4096, 4096),
    "llama-3-8b.up": (2048, 14336, 4096),
    "llama-3-8b.down": (2048, 4096, 14336),
    "llama-3-70b.qkv": (2048, 10240, 8192),
    "llama-3-70b.up": (2048, 28672, 8192),
    "llama-3-70b.down": (2048, 8192, 28672),
}
"""(M, N, K) of layers by the names that the first results were published under; `cudal2.llm` has those of today."""

LARGEST = {"m": 1 << 17, "n": 1 << 19, "k": 1 << 17}
"""The largest sizes; N is also that of a vocabulary."""


class Problem(msgspec.Struct, frozen=True, order=True):
    """C[M,N] = epilogue(A[M,K] · B) in a type of 16 bits; all matrices dense and row-major.

    `layout` "nn" stores B as K×N, "tn" as N×K (the weight of an `nn.Linear`). The letters are BLAS's `transa` and
    `transb`, as cuBLAS is called for row-major matrices: its matrices are column-major, so it computes Cᵀ = Bᵀ·Aᵀ, its
    first operand is B, and the first letter says whether B is transposed. A never is.
    `accumulate` is the precision the sum must have: "f32" or "f16". `dtype` names the type of all operands
    (`cudal2.dtype`), `epilogue` what follows the product (`cudal2.operators`).
    """

    m: int
    n: int
    k: int
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"
    dtype: str = "fp16"
    epilogue: str = "none"

    def __post_init__(self) -> None:
        for name, unit in (("m", 1), ("n", 8), ("k", 8)):
            size = getattr(self, name)
            if size <= 0 or size % unit:
                raise ValueError(f"{name}={size}: M is positive, N and K are positive multiples of 8")
            if size > LARGEST[name]:
                raise ValueError(f"{name}={size}: at most {LARGEST[name]}")
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout {self.layout!r}: choose nn or tn")
        if self.accumulate not in get_args(Accumulate):
            raise ValueError(f"accumulate {self.accumulate!r}: choose f32 or f16")
        if self.accumulate not in self.type.accumulators:
            raise ValueError(f"accumulate {self.accumulate}: {self.dtype} has {', '.join(self.type.accumulators)}")
        if not self.epilogue.isidentifier():
            raise ValueError(f"epilogue {self.epilogue!r}: write none, or the name of an operator")

    @property
    def type(self) -> DType:
        """The record of its dtype."""
        return dtypes.find(self.dtype)

    @property
    def mnk(self) -> str:
        """The shape as users write it: `256_384_512`."""
        return f"{self.m}_{self.n}_{self.k}"

    @property
    def kind(self) -> tuple[str, ...]:
        """All but the shape: layout and accumulator, and where they are not fp16 and none its dtype and epilogue."""
        more = (self.dtype, self.epilogue) if self.epilogue != "none" else (self.dtype,) * (self.dtype != "fp16")
        return (self.layout, self.accumulate, *more)

    @property
    def name(self) -> str:
        """The whole problem in one word: `256_384_512_tn_f32`, or `7_384_512_tn_f32_bf16_bias`."""
        return "_".join((self.mnk, *self.kind))

    @property
    def flop(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.m * self.n * self.k

    @property
    def decade(self) -> int:
        """Of its work: 8 is 1e8 to 1e9 FLOP."""
        return len(str(self.flop)) - 1

    @property
    def bytes(self) -> int:
        """Bytes of A, B and C, each touched once; `operators.nbytes` counts what an epilogue is given, too."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Stored shape of B: (K, N) for "nn", (N, K) for "tn"."""
        return (self.k, self.n) if self.layout == "nn" else (self.n, self.k)


def parse(
    text: str,
    layout: Layout = "tn",
    accumulate: Accumulate = "f32",
    dtype: str = "fp16",
    epilogue: str = "none",
) -> Problem:
    """`256_384_512`, a problem's whole name such as `256_384_512_nn_f16` or `7_384_512_tn_f32_bf16_bias`, a layer of a
    model for a number of rows such as `qwen2.5-7b.qkv@8` or `qwen2.5-7b.qkv@8_bf16`, or a name in LLM_SHAPES, as a
    Problem; what the text leaves out is as the other arguments say. A layer with a bias has the epilogue `bias` unless
    another one is asked for.

    Raises ValueError naming the accepted forms.
    """
    if text in LLM_SHAPES:
        return Problem(*LLM_SHAPES[text], layout, accumulate, dtype, epilogue)
    layer_of, at, rest = text.rpartition("@")
    if at:
        rows, _, stated = rest.partition("_")
        m, layer = llm.find(f"{layer_of}@{rows}")
        epilogue = "bias" if layer.bias and epilogue == "none" else epilogue
        return Problem(m, layer.n, layer.k, layout, accumulate, stated or dtype, epilogue)
    sizes, kind = text.split("_")[:3], text.split("_", 6)[3:]
    if len(sizes) != 3 or not all(size.isdecimal() for size in sizes) or len(kind) == 1:
        raise ValueError(
            f"problem {text!r}: write M_N_K such as 256_384_512, M_N_K_layout_accumulate such as "
            f"256_384_512_nn_f16, with _dtype and _epilogue behind it as in 7_384_512_tn_f32_bf16_bias, a layer of a "
            f"model such as qwen2.5-7b.qkv@8 (data/shapes/llm.toml lists the models), or one of {', '.join(LLM_SHAPES)}"
        )
    m, n, k = map(int, sizes)
    if kind:  # a name says all: what it leaves out is fp16 and none
        layout, accumulate, *more = kind  # type: ignore[assignment]
        dtype, epilogue = (*more, *("fp16", "none")[len(more) :])
    return Problem(m, n, k, layout, accumulate, dtype, epilogue)


def grid(layout: Layout = "tn", accumulate: Accumulate = "f32") -> list[Problem]:
    """The 1,000 shapes GRID_SIZES³, smallest work first."""
    shapes = [Problem(m, n, k, layout, accumulate) for m, n, k in product(GRID_SIZES, repeat=3)]
    return sorted(shapes, key=lambda p: (p.flop, p))


def sample(count: int, seed: int, layout: Layout = "tn", accumulate: Accumulate = "f32") -> list[Problem]:
    """About `count` shapes of the grid, at random but from each decade of work its share, at least two of each.

    The same for a seed whatever the layout and accumulator; smallest work first.
    """
    rng = random.Random(seed)
    decades: dict[int, list[Problem]] = {}
    for problem in grid(layout, accumulate):
        decades.setdefault(problem.decade, []).append(problem)
    chosen = []
    for shapes in decades.values():
        share = max(2, round(count * len(shapes) / len(GRID_SIZES) ** 3))
        chosen += rng.sample(shapes, min(share, len(shapes)))
    return sorted(chosen, key=lambda p: (p.flop, p))


def off_lattice(count: int, seed: int) -> list[Problem]:
    """`count` shapes that no usual tile divides: random multiples of 8 for N and K that are none of 64, any M.

    Every size is drawn log-uniformly: M from 1 to 8192, N and K from 512 to 16384. They come in the order in which they
    are drawn: a greater count adds to them.
    """
    rng, found = random.Random(f"off-lattice {seed}"), dict[str, Problem]()
    while len(found) < count:
        m = int(math.exp(rng.uniform(0, math.log(8193))))
        n, k = (8 * round(math.exp(rng.uniform(math.log(64), math.log(2048)))) for _ in range(2))
        if n % 64 and k % 64:
            problem = Problem(m, n, k)
            found.setdefault(problem.mnk, problem)
    return list(found.values())


def stratified(problems: Iterable[Problem], seed: int = 0) -> list[Problem]:
    """These problems, each once, in an order whose every beginning is a fair sample of them all.

    Of each decade of work a beginning holds its share, to within two, drawn at random. So what is stopped early, or has
    come half way, says something about the rest. The same for a seed, in whatever order they are given.
    """
    rng = random.Random(seed)
    decades: dict[int, list[Problem]] = {}
    for problem in sorted(set(problems)):
        decades.setdefault(problem.decade, []).append(problem)
    placed = []
    for shapes in decades.values():
        rng.shuffle(shapes)
        placed += [((place + 0.5) / len(shapes), problem) for place, problem in enumerate(shapes)]
    return [problem for _, problem in sorted(placed)]
