"""Every verdict ever reached, with its source and where it came from, in one SQLite file.

Many processes may write at once and any may be killed at any moment: each `add` is one transaction of a
write-ahead log (https://www.sqlite.org/wal.html), so what was added stays and what was not leaves no trace.
The file must lie on a local disk: the log needs shared memory, which network file systems lack.

Speed compares only within one environment. Every question therefore names a `fingerprint`; `ANY` asks
for the answer across devices in so many words.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from cudal2.archive.records import Entry, Origin, Sample
from cudal2.problem import Problem, parse
from cudal2.records import (
    Candidate,
    Environment,
    HarnessFault,
    Status,
    Verdict,
    digest,
    to_json,
    verdict_from_json,
)

ANY = "*"
"""The fingerprint that compares across environments."""

_APPLICATION = 0x43554432
_VERSION = 1
_SCHEMA = """
CREATE TABLE sources (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, source TEXT NOT NULL REFERENCES sources,
    problem TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT NOT NULL, status TEXT NOT NULL,
    speedup REAL, low REAL, body TEXT NOT NULL);
CREATE INDEX by_problem ON verdicts (problem, target, fingerprint, source, id);
CREATE TABLE samples (
    run TEXT, step INTEGER, position INTEGER, policy TEXT NOT NULL, prompt TEXT NOT NULL, reward REAL,
    verdict INTEGER NOT NULL REFERENCES verdicts, PRIMARY KEY (run, step, position)) WITHOUT ROWID;
-- The last verdict on each kernel: a later measurement replaces a lucky earlier one.
CREATE VIEW latest AS SELECT verdicts.*, text FROM verdicts JOIN sources ON hash = source WHERE id = (
    SELECT MAX(id) FROM verdicts AS other
    WHERE other.problem = verdicts.problem AND other.target = verdicts.target
      AND other.fingerprint = verdicts.fingerprint AND other.source = verdicts.source);
"""
_HERE = "target = :target AND :fingerprint IN ('*', fingerprint)"
_STATUS = "status IN (SELECT value FROM json_each(:statuses))"
_REMEDIES = {
    ("FULL", "IOERR"): "Free disk space and start again: everything added before is intact",
    ("READONLY", "CANTOPEN", "PERM"): "Make the folder and the file writable, or choose another run folder",
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

    def _open(self) -> None:
        if not self._pragma("application_id"):
            with self._transaction():
                if not self._pragma("application_id"):  # another process may have been quicker
                    self._create()
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
        verdicts of the old ones stay.
        """
        if (verdict.problem, verdict.target) != (candidate.problem, candidate.target):
            raise ValueError(f"verdict on {verdict.problem.name} given for {candidate.problem.name}")
        sample = None if origin is None else msgspec.convert(origin, Origin)
        source = digest(candidate.source)
        # A verdict read back from the worker's cache is the same measurement.
        body = to_json(msgspec.structs.replace(verdict, cached=False, seconds={}))
        timing = verdict.timing
        with self._faults(), self._transaction():
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?)", (source, candidate.source))
            identity = digest(source, body)
            self._db.execute(
                "INSERT OR IGNORE INTO verdicts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(identity, source, verdict.problem.name, verdict.target),
                    *(verdict.environment.fingerprint, verdict.status.value),
                    *((timing.speedup, timing.low) if timing else (None, None)),
                    body,
                ),
            )
            if sample is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO samples SELECT ?, ?, ?, ?, ?, ?, id FROM verdicts WHERE identity = ?",
                    (*msgspec.structs.astuple(sample), identity),
                )

    def environments(self) -> dict[str, Environment]:
        """Every environment that verdicts were reached in, by fingerprint, the latest verdict's last."""
        last = "SELECT MAX(id) FROM verdicts GROUP BY fingerprint"
        rows = self._rows(f"SELECT body FROM verdicts WHERE id IN ({last}) ORDER BY id")
        found = [self._verdict(body).environment for (body,) in rows]
        return {environment.fingerprint: environment for environment in found}

    def target(self, fingerprint: str) -> str:
        """What the last verdict reached in that environment was compiled for; ValueError where there is none."""
        for (found,) in self._rows(
            "SELECT target FROM verdicts WHERE fingerprint = ? ORDER BY id DESC LIMIT 1", (fingerprint,)
        ):
            return found
        raise ValueError(f"archive {self.path} holds no verdict reached in environment {fingerprint!r}")

    def ranked(self, problem: Problem, target: str, fingerprint: str, limit: int = -1) -> list[Entry]:
        """Correct kernels for `problem`, by the lower bound of their speedup, best first; -1: all of them."""
        return self._entries(
            f"{_HERE} AND problem = :problem AND status = 'ok' ORDER BY low DESC, id LIMIT :limit",
            problem=problem.name,
            target=target,
            fingerprint=fingerprint,
            limit=limit,
        )

    def best(self, problem: Problem, target: str, fingerprint: str) -> Entry | None:
        """The kernel with the greatest lower bound of the speedup, None where none is correct."""
        return next(iter(self.ranked(problem, target, fingerprint, 1)), None)

    def problems(self, target: str, fingerprint: str, statuses: Sequence[Status] = (Status.OK,)) -> list[Problem]:
        """Problems with at least one last verdict of one of these statuses, in order."""
        rows = self._rows(
            f"SELECT DISTINCT problem FROM latest WHERE {_HERE} AND {_STATUS}",
            {"target": target, "fingerprint": fingerprint, "statuses": json.dumps(statuses)},
        )
        return sorted(parse(name) for (name,) in rows)

    def latest(
        self, problem: Problem, target: str, fingerprint: str, statuses: Sequence[Status], limit: int
    ) -> list[Entry]:
        """The latest `limit` kernels for `problem` whose last verdict is of one of these statuses, latest first."""
        return self._entries(
            f"{_HERE} AND problem = :problem AND {_STATUS} ORDER BY id DESC LIMIT :limit",
            statuses=json.dumps(statuses),
            problem=problem.name,
            target=target,
            fingerprint=fingerprint,
            limit=limit,
        )

    def samples(self, run: str | None = None) -> Iterator[Sample]:
        """Samples of `run` (of every run) by run, step and index."""
        rows = self._rows(
            "SELECT run, step, position, policy, prompt, reward, problem, target, fingerprint, status, "
            "speedup, low, source FROM samples JOIN verdicts ON id = verdict "
            "WHERE :run IS NULL OR run = :run ORDER BY run, step, position",
            {"run": run},
        )
        names = ("target", "fingerprint", "status", "speedup", "low", "source")
        for *origin, problem, target, fingerprint, status, speedup, low, source in rows:
            values = (target, fingerprint, Status(status), speedup, low, source)
            fields = dict(zip(Origin.__struct_fields__, origin))
            yield Sample(origin=Origin(**fields), problem=parse(problem), **dict(zip(names, values)))

    def verdict(self, run: str, step: int, index: int) -> Verdict | None:
        """The very verdict that judged that sample, whatever was measured of its kernel since; None: no such sample."""
        query = "SELECT body FROM samples JOIN verdicts ON id = verdict WHERE (run, step, position) = (?, ?, ?)"
        return next((self._verdict(body) for (body,) in self._rows(query, (run, step, index))), None)

    def source(self, source_hash: str) -> str:
        """The source with that hash; HarnessFault where it was never added."""
        for (text,) in self._rows("SELECT text FROM sources WHERE hash = ?", (source_hash,)):
            return text
        raise HarnessFault(
            f"archive {self.path} holds no source {source_hash[:12]}",
            "The results that name it belong to another archive: evaluate this one",
        )

    def _entries(self, condition: str, **values: Any) -> list[Entry]:
        rows = self._rows(f"SELECT text, body FROM latest WHERE {condition}", values)
        return [Entry(text, self._verdict(body)) for text, body in rows]

    def _verdict(self, body: str) -> Verdict:
        try:
            return verdict_from_json(body)
        except msgspec.MsgspecError as error:
            raise HarnessFault(
                f"archive {self.path} holds an unreadable verdict ({error})", "Use the cudal2 that wrote it"
            ) from error

    def _rows(self, query: str, values: Any = ()) -> list[Any]:
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


def _statements(script: str) -> list[str]:
    """The script cut at its semicolons (`executescript` would commit the transaction it runs in)."""
    return [statement for statement in script.split(";") if statement.strip()]
