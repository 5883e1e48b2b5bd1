"""The tables of an archive, in SQL, and how a file of a former format is brought to the present one."""

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
