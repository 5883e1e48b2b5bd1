"""The records of an archive: the origin of a sample, a judged sample, a kernel with its last verdict."""

from typing import Literal

import msgspec

from cudal2.problem import Problem
from cudal2.records import Edit, Status, Verdict, digest, kernel_hash

Kind = Literal["train", "sft", "search", "eval", "serve"]
"""What asked for a sample: a step of GRPO, the check after supervised training, a search, an evaluation, or a client of
`cudal2 serve`, whose session is the `run` and whose requests are the steps."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which sample a verdict judges; `kind`, `run`, `step` and `index` identify it.

    `policy` is its author: the path of a model, or the method of a search. `prompt` is what it was written from.
    `seconds` is its share of the wall time that a search took to propose and judge it.

    If a policy writes again after each verdict, `turn` counts from 0. The `prompt` of a later turn is only the last
    message: the verdict on the attempt before (or the first prompt again, if nothing else fitted). That attempt is the
    sample of `index` - 1; in a search it is the one that the prompt names (`search/proposer.py`).
    """

    kind: Kind
    run: str
    step: int
    index: int
    policy: str = ""
    prompt: str = ""
    reward: float | None = None
    seconds: float = 0.0
    turn: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One judged sample, with its own verdict, even if its kernel was measured again since.

    `low` is the lower bound of the speedup, None unless ok. `source_hash` is `Candidate.kernel_hash`: where an edited
    kernel was judged, the hash of source and edit.
    """

    origin: Origin
    problem: Problem
    target: str
    fingerprint: str
    status: Status
    speedup: float | None
    low: float | None
    source_hash: str


class Entry(msgspec.Struct, frozen=True):
    """A kernel with its verdict: a source as it compiles, or with an edit of its built code."""

    source: str
    verdict: Verdict
    edit: Edit | None = None

    @property
    def source_hash(self) -> str:
        return digest(self.source)

    @property
    def kernel_hash(self) -> str:
        """`Candidate.kernel_hash`: of the source and its edit."""
        return kernel_hash(self.source, self.edit)

    @property
    def low(self) -> float:
        """Lower bound of the speedup over the fastest baseline, by which kernels are ranked; 0 unless ok."""
        return self.verdict.timing.low if self.verdict.timing else 0.0
