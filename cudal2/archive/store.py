"""Every verdict ever reached, with its source and where it came from, in one SQLite file.

Many processes may write at once and any may be killed at any moment: each `add` is one transaction of a
write-ahead log (https://www.sqlite.org/wal.html), so what was added stays and what was not leaves no trace.
The file must lie on a local disk: the log needs shared memory, which network file systems lack.

Speed compares only within one environment: questions about speed are asked through `comparable.Comparable`, which
names one; `ANY` asks across devices in so many words.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from cudal2.archive.records import Kind, Origin, Sample
from cudal2.problem import parse
from cudal2.records import (
    Candidate,
    Edit,
    Environment,
    HarnessFault,
    Status,
    Verdict,
    digest,
    edit_from_json,
    to_json,
    verdict_from_json,
)

ANY = "*"
"""The fingerprint that compares across environments."""

_APPLICATION = 0x43554432
_VERSION = 4
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
_SCHEMA = f"""
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
_UPGRADES = {
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
"""What makes an archive of each former format one of the next."""
_REMEDIES = {
    ("FULL", "IOERR"): "Free disk space and start again: everything added before is intact",
    # The log beside it cannot be opened either where the disk is too full for another file.
    ("READONLY", "CANTOPEN", "PERM"): "Make the folder and the file writable, make room, or choose another run folder",
    ("BUSY", "LOCKED", "PROTOCOL"): "Another process holds it: end that process, or use a local disk",
    ("NOTADB", "CORRUPT"): (
        "Nothing was changed in it. Move it aside and start again, or rescue its rows first with "
        "`sqlite3 FILE .recover | sqlite3 RESCUED`"
    ),
}


class Archive:
    """The archive in file `path`, made (with its folder) where absent unless `create` is False.

    Every method raises HarnessFault where the file is corrupt, read-only or locked, or the disk is full;
    what was added before stays. May be shared between threads; each process opens its own.
    """

    def __init__(self, path: str | Path, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.exists():
            raise ValueError(f"there is no archive {self.path}; `cudal2 train` writes one")
        self._lock = threading.RLock()
        with self._faults():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Autocommit, so that `_transaction` alone says where a transaction begins.
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    @classmethod
    def of(cls, folder: str | Path, create: bool = True) -> Self:
        """The archive of the run in `folder`."""
        return cls(cls.file(folder), create)

    @staticmethod
    def file(folder: str | Path) -> Path:
        """Where the archive of the run in `folder` is, or will be."""
        return Path(folder) / "archive.sqlite"

    def _open(self) -> None:
        if not self._pragma("application_id"):
            with self._transaction():
                if not self._pragma("application_id"):  # another process may have been quicker
                    self._create()
        if self._pragma("application_id") == _APPLICATION and self._pragma("user_version") in _UPGRADES:
            self._upgrade()
        found = (self._pragma("application_id"), self._pragma("user_version"))
        if found != (_APPLICATION, _VERSION):
            raise HarnessFault(f"{self.path} is not an archive of format {_VERSION}", "Use the cudal2 that wrote it")
        # Only now: it is no part of a transaction, and another program's file must stay as it is.
        self._pragma("journal_mode = WAL")
        # Enough that a killed process loses nothing; a power cut may lose the last rows, never the file.
        self._pragma("synchronous = NORMAL")

    def _create(self) -> None:
        if self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise HarnessFault(f"{self.path} belongs to another program", "Choose another run folder")
        for statement in _statements(_SCHEMA):
            self._db.execute(statement)
        self._pragma(f"user_version = {_VERSION}")
        self._pragma(f"application_id = {_APPLICATION}")

    def _upgrade(self) -> None:
        with self._transaction():  # whole or not at all; another process may have been quicker
            while upgrade := _UPGRADES.get(version := self._pragma("user_version")):
                for statement in _statements(upgrade):
                    self._db.execute(statement)
                self._pragma(f"user_version = {version + 1}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def add(self, verdict: Verdict, candidate: Candidate, origin: Origin | Mapping[str, Any] | None) -> None:
        """Keep `verdict` on `candidate`, and the sample it judges where `origin` (a mapping of Origin's
        fields will do) names one.

        Adding twice changes nothing; a step sampled anew after a resume replaces its samples, while the
        verdicts of the old ones stay. Raises ValueError where something else than the source was judged
        (`Candidate.archivable`): nobody may rank, show or learn a source by what a binary measured.
        """
        if not candidate.archivable:
            raise ValueError(f"only what a source compiles to is archived, not the {_else(candidate)} that was judged")
        if (verdict.problem, verdict.target) != (candidate.problem, candidate.target):
            raise ValueError(f"verdict on {verdict.problem.name} given for {candidate.problem.name}")
        sample = None if origin is None else msgspec.convert(origin, Origin)
        source, kernel, edit = digest(candidate.source), candidate.kernel_hash, candidate.edit
        # A verdict read back from the worker's cache is the same measurement.
        body = to_json(msgspec.structs.replace(verdict, cached=False, seconds={}))
        timing = verdict.timing
        with self._faults(), self._transaction():
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (source, candidate.source))
            if edit:
                self._db.execute("INSERT OR IGNORE INTO edits VALUES (?, ?, ?)", (kernel, source, to_json(edit)))
            identity = digest(kernel, body)
            self._db.execute(
                "INSERT OR IGNORE INTO verdicts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(identity, kernel, verdict.problem.name, verdict.target),
                    *(verdict.environment.fingerprint, verdict.status.value),
                    *((timing.speedup, timing.low) if timing else (None, None)),
                    body,
                ),
            )
            if sample is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO samples (kind, run, step, position, policy, prompt, reward, seconds, turn, "
                    "verdict) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, id FROM verdicts WHERE identity = ?",
                    (*msgspec.structs.astuple(sample), identity),
                )

    def environments(self) -> dict[str, Environment]:
        """Every environment that verdicts were reached in, by fingerprint, the latest verdict's last."""
        last = "SELECT MAX(id) FROM verdicts GROUP BY fingerprint"
        rows = self.rows(f"SELECT body FROM verdicts WHERE id IN ({last}) ORDER BY id")
        found = [self.read(body).environment for (body,) in rows]
        return {environment.fingerprint: environment for environment in found}

    def target(self, fingerprint: str) -> str:
        """What the last verdict reached in that environment was compiled for; ValueError where there is none."""
        for (found,) in self.rows(
            "SELECT target FROM verdicts WHERE fingerprint = ? ORDER BY id DESC LIMIT 1", (fingerprint,)
        ):
            return found
        raise ValueError(f"archive {self.path} holds no verdict reached in environment {fingerprint!r}")

    def samples(self, kind: Kind | None = None, run: str | None = None) -> Iterator[Sample]:
        """Samples of that `kind` (of every kind) and `run` (of every run), by kind, run, step and index."""
        wanted = {name: value for name, value in (("kind", kind), ("run", run)) if value is not None}
        rows = self.rows(
            "SELECT kind, run, step, position, policy, prompt, reward, seconds, turn, problem, target, fingerprint, "
            "status, speedup, low, source FROM samples JOIN verdicts ON id = verdict "
            f"WHERE {' AND '.join(f'{name} = :{name}' for name in wanted) or 'TRUE'} "
            "ORDER BY kind, run, step, position",
            wanted,
        )
        names = ("target", "fingerprint", "status", "speedup", "low", "source_hash")
        for *origin, problem, target, fingerprint, status, speedup, low, source_hash in rows:
            values = (target, fingerprint, Status(status), speedup, low, source_hash)
            fields = dict(zip(Origin.__struct_fields__, origin))
            yield Sample(origin=Origin(**fields), problem=parse(problem), **dict(zip(names, values)))

    def verdict(self, origin: Origin) -> Verdict | None:
        """The very verdict that judged that sample, whatever was measured of its kernel since; None: no such sample."""
        query = (
            "SELECT body FROM samples JOIN verdicts ON id = verdict WHERE (kind, run, step, position) = (?, ?, ?, ?)"
        )
        place = (origin.kind, origin.run, origin.step, origin.index)
        return next((self.read(body) for (body,) in self.rows(query, place)), None)

    def source(self, kernel_hash: str) -> str:
        """The source with that hash, or of the edited kernel with it; HarnessFault where it was never added."""
        edited = "SELECT source FROM edits WHERE hash = :hash"
        query = f"SELECT text FROM sources WHERE hash = IFNULL(({edited}), :hash)"
        for (text,) in self.rows(query, {"hash": kernel_hash}):
            return text
        raise HarnessFault(
            f"archive {self.path} holds no source {kernel_hash[:12]}",
            "The results that name it belong to another archive: evaluate this one",
        )

    def edit(self, kernel_hash: str) -> Edit | None:
        """The edit that makes the kernel with that hash; None where it is as its source compiles."""
        rows = self.rows("SELECT edit FROM edits WHERE hash = ?", (kernel_hash,))
        return edit_from_json(rows[0][0]) if rows else None

    def read(self, body: str) -> Verdict:
        """A row's verdict."""
        try:
            return verdict_from_json(body)
        except msgspec.MsgspecError as error:
            raise HarnessFault(
                f"archive {self.path} holds an unreadable verdict ({error})", "Use the cudal2 that wrote it"
            ) from error

    def rows(self, query: str, values: Any = ()) -> list[Any]:
        """What an SQL query finds."""
        with self._faults(), self._lock:
            return self._db.execute(query, values).fetchall()

    def _pragma(self, text: str) -> Any:
        return (self._db.execute(f"PRAGMA {text}").fetchone() or [None])[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: taking the write lock at the start lets SQLite wait for other writers instead of failing.
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HarnessFault(f"archive {self.path}: {error}", "Choose a writable run folder") from error
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").split("_")[0]
            for codes, remedy in _REMEDIES.items():
                if code in codes:
                    raise HarnessFault(f"archive {self.path}: {error}", remedy) from error
            raise


def _else(candidate: Candidate) -> str:
    return "binary" if candidate.binary else f"kernel of {candidate.abi}"


def _statements(script: str) -> list[str]:
    """The script cut at its semicolons (`executescript` would commit the transaction it runs in)."""
    return [statement for statement in script.split(";") if statement.strip()]
