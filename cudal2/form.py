"""What of a source is built: a form in which sources are alike that the same machine code is made of.

Comments, with the plan that a source may begin with, blanks, line breaks, the names that a source gives to its own
things, and its short names for types say nothing to the compiler. Policies vary them, so that one kernel has many
texts. Sources of one form are one kernel; of different forms they may still be one, for this is no compiler. A name is
replaced only where the source surely declares it: to take one kernel for another would lose one, while a name too many
that stays only costs a measurement.

C++ is not parsed. A name counts as declared where what stands beside it says so, and as the source's own if it is
declared and means nothing outside. Scopes are followed as far as brackets show them; a name whose declaration is not
found where it is used has one number in the whole function.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from cudal2.contract import ENTRY, SIZER
from cudal2.lexing import BEGIN, END, tokens
from cudal2.records import Edit, digest, to_json

SAME = {"half": "__half", "half2": "__half2", "nv_bfloat16": "__nv_bfloat16", "nv_bfloat162": "__nv_bfloat162"}
"""Names of one type in CUDA's headers."""
NAME = re.compile(r"[A-Za-z_$][\w$]*")
IN_TEXT = re.compile(r"(?<![\w$.])[A-Za-z_$][\w$]*(?![\w$.])")
"""A name in a string, not a part of an instruction such as mma.sync."""
SHOUTED = re.compile(r"[A-Z][A-Z0-9_]+")
"""A macro more often than a type."""
TYPE = re.compile(r"(?:__)?(?:half2?|(?:nv_)?bfloat16\d?)|\w+_t|u?(?:char|short|int|long|float|double)\d?")
NUMBERS = frozenset("bool char const double float int long short signed unsigned void volatile".split())
WORDS = NUMBERS | {"auto", "__restrict__", "__restrict"}
"""Words that stand right before a name only where it is declared."""
KEYWORDS = WORDS | frozenset(
    "alignas alignof and asm break case catch class concept const_cast constexpr continue decltype default delete do "
    "dynamic_cast else enum explicit extern false final for friend goto if inline mutable namespace new noexcept not "
    "nullptr operator or override private protected public register reinterpret_cast requires return sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union "
    "using virtual while".split()
)
FOREIGN = frozenset([ENTRY, SIZER, *"threadIdx blockIdx blockDim gridDim warpSize defined once omp unroll".split()])
ENDS = frozenset("= ; , ) [ ( { : >".split())
"""What may follow the name in a declaration."""
HEADS = frozenset("for if while switch catch constexpr ]".split())
"""What stands before a parenthesis whose names are known in it and in the statement behind it; `]` is a lambda's."""
NO, OWN, PERHAPS, SURELY = range(4)
"""Whether a name is declared at a place: no; no, but the source must declare it somewhere; unless it is known; yes."""


@lru_cache(maxsize=8192)
def form(source: str) -> str:
    """A digest that sources share where they differ only in comments, blanks, own names and short names of types."""
    return digest("\n".join(normal(source)))


def kernel_form(source: str, edit: Edit | None = None) -> str:
    """The form of what runs: of the source and, where there is one, the edit of its compiled code."""
    return form(source) if edit is None else digest(form(source), to_json(edit))


def normal(source: str) -> list[str]:
    """The tokens of a source, with numbers in the place of its own names."""
    words = tokens(source)
    own = numbered(words)
    return [own.get(place) or SAME.get(token, token) for place, token in enumerate(words)]


class Scope(msgspec.Struct):
    """The names declared in it. A scope of a statement ends with it, one of a block with its bracket."""

    depth: int
    block: bool
    closed: bool = False
    names: list[str] = []


class Known:
    """What each name means now: the number of its declaration in the innermost scope that has one."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = [Scope(0, True)]
        self._numbers: dict[str, list[int]] = {}

    def get(self, name: str) -> int | None:
        numbers = self._numbers.get(name)
        return numbers[-1] if numbers else None

    def declare(self, name: str, number: int) -> None:
        self.scopes[-1].names.append(name)
        self._numbers.setdefault(name, []).append(number)

    def leave(self) -> None:
        for name in self.scopes.pop().names:
            self._numbers[name].pop()


def numbered(tokens: Sequence[str]) -> dict[int, str]:
    """For each place with an own name what stands for it: the number of its declaration, in the order of appearance."""
    padded = ["", "", "", *tokens, "", ""]
    types = {after for before, after in pairwise(tokens) if before in ("struct", "class", "union", "typename")}
    attributes = _attributes(padded)
    kinds = [_kind(padded, at, types, attributes) if _is_name(token) else NO for at, token in enumerate(tokens, 3)]
    places = _places(tokens)
    own = _own(padded, kinds, places)
    bound = _bound(tokens, kinds, places, {name for name, local in own.items() if local})
    flat = {(places[at][0], tokens[at]) for at, number in bound.items() if number is None}
    counts: Counter[int] = Counter()
    given: dict[tuple[int, str, int], str] = {}
    numbers = {}
    for at, token in enumerate(tokens):
        if token in own:
            part = places[at][0] if own[token] else 0
            number = bound.get(at) if (part, token) not in flat else None
            key = (part, token, number or 0)
            if key not in given:
                counts[part] += 1
                given[key] = f"@{counts[part]}" if part else f"@@{counts[part]}"
            numbers[at] = given[key]
    return numbers


@lru_cache(maxsize=1 << 14)
def _is_type(token: str) -> bool:
    return TYPE.fullmatch(token) is not None


@lru_cache(maxsize=1 << 14)
def _is_name(token: str) -> bool:
    return NAME.fullmatch(token) is not None and token not in KEYWORDS


def _places(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """For each token the part of the source that it is in, a function or another declaration, and how many brackets are
    open around it there. A directive is a part of its own, with a negative number."""
    places = []
    part, depth, directives, directive = 1, 0, 0, False
    for token in tokens:
        if token == BEGIN:
            directives, directive = directives - 1, True
        if directive:
            places.append((directives, 0))
            directive = token != END
            continue
        if token in (")", "]", "}"):
            depth = max(depth - 1, 0)
        places.append((part, depth))
        if token in ("(", "[", "{"):
            depth += 1
        if depth == 0 and token in (";", "}"):
            part += 1
    return places


def _own(padded: Sequence[str], kinds: Sequence[int], places: Sequence[tuple[int, int]]) -> dict[str, bool]:
    """The names that the source declares and that mean nothing outside it; True where each part that has the name
    declares it for itself alone."""
    inside: dict[str, set[int]] = {}
    used: dict[str, set[int]] = {}
    declared, outside, called, may_be_called, not_own = set[str](), set[str](), set[str](), set[str](), set(FOREIGN)
    for at, (kind, (part, depth)) in enumerate(zip(kinds, places), 3):
        before, name, after = padded[at - 1 : at + 2]
        if name[-1] == '"':
            not_own.update(IN_TEXT.findall(name))
        elif name in ("#", "##"):
            return {}  # names are pasted together, or become text
        elif _is_name(name):
            used.setdefault(name, set()).add(part)
            if before in (".", "->", "::") or after == "::":
                not_own.add(name)
            if kind:
                declared.add(name)
            if kind > OWN:
                inside.setdefault(name, set()).add(part)
                if not depth:
                    outside.add(name)
                if after in ("(", "#(") or not (before in NUMBERS or _is_type(before)):
                    may_be_called.add(name)
            elif after == "(":
                called.add(name)
    own = declared - not_own - (called - may_be_called)
    return {name: name not in outside and used[name] == inside.get(name) for name in own if not name.startswith("__")}


def _bound(
    tokens: Sequence[str], kinds: Sequence[int], places: Sequence[tuple[int, int]], local: set[str]
) -> dict[int, int | None]:
    """For each place with a local name the number of the declaration that it refers to; None where none is found."""
    declarations: dict[int, int | None] = {}
    known, now = Known(), 0
    for at, (token, (part, depth)) in enumerate(zip(tokens, places)):
        if part < 0:
            continue
        if part != now:
            now, known = part, Known()
        scopes = known.scopes
        if token == "{":
            scopes.append(Scope(depth, True))
        elif token == "(" and tokens[at - 1] in HEADS:
            scopes.append(Scope(depth, False))
        elif token == ")" and not scopes[-1].block and scopes[-1].depth == depth:
            scopes[-1].closed = True
        elif token in ("}", ";"):
            while token == "}" and len(scopes) > 1 and scopes[-1].depth >= depth and not scopes[-1].block:
                known.leave()
            if token == "}" and len(scopes) > 1:
                known.leave()
            while scopes[-1].closed and scopes[-1].depth >= depth and tokens[at + 1 : at + 2] != ["else"]:
                known.leave()
        elif token in local:
            if kinds[at] == SURELY or (kinds[at] == PERHAPS and known.get(token) is None):
                known.declare(token, at + 1)
            declarations[at] = known.get(token)
    return declarations


def _kind(tokens: Sequence[str], at: int, types: set[str], attributes: set[int]) -> int:
    """What this place says of the name that stands there."""
    first, earlier, before, name, after = tokens[at - 3 : at + 2]
    if before in ("define", "struct", "class", "enum", "union", "typename", "namespace"):
        return NO if earlier == "using" or (before == "define" and earlier != BEGIN) else SURELY
    if before == "using":
        return SURELY if after == "=" else NO
    if before == "," and after in ("=", "["):
        return PERHAPS
    typed = earlier in WORDS or earlier in types or _is_type(earlier)
    if before in ("*", "&", "&&") and after == ")":  # float (&tile)[8]
        return SURELY if earlier == "(" and (first in WORDS or _is_type(first)) else SURELY if typed else NO
    sure = after in ENDS and (
        (before in ("*", "&", "&&") and after not in ("(", ">") and typed)
        or (before == ">" and after == "=")
        or (before == ")" and after == "(" and at - 1 in attributes)
        or before in WORDS
        or (_is_name(before) and not SHOUTED.fullmatch(before))
    )
    if sure:
        return SURELY
    # Headers declare no arrays.
    return OWN if after == "[" and before not in ("new", ".", "->", "::") and not _is_type(name) else NO


def _attributes(tokens: Sequence[str]) -> set[int]:
    """Where a parenthesis closes that is an attribute's, such as `__launch_bounds__(…)`."""
    found, opened = set[int](), list[int]()
    for at, token in enumerate(tokens):
        if token == "(":
            opened.append(at)
        elif token == ")" and opened:
            before = tokens[opened.pop() - 1]
            if before.startswith("__") and before.endswith("__"):
                found.add(at)
    return found
