"""Hints that leave what is computed as it was: to caches, to the compiler, of registers, and to OpenMP."""

import random
import re

from cudal2.search.mutations.text import another, change_one

_CHOICES = [
    (re.compile(r"\b__ld(?:cg|ca|cs|cv|lu)(?=\()"), ["__ldcg", "__ldca", "__ldcs", "__ldlu"]),
    (re.compile(r"\b__st(?:cg|cs|wt|wb)(?=\()"), ["__stcg", "__stcs", "__stwt", "__stwb"]),
    # In turn: of a tensor map, of an asynchronous copy, of a single load.
    (re.compile(r"(?<=L2_PROMOTION_)(?:NONE|L2_\d+B)"), ["NONE", "L2_64B", "L2_128B", "L2_256B"]),
    (re.compile(r"(?<=cp\.async\.cg\.shared\.global)(?:\.L2::\d+B)?(?= )"), ["", ".L2::64B", ".L2::128B", ".L2::256B"]),
    (
        re.compile(r"(?<=ld\.global)(?:\.L1::\w+)?(?:\.L2::\d+B)?(?=\.(?:v\d\.)?b)"),
        ["", ".L1::no_allocate", ".L1::evict_last", ".L1::no_allocate.L2::128B", ".L1::no_allocate.L2::256B"],
    ),
]
_STORE = re.compile(r"\*(\((?:uint4|uint2|uint32_t|float4|float2)\*\)\([^;=]*\)) = ([^;]*);")
_PREFETCH = re.compile(r"__builtin_prefetch\(([^;]*?)(?:, 0, \d)?\);")
_AHEAD = re.compile(r"(?<=\+ )\d+(?= \*)")


def caching(source: str, mate: str, rng: random.Random) -> str | None:
    """Cache hints: how loads and stores are cached, how much is fetched at once and how far ahead."""
    return change_one(
        source,
        [
            *((pattern, lambda match, values=values: another(values, match[0], rng)) for pattern, values in _CHOICES),
            (_STORE, lambda match: f"{rng.choice(('__stcs', '__stcg'))}({match[1]}, {match[2]});"),
            (_PREFETCH, lambda match: f"__builtin_prefetch({match[1]}, 0, {rng.randrange(4)});"),
            (_PREFETCH, lambda match: _AHEAD.sub(lambda ahead: _distance(int(ahead[0]), rng), match[0])),
        ],
        rng,
    )


def _distance(now: int, rng: random.Random) -> str:
    return str(max(1, rng.choice((now // 2, now * 2, now * 4))))


# The constants are those of CUTLASS (include/cute/arch/copy_sm90_desc.hpp, TMA::CacheHintSm90).
FIRST, LAST, NORMAL = "0x12F0000000000000ull", "0x14F0000000000000ull", "0x1000000000000000ull"
# A load by the copy engine: its instruction, its operands, and what they are.
_LOAD = re.compile(
    r'("cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global[\w.:]*)"(\s*" \[%0\], \[%1[^;]*);"'
    r'(\s*::)([^;]*)(?= : "memory")'
)
_POLICY = re.compile("|".join((FIRST, LAST, NORMAL)))
_PRIORITY = re.compile(r"(?<=L2::evict_)(?:first|last|normal|unchanged)(?=\.b64)")
_FRACTION = re.compile(r"(?<=policy, )[01]\.\d+(?=;)")


def eviction(source: str, mate: str, rng: random.Random) -> str | None:
    """The L2's eviction policy for loads and stores of the copy engine (TMA)."""
    return change_one(
        source,
        [
            (_LOAD, lambda match: _hinted(match, rng.choice((FIRST, LAST)))),
            (_POLICY, lambda match: another([FIRST, LAST, NORMAL], match[0], rng)),
            (_PRIORITY, lambda match: another(["first", "last", "normal"], match[0], rng)),
            (_FRACTION, lambda match: another(["1.0", "0.5", "0.25"], match[0], rng)),
        ],
        rng,
    )


def _hinted(match: re.Match[str], policy: str) -> str | None:
    """The same load with a policy as its last operand; None where it has one."""
    instruction, operands, colons, inputs = match.groups()
    if "cache_hint" in instruction:
        return None
    number = len(re.findall(r'"\w"\(', inputs))
    return f'{instruction}.L2::cache_hint"{operands}, %{number};"{colons}{inputs}, "l"({policy})'


_INLINE = re.compile(r"\b(?:__forceinline__|__noinline__)(?= )")
_STATIC = re.compile(
    r"(?m)^static (?:inline )?(?:__attribute__\(\((?:noinline|always_inline)\)\) )?(?=[\w ]+[ *]\w+\([^;]*\{)"
)
_STATICS = [
    *("static ", "static inline "),
    *(f"static inline __attribute__(({how})) " for how in ("always_inline", "noinline")),
]
_SIGNATURE = re.compile(r"\b(?:(?:void|int|cudaError_t) \w+|gemm_kernel)\([^{;()]*\*[^{;()]*\) \{$", re.MULTILINE)
_VOLATILE = re.compile(r"\basm volatile(?=\()")
_CLOBBER = re.compile(r' ?(?::::?|:) ?"memory"(?=\))')


def qualifiers(source: str, mate: str, rng: random.Random) -> str | None:
    """For the compiler: __restrict__ on pointers, inlining, `volatile` and clobbers of assembler statements."""
    return change_one(
        source,
        [
            (_INLINE, lambda match: another(["__forceinline__", "__noinline__"], match[0], rng)),
            (_STATIC, lambda match: another(_STATICS, match[0], rng)),
            (_SIGNATURE, lambda match: _restrict(match[0])),
            (_VOLATILE, lambda match: "asm"),
            (_CLOBBER, lambda match: ""),
        ],
        rng,
    )


def _restrict(signature: str) -> str:
    """The signature with __restrict__ on all its pointers; without, if it had it."""
    if "__restrict__ " in signature:
        return signature.replace("__restrict__ ", "")
    return re.sub(r"\* ?(?=\w)", "* __restrict__ ", signature)


_SHARE = re.compile(r"(?<=c\.sync\.aligned\.u32 )\d+(?=;)")
_BOUNDS = re.compile(r"__launch_bounds__\(([^(),]+)(?:, ([^(),]+))?\)")


def registers(source: str, mate: str, rng: random.Random) -> str | None:
    """Registers per thread: `setmaxnreg`, and `__launch_bounds__` with the number of blocks per multiprocessor."""
    changes = [(_SHARE, lambda match: _near(int(match[0]), rng)), (_BOUNDS, lambda match: _bounds(match, rng))]
    return change_one(source, changes, rng)


def _near(count: int, rng: random.Random) -> str:
    """A multiple of 8 from 24 to 256, as setmaxnreg wants it."""
    return str(min(256, max(24, count + 8 * rng.choice((-3, -2, -1, 1, 2, 3)))))


def _bounds(match: re.Match[str], rng: random.Random) -> str:
    """The launch bounds with one block more or fewer, with the same, or with none stated."""
    now = int(match[2]) if (match[2] or "").isdecimal() else 1
    blocks = another(["", *(str(count) for count in (now - 1, now, now + 1) if count)], match[2] or "", rng)
    return f"__launch_bounds__({match[1]}{', ' * bool(blocks)}{blocks})"


_SCHEDULE = re.compile(r"(?<= )schedule\([^)]*\)")
_SCHEDULES = [f"schedule({how})" for how in ("static", "static, 1", "dynamic", "dynamic, 2", "guided")]
_SHARED = re.compile(r"(#pragma omp (?:parallel )?for)( collapse\(2\))?")
_INNER = re.compile(r"^ *for \(int (\w+) = 0; [^;]*; \+\+\1\) (?!for|if|\{)", re.MULTILINE)


def openmp(source: str, mate: str, rng: random.Random) -> str | None:
    """OpenMP: how iterations are shared among threads, and which loops are vectorised."""
    if "cudaError_t" in source:
        return None
    return change_one(
        source,
        [
            (_SCHEDULE, lambda match: another(_SCHEDULES, match[0], rng)),
            (_SHARED, lambda match: match[1] if match[2] else f"{match[1]} collapse(2)"),
            (_SHARED, lambda match: _scheduled(source, match, rng)),
            (_INNER, lambda match: f"#pragma omp simd\n{match[0]}"),
        ],
        rng,
    )


def _scheduled(source: str, match: re.Match[str], rng: random.Random) -> str | None:
    """The same pragma with a schedule; None where it has one."""
    rest = source[match.end() :].partition("\n")[0]
    return None if "schedule" in rest else f"{match[0]} {rng.choice(_SCHEDULES)}"
