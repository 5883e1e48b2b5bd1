"""What of a source is built: a form in which sources are alike that the same machine code is made of.

Comments, with the plan that a source may begin with, blanks, line breaks, the names that a source gives to its own
things, and its short names for types say nothing to the compiler. Policies vary them, so that one kernel has many
texts. Sources of one form are one kernel; of different forms they may still be one, for this is no compiler. A name is
replaced only where the source surely declares it: to take one kernel for another would lose one, while a name too many
that stays only costs a measurement.
"""

from functools import lru_cache

from cudal2.form import names
from cudal2.form.tokens import tokens
from cudal2.records import Edit, digest, to_json

SAME = {"half": "__half", "half2": "__half2", "nv_bfloat16": "__nv_bfloat16", "nv_bfloat162": "__nv_bfloat162"}
"""Names of one type in CUDA's headers."""


@lru_cache(maxsize=8192)
def form(source: str) -> str:
    """A digest that sources share where they differ only in comments, blanks, own names and short names of types."""
    return digest("\n".join(normal(source)))


def kernel_form(source: str, edit: Edit | None = None) -> str:
    """The form of what runs: of the source and, where there is one, the edit of its compiled code."""
    return form(source) if edit is None else digest(form(source), to_json(edit))


def normal(source: str) -> list[str]:
    """The tokens of a source, with numbers in the place of its own names."""
    found = tokens(source)
    own = names.numbered(found)
    return [own.get(place) or SAME.get(token, token) for place, token in enumerate(found)]
