"""The number types that matrices may hold; a new one is one record here."""

import msgspec


class DType(msgspec.Struct, frozen=True):
    """A binary floating-point type of 16 bits.

    `digits` counts those of the significand, the hidden one included: every integer up to 2^`digits` is exact, and
    rounding moves a value by 2^-`digits` of itself at most. `least` and `greatest` are the exponents of the smallest
    and the largest normal numbers. `torch` is its name in PyTorch. `cuda` and `cpu` are its C types, `header` the CUDA
    toolkit's header that declares it; a processor's kernels may be given the bare bits, where a compiler lacks the
    type. `blas` is its name in cuBLAS, `letter` that in the names of BLAS's functions, `ptx` in PTX's instructions, and
    `numpy` where NumPy (with ml_dtypes) has it. `accumulators` are the precisions that a sum of its products may be
    asked for in.
    """

    name: str
    digits: int
    least: int
    greatest: int
    torch: str
    numpy: str
    cuda: str
    header: str
    cpu: str
    blas: str
    letter: str
    ptx: str
    accumulators: tuple[str, ...]

    @property
    def unit(self) -> float:
        """By how much of itself rounding moves a value at most."""
        return 2.0**-self.digits

    @property
    def integers(self) -> int:
        """Up to here, inclusive, every integer is exact."""
        return 1 << self.digits

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2 - 2.0 ** (1 - self.digits)) * 2.0**self.greatest

    @property
    def smallest_step(self) -> float:
        """The distance between numbers about zero."""
        return 2.0 ** (self.least + 1 - self.digits)

    @property
    def exponent_at(self) -> int:
        """Which bit is the lowest of the exponent."""
        return self.digits - 1

    @property
    def infinity(self) -> int:
        """The bits of +Inf, which are also the mask of the exponent."""
        return (0x7FFF >> self.exponent_at) << self.exponent_at

    @property
    def nan(self) -> int:
        """The bits of the quiet NaN that PyTorch writes for `math.nan`."""
        return self.infinity | 1 << (self.digits - 2)


FP16 = DType(
    name="fp16",
    digits=11,
    least=-14,
    greatest=15,
    torch="float16",
    numpy="float16",
    cuda="__half",
    header="cuda_fp16.h",
    cpu="_Float16",
    blas="CUDA_R_16F",
    letter="H",
    ptx="f16",
    accumulators=("f32", "f16"),
)
BF16 = DType(
    name="bf16",
    digits=8,
    least=-126,
    greatest=127,
    torch="bfloat16",
    numpy="bfloat16",
    cuda="__nv_bfloat16",
    header="cuda_bf16.h",
    # GCC knows __bf16 on x86 from version 13 on only: a kernel widens these bits by a shift.
    cpu="unsigned short",
    blas="CUDA_R_16BF",
    letter="T",
    ptx="bf16",
    accumulators=("f32",),
)

DTYPES = {dtype.name: dtype for dtype in (FP16, BF16)}


def find(name: str) -> DType:
    """The type of that name; ValueError lists the known ones."""
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not known; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]
