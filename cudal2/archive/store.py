"""The archive of a run: every verdict with its source and its origin, in one SQLite file.

Many processes may write at once, and any may be killed at any moment: each `add` is one transaction of a
write-ahead log (https://www.sqlite.org/wal.html), which is either complete or leaves no trace.
The file must lie on a local disk: the log needs shared memory, which network file systems lack.

Speeds may only be compared within one environment. So queries about speed go through `selection.Comparable`, which
names an environment, or `ANY` to compare across devices on purpose.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from cudal2.archive import records
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
LATER = {"dtype": "fp16", "epilogue": "none"}
"""Fields of a problem that verdicts of earlier versions lack, and what these were about."""
PATIENCE = 60.0
"""Seconds to wait for other processes' transactions."""

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
            self._db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
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
        if self._pragma("application_id") == records.APPLICATION and self._pragma("user_version") in records.UPGRADES:
            self._upgrade()
        stamps = (self._pragma("application_id"), self._pragma("user_version"))
        if stamps != (records.APPLICATION, records.VERSION):
            remedy = "Use the cudal2 that wrote it"
            raise HarnessFault(f"{self.path} is not an archive of format {records.VERSION}", remedy)
        # Only now: it is no part of a transaction, and another program's file must stay as it is.
        self._keep_a_log()
        # Enough that a killed process loses nothing; a power cut may lose the last rows, never the file.
        self._pragma("synchronous = NORMAL")

    def _keep_a_log(self) -> None:
        """Writes ahead from here on. Where processes open a new file at once, SQLite does not wait by itself here."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._pragma("journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the low byte of an extended code
                if not busy or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def _create(self) -> None:
        if self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise HarnessFault(f"{self.path} belongs to another program", "Choose another run folder")
        for statement in records.statements(records.SCHEMA):
            self._db.execute(statement)
        self._pragma(f"user_version = {records.VERSION}")
        self._pragma(f"application_id = {records.APPLICATION}")

    def _upgrade(self) -> None:
        with self._transaction():  # whole or not at all; another process may have been quicker
            while upgrade := records.UPGRADES.get(version := self._pragma("user_version")):
                for statement in records.statements(upgrade):
                    self._db.execute(statement)
                self._pragma(f"user_version = {version + 1}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def add(self, verdict: Verdict, candidate: Candidate, origin: Origin | Mapping[str, Any] | None) -> None:
        """Store `verdict` on `candidate`, and the sample it judges if `origin` (or a mapping of Origin's
        fields) names one.

        Adding twice changes nothing. A step that is sampled again after a resume replaces its samples, while the
        verdicts on the old ones stay. Raises ValueError where something else than the source was judged
        (`Candidate.archivable`): no source may be ranked, shown or learnt by the figures of a binary.
        """
        if not candidate.archivable:
            raise ValueError(f"only what a source compiles to is archived, not the {_else(candidate)} that was judged")
        if (verdict.problem, verdict.target) != (candidate.problem, candidate.target):
            raise ValueError(f"verdict on {verdict.problem.name} given for {candidate.problem.name}")
        sample = None if origin is None else msgspec.convert(origin, Origin)
        source, kernel, edit = digest(candidate.source), candidate.kernel_hash, candidate.edit
        # A verdict read back from the worker's cache is the same measurement.
        body = _body(msgspec.structs.replace(verdict, cached=False, seconds={}))
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
        """Every environment of a verdict, by fingerprint; that of the latest verdict comes last."""
        last = "SELECT MAX(id) FROM verdicts GROUP BY fingerprint"
        rows = self.rows(f"SELECT body FROM verdicts WHERE id IN ({last}) ORDER BY id")
        environments = [self.read(body).environment for (body,) in rows]
        return {environment.fingerprint: environment for environment in environments}

    def target(self, fingerprint: str) -> str:
        """The target of the last verdict in that environment; ValueError where there is none."""
        for (name,) in self.rows(
            "SELECT target FROM verdicts WHERE fingerprint = ? ORDER BY id DESC LIMIT 1", (fingerprint,)
        ):
            return name
        raise ValueError(f"archive {self.path} holds no verdict reached in environment {fingerprint!r}")

    def samples(self, kind: Kind | None = None, run: str | None = None) -> Iterator[Sample]:
        """Samples of that `kind` and `run` (None: of any), ordered by kind, run, step and index."""
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
        """The verdict that judged that sample, even if its kernel was measured again since; None: no such sample."""
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
        """The verdict in the `body` of a row; HarnessFault where it cannot be read."""
        try:
            return verdict_from_json(body)
        except msgspec.MsgspecError as error:
            raise HarnessFault(
                f"archive {self.path} holds an unreadable verdict ({error})", "Use the cudal2 that wrote it"
            ) from error

    def rows(self, query: str, values: Any = ()) -> list[Any]:
        """All rows that an SQL query finds."""
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


def _body(verdict: Verdict) -> str:
    """The verdict as JSON. What its problem has by default and earlier versions did not know is left out, so that
    theirs is the same row."""
    fields = msgspec.to_builtins(verdict)
    for name, usual in LATER.items():
        if fields["problem"][name] == usual:
            del fields["problem"][name]
    return msgspec.json.encode(fields).decode()


def _else(candidate: Candidate) -> str:
    return "binary" if candidate.binary else f"kernel of {candidate.abi}"
