"""Which multiplication is asked for: shape, layout and accumulator; the shape lists users name."""

import random
from collections.abc import Iterable
from itertools import product
from typing import Literal, get_args

import msgspec

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
"""(M, N, K) of the linear layers of published models, as their configurations state them."""


class Problem(msgspec.Struct, frozen=True, order=True):
    """C[M,N] = A[M,K] · B in half precision; all matrices dense and row-major.

    `layout` "nn" stores B as K×N, "tn" as N×K (the weight of an `nn.Linear`). The letters are BLAS's `transa` and
    `transb`, as cuBLAS is called for row-major matrices: its matrices are column-major, so it computes Cᵀ = Bᵀ·Aᵀ, its
    first operand is B, and the first letter says whether B is transposed. A never is.
    `accumulate` is the precision the sum must have: "f32" or "f16".
    """

    m: int
    n: int
    k: int
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            size = getattr(self, name)
            if size <= 0 or size % 8:
                raise ValueError(f"{name}={size}: sizes are positive multiples of 8")
            if size > 1 << 17:
                raise ValueError(f"{name}={size}: sizes are at most {1 << 17}")
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout {self.layout!r}: choose nn or tn")
        if self.accumulate not in get_args(Accumulate):
            raise ValueError(f"accumulate {self.accumulate!r}: choose f32 or f16")

    @property
    def mnk(self) -> str:
        """The shape as users write it: `256_384_512`."""
        return f"{self.m}_{self.n}_{self.k}"

    @property
    def name(self) -> str:
        """The whole problem in one word: `256_384_512_tn_f32`."""
        return f"{self.mnk}_{self.layout}_{self.accumulate}"

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
        """Bytes of A, B and C, each touched once."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Stored shape of B: (K, N) for "nn", (N, K) for "tn"."""
        return (self.k, self.n) if self.layout == "nn" else (self.n, self.k)


def parse(text: str, layout: Layout = "tn", accumulate: Accumulate = "f32") -> Problem:
    """`256_384_512`, `256_384_512_nn_f16` or a name in LLM_SHAPES, as a Problem.

    Raises ValueError naming the accepted forms.
    """
    if text in LLM_SHAPES:
        return Problem(*LLM_SHAPES[text], layout, accumulate)
    sizes, rest = text.split("_")[:3], text.split("_")[3:]
    if len(sizes) != 3 or not all(size.isdecimal() for size in sizes) or len(rest) not in (0, 2):
        raise ValueError(
            f"problem {text!r}: write M_N_K such as 256_384_512, M_N_K_layout_accumulate such as "
            f"256_384_512_nn_f16, or one of {', '.join(LLM_SHAPES)}"
        )
    m, n, k = map(int, sizes)
    layout, accumulate = rest or (layout, accumulate)  # type: ignore[assignment]
    return Problem(m, n, k, layout, accumulate)


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
