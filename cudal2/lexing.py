"""C++ as far as it can be read without a parser: tokens, comments, directives, braces, and characters that nobody sees.

What reads a source here (the check of its headers, the search for a kernel in a completion, its form) reads it as the
compiler does, so that no way of writing something hides it from one of them.
"""

import re
from collections import Counter
from functools import lru_cache

# What C++ reads before it looks for directives: literals, words, numbers (1'000), comments. A quote that begins is a
# token whatever follows: if it failed at the end of the text, the next one would be read as far again.
TOKEN = re.compile(
    r"""(?P<raw>(?:u8|[uUL])?R")|[A-Za-z_$][\w$]*|\.?\d(?:'?[\w.])*"""
    r"""|"(?:\\.|[^"\\\n])*+(?:"|\\?$)|'(?:\\.|[^'\\\n])*+(?:'|\\?$)"""
    r"""|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))""",
    re.DOTALL | re.MULTILINE,
)
# Characters without a glyph: the soft hyphen, zero-width spaces and joiners, marks of direction, the byte order mark.
_UNSEEN = "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_BLANKS = "\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ODD = re.compile(f"[{_UNSEEN}{_BLANKS}]")
_ONE_UNSEEN = re.compile(f"[{_UNSEEN}]")
# Odd characters may stand before the `#`: compilers skip a byte order mark.
DIRECTIVE = re.compile(rf"^[ \t\v\f{_UNSEEN}{_BLANKS}]*(?:#|%:)[ \t\v\f]*(\w+)\b(.*)$", re.MULTILINE)
# All tokens, as the compiler tells them apart; `skip` is what it does not read. A raw string that never ends is one
# token, lest the next be sought as far again.
_ALL = re.compile(
    r"""(?P<skip>[ \t\v\f\r]+|//[^\n]*|/\*.*?(?:\*/|\Z))|\n"""
    r"""|(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\((?:.*?\)(?P=mark)"|.*\S|)|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?"""
    r"""|[A-Za-z_$][\w$]*|\.?\d(?:[eEpP][+-]|'?[\w.])*|'(?:\\.|[^'\\\n])*'?"""
    r"""|<<<|>>>|<<=|>>=|<=>|->\*|\.\.\.|::|->|\+\+|--|<<|>>|&&|\|\||##|[-+*/%&|^=!<>]=|.""",
    re.DOTALL,
)
_FUNCTIONS = frozenset("__device__ __host__ __global__ __forceinline__ __inline__ inline".split())
BEGIN, END = "\n#", "\n"
"""What stands around a directive."""
_BRANCH = re.compile(r"^[ \t\v\f]*(?:#|%:)[ \t\v\f]*(if|ifdef|ifndef|elif|else|endif)\b|([{}])", re.MULTILINE)


def joined(source: str) -> str:
    """The source as C++ reads it: a line, be it a directive or a comment, may be continued on the next."""
    return re.sub(r"\\[ \t\v\f]*\n", "", lines(source))


def lines(text: str) -> str:
    """The text with a line feed at the end of each line. To GCC a carriage return ends one as well."""
    return re.sub(r"\r\n?", "\n", text)


def visible(source: str) -> str:
    """The source with plain blanks and line ends in place of unusual ones, and without characters that nobody sees.

    Those in comments and literals stay: they do no harm there. No line moves.
    """
    source = lines(source)
    if not _ODD.search(source):
        return source
    pieces, done = [], 0
    for token in TOKEN.finditer(source):
        if token["comment"] or token[0][0] in "\"'":
            pieces += [_seen(source[done : token.start()]), token[0]]
            done = token.end()
    return "".join([*pieces, _seen(source[done:])])


def _seen(text: str) -> str:
    return _ODD.sub(" ", _ONE_UNSEEN.sub("", text))


def blanked(text: str) -> str:
    """The text with a blank for each odd character, so that all others keep their places."""
    return _ODD.sub(" ", text)


def comments(text: str) -> list[tuple[int, int]]:
    """Where comments begin and end, but for one that never ends and for what follows the `:` of an address."""
    all_comments = [token for token in TOKEN.finditer(text) if token["comment"]]
    return [
        token.span()
        for token in all_comments
        if not _is_open(token[0])
        and (token[0].startswith("/*") or text[max(token.start() - 1, 0) : token.start()] != ":")
    ]


@lru_cache(maxsize=8)
def masked(text: str) -> str:
    """The text with blanks in place of comments and literals; each line keeps its length."""
    return TOKEN.sub(lambda token: re.sub(r"[^\n]", " ", token[0]) if _is_text(token) else token[0], text)


def _is_open(comment: str) -> bool:
    return comment.startswith("/*") and not (len(comment) >= 4 and comment.endswith("*/"))


def _is_text(token: re.Match[str]) -> bool:
    return bool(token["comment"]) or token[0][0] in "\"'"


def open_braces(text: str) -> int:
    """How many braces are open at the end of the text; negative where one closes that was never opened.

    Of the branches of an `#if` the last counts, since each may open the same brace.
    """
    depth, lowest = 0, 0
    before: list[int] = []
    for branch, brace in _BRANCH.findall(masked(text)):
        if brace:
            depth += 1 if brace == "{" else -1
            lowest = min(lowest, depth)
        elif branch.startswith("if"):
            before.append(depth)
        elif before:
            if branch == "endif":
                before.pop()
            else:
                depth = before[-1]
    return lowest if lowest < 0 else depth


def whole(text: str) -> bool:
    """Whether comments and braces of a source close, and none closes that was never opened."""
    inside = any(token["comment"] and _is_open(token[0]) for token in TOKEN.finditer(text))
    return not inside and "*/" not in masked(text) and open_braces(text) == 0


def defines(text: str, name: str) -> bool:
    """Whether the text defines that function: `name(…)` and a body, not a call or a declaration alone."""
    code = DIRECTIVE.sub("", TOKEN.sub(lambda token: " " if _is_text(token) else token[0], joined(text)))
    outside: list[str] = []
    depth = 0
    for piece in re.split(r"([()])", code):
        if piece == ")":
            depth = max(depth - 1, 0)
        if depth == 0:
            outside.append(piece)
        if piece == "(":
            depth += 1
    # Without what stood in parentheses a definition reads `hgemm() {`; attributes may stand between.
    return re.search(rf"\b{name}\s*\(\)[^;{{}},=]{{0,200}}\{{", "".join(outside)) is not None


def tokens(source: str) -> list[str]:
    """What the compiler reads, without comments, blanks, and line breaks but those that end a directive.

    `using fp16 = __half;` is nothing, and the two names are one. `static` is left out before a function: a source is
    the only one of its program.
    """
    return _without_short_types(_all_tokens(source))


def _all_tokens(source: str) -> list[str]:
    read: list[str] = []
    directive, blank = False, True
    for match in _ALL.finditer(re.sub(r"\\[ \t\v\f\r]*\n", "", source) + END):
        token = match[0]
        if match["skip"]:
            blank = True
            continue
        if token == END:
            if directive:
                read.append(token)
            directive, blank = False, True
            continue
        if token == "#" and not directive:
            directive, token = True, BEGIN
        elif directive and token == "(" and not blank and read[-2:-1] == ["define"]:
            token = "#("  # a macro with arguments; behind a blank it would be a macro's text
        if read and read[-1] == "static" and token in _FUNCTIONS:
            read.pop()
        read.append(token)
        blank = False
    return read


def _without_short_types(tokens: list[str]) -> list[str]:
    aliases = [at for at, token in enumerate(tokens) if token == "using" and tokens[at + 2 : at + 5 : 2] == ["=", ";"]]
    named = Counter(tokens[at + 1] for at in aliases)
    text: list[str] = []
    short: dict[str, str] = {}
    done = 0
    for at in aliases:
        name, meant = tokens[at + 1 : at + 4 : 2]
        if named[name] == 1:  # one that has several meanings is left alone
            short[name] = short.get(meant, meant)
            text += tokens[done:at]
            done = at + 5
    return [short.get(token, token) for token in text + tokens[done:]]
