"""A C++ source as the tokens that its compiler reads."""

import re
from collections import Counter

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\v\f\r]+|//[^\n]*|/\*.*?(?:\*/|\Z))|\n"""
    r"""|(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?"""
    r"""|[A-Za-z_$][\w$]*|\.?\d(?:[eEpP][+-]|'?[\w.])*|'(?:\\.|[^'\\\n])*'?"""
    r"""|<<<|>>>|<<=|>>=|<=>|->\*|\.\.\.|::|->|\+\+|--|<<|>>|&&|\|\||##|[-+*/%&|^=!<>]=|.""",
    re.DOTALL,
)
FUNCTIONS = frozenset("__device__ __host__ __global__ __forceinline__ __inline__ inline".split())
BEGIN, END = "\n#", "\n"
"""What stands around a directive."""


def tokens(source: str) -> list[str]:
    """What the compiler reads, without comments, blanks, and line breaks but those that end a directive.

    `using fp16 = __half;` is nothing, and the two names are one. `static` is left out before a function: a source is
    the only one of its program.
    """
    return _without_short_types(_read(source))


def _read(source: str) -> list[str]:
    found: list[str] = []
    directive, blank = False, True
    for match in _TOKEN.finditer(re.sub(r"\\[ \t\v\f\r]*\n", "", source) + END):
        token = match[0]
        if match["skip"]:
            blank = True
            continue
        if token == END:
            if directive:
                found.append(token)
            directive, blank = False, True
            continue
        if token == "#" and not directive:
            directive, token = True, BEGIN
        elif directive and token == "(" and not blank and found[-2:-1] == ["define"]:
            token = "#("  # a macro with arguments; behind a blank it would be a macro's text
        if found and found[-1] == "static" and token in FUNCTIONS:
            found.pop()
        found.append(token)
        blank = False
    return found


def _without_short_types(tokens: list[str]) -> list[str]:
    found = [at for at, token in enumerate(tokens) if token == "using" and tokens[at + 2 : at + 5 : 2] == ["=", ";"]]
    named = Counter(tokens[at + 1] for at in found)
    text: list[str] = []
    short: dict[str, str] = {}
    done = 0
    for at in found:
        name, meant = tokens[at + 1 : at + 4 : 2]
        if named[name] == 1:  # one that has several meanings is left alone
            short[name] = short.get(meant, meant)
            text += tokens[done:at]
            done = at + 5
    return [short.get(token, token) for token in text + tokens[done:]]
