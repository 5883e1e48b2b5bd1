"""What an archive holds: the origin of a sample, a judged sample, a kernel with its last verdict, as records; and the
tables of them in SQL, with how a file of a former format is brought to the present one."""

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


APPLICATION = 0x43554432
"""SQLite's `application_id` of an archive."""
VERSION = 4
"""Its `user_version`: which format the file has. Whoever changes the format adds to UPGRADES."""
_SAMPLES = """
CREATE TABLE samples (
    kind TEXT, run TEXT, step INTEGER, position INTEGER, policy TEXT NOT NULL, prompt TEXT NOT NULL, reward REAL,
    seconds REAL NOT NULL, verdict INTEGER NOT NULL REFERENCES verdicts,
    PRIMARY KEY (kind, run, step, position)) WITHOUT ROWID;"""
_TURNS = "ALTER TABLE samples ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;"
_LATEST = """
-- A kernel is a source, or a source with an edit of its built code: its hash is that of either table.
CREATE TABLE edits (hash TEXT PRIMARY KEY, source TEXT NOT NULL REFERENCES sources, edit TEXT NOT NULL) WITHOUT ROWID;
-- The last verdict on each kernel: a later measurement replaces a lucky earlier one.
CREATE VIEW latest AS
SELECT verdicts.*, text, edit FROM verdicts LEFT JOIN edits ON edits.hash = verdicts.source
JOIN sources ON sources.hash = IFNULL(edits.source, verdicts.source) WHERE id = (
    SELECT MAX(id) FROM verdicts AS other
    WHERE other.problem = verdicts.problem AND other.target = verdicts.target
      AND other.fingerprint = verdicts.fingerprint AND other.source = verdicts.source);"""
SCHEMA = f"""
CREATE TABLE sources (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
    problem TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT NOT NULL, status TEXT NOT NULL,
    speedup REAL, low REAL, body TEXT NOT NULL);
CREATE INDEX by_problem ON verdicts (problem, target, fingerprint, source, id);
{_SAMPLES}
{_TURNS}
{_LATEST}
"""
UPGRADES = {
    # Where a sample came from was said by the beginning of its run's name; training's steps began with 1.
    1: f"""
ALTER TABLE samples RENAME TO former;
{_SAMPLES}
INSERT INTO samples SELECT
    CASE WHEN run GLOB 'search *' THEN 'search' WHEN run GLOB 'eval *' THEN 'eval' WHEN step = 0 THEN 'sft'
         ELSE 'train' END,
    CASE WHEN run GLOB 'search *' THEN substr(run, 8) WHEN run GLOB 'eval *' THEN substr(run, 6) ELSE run END,
    step, position, policy, prompt, reward, 0, verdict FROM former;
DROP TABLE former;""",
    2: f"DROP VIEW latest;{_LATEST}",
    3: _TURNS,
}
"""The statements that turn an archive of each former format into one of the next."""


def statements(script: str) -> list[str]:
    """The script cut at its semicolons (`executescript` would commit the transaction it runs in)."""
    return [statement for statement in script.split(";") if statement.strip()]
