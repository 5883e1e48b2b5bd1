"""Packs a run into a few files, with all that another machine needs to continue it.

These are the configuration, the metrics, the newest complete checkpoint, the archive, the results of evaluations, the
games on its best kernels, and from the worker's cache the verdicts on this run's kernels and the tuned baselines. Of
supervised training that is over the policy takes the place of the checkpoint, which holds several times its weights.
Built kernels are left out, because they are large; they are compiled again when they are needed.
"""

import io
import lzma
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, cast

from cudal2.archive import Archive
from cudal2.evaluation.results import only_evaluation_of
from cudal2.files import replace
from cudal2.policy.locate import latest_checkpoint
from cudal2.records import HarnessFault
from cudal2.tracking import ID
from cudal2.train.folder import only_trainer_of

PART_BYTES = 15 << 20
KEPT = (
    *("config.json", "metrics.jsonl", "verify.json", "campaign.jsonl", "eval/results.json", "eval/results.jsonl", ID),
    "answers.jsonl",
    *("policy", "sass"),
)
"""Files and folders of a run that are in a parcel, beside its archive and a checkpoint."""
CACHED = ("verdicts", "baselines")
"""The kinds of cache entries in a parcel."""


class _Parts(io.RawIOBase):
    """A stream written to `FOLDER/part.000`, `part.001`, … of at most PART_BYTES each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self._file = folder, 0, io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self._file.write(data)
        while self._file.tell() >= PART_BYTES:
            self._flush(PART_BYTES)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._flush(self._file.tell())
        super().close()

    def _flush(self, size: int) -> None:
        whole = self._file.getvalue()
        (self.folder / f"part.{self.count:03}").write_bytes(whole[:size])
        self.count += 1
        self._file = io.BytesIO()
        self._file.write(whole[size:])


def pack(run: Path, out: Path, cache: Path) -> int:
    """Write the run in folder `run` into new files in `out`, of at most 16 MB each, and return how many.

    Raises ValueError where `run` holds no run, is being trained or evaluated, or `out` holds anything; HarnessFault
    where a file cannot be read or written.
    """
    if not (run / "config.json").is_file():
        raise ValueError(f"{run} holds no run: there is no config.json")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    try:
        with (
            only_trainer_of(run),
            only_evaluation_of(run),
            TemporaryDirectory() as scratch,
            closing(_Parts(out)) as parts,
            lzma.open(cast(BinaryIO, parts), "wb", preset=1) as packed,
            tarfile.open(fileobj=packed, mode="w|", dereference=True) as tar,
        ):
            for name, path in _contents(run, cache, Path(scratch)):
                tar.add(path, name)
    except OSError as error:
        raise HarnessFault(f"{run} cannot be packed: {error}", "Make room, or choose another folder") from error
    return parts.count


def _contents(run: Path, cache: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """The name in the parcel, and the file or folder, of everything in it."""
    checkpoint = None if (run / "policy").exists() else latest_checkpoint(run)
    chosen = [run / name for name in KEPT] + ([checkpoint] if checkpoint else [])
    yield from ((f"run/{path.relative_to(run)}", path) for path in chosen if path.exists())
    keys: set[str] = set()
    file, copied = Archive.file(run), Archive.file(scratch)
    if file.exists():
        with closing(sqlite3.connect(file)) as live, closing(sqlite3.connect(copied)) as copy:
            live.backup(copy)  # with the contents of the write-ahead log
        yield f"run/{file.name}", copied
        with Archive(file) as archive:
            keys = {key for (key,) in archive.rows("SELECT json_extract(body, '$.key') FROM verdicts")}
    for kind in CACHED:
        for path in sorted((cache / kind).glob("??/*")):
            if path.suffix != ".lock" and (kind != "verdicts" or path.name in keys):
                yield f"cache/{path.relative_to(cache)}", path


def unpack(parcel: Path, run: Path, cache: Path) -> None:
    """Unpack a run into the new folder `run`, and add its entries to the cache: only of the kinds in CACHED, and never
    in the place of this machine's own.

    The folder gets its name when it is complete.
    Raises ValueError where `run` holds anything or `parcel` is not a whole parcel.
    """
    if run.exists() and any(run.iterdir()):
        raise ValueError(f"{run} is not empty; choose another folder")
    parts = sorted(parcel.glob("part.*"))
    stream, partial = _joined(parts), run.with_name(f"{run.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a kill
    entries: dict[Path, bytes] = {}
    try:
        with lzma.open(stream) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            for member in tar:
                top, *rest = _names(member)
                if top == "run":
                    _lay_out(tar, member, partial.joinpath(*rest))
                elif rest[0] in CACHED and len(rest) == 3 and (file := tar.extractfile(member)):
                    entries[cache.joinpath(*rest)] = file.read()
        if not (partial / "config.json").is_file():
            raise tarfile.TarError("there is no config.json")
    except (EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(f"{parcel} is no complete packed run ({error}); are all its parts there?") from error
    for path, content in entries.items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, content)
    partial.replace(run)


def _names(member: tarfile.TarInfo) -> list[str]:
    """Folders and file that a member's name says: a name may lead to another place than it begins with, and so may a
    link. TarError for what `pack` never writes."""
    names = member.name.split("/")
    if names[0] not in ("run", "cache") or len(names) < 2 or {"", ".", ".."}.intersection(names):
        raise tarfile.TarError(f"{member.name!r} is no place in a run")
    if not (member.isreg() or member.isdir()):
        raise tarfile.TarError(f"{member.name!r} is no file")
    return names


def _lay_out(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """Writes a member whose name `_names` has checked. Only its contents count: owner, mode and times are this user's.

    Not by `TarFile.extract`, which Python has taught to distrust a member (`filter`) only since 3.11.4. No link is ever
    written, so no place leads out of the new folder. TarError where two members want one place.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if member.isdir():
            place.mkdir(exist_ok=True)
        elif file := tar.extractfile(member):
            with place.open("xb") as out:
                shutil.copyfileobj(file, out)
    except (FileExistsError, NotADirectoryError) as error:
        raise tarfile.TarError(f"{member.name!r} is in it twice") from error


def _joined(parts: list[Path]) -> BinaryIO:
    """The parts as one stream. ValueError where one in the middle is missing."""
    if not parts or [path.name for path in parts] != [f"part.{i:03}" for i in range(len(parts))]:
        raise ValueError("parts of the packed run are missing: they are part.000, part.001, …")
    return io.BytesIO(b"".join(path.read_bytes() for path in parts))
