"""What an evaluation found, kept in `RUN/eval/results.json`.

Beside it stand the same figures as tables, `results.csv` and, where pyarrow is installed, `results.parquet`. While an
evaluation goes on, each row is added to `results.jsonl` as it is found, for a thousand of them take a while to write;
now and then, and in the end, all is written anew and the added rows go.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from cudal2.evaluation import columns
from cudal2.evaluation.records import Results, Row
from cudal2.files import replace
from cudal2.records import HarnessFault

_REMEDY = "Make room or the folder writable and evaluate again: finished shapes are kept"


@contextmanager
def only_evaluation_of(folder: Path) -> Iterator[None]:
    """Held by whoever adds and saves rows there: two would each write over what the other has found.

    Raises ValueError where another process holds it, HarnessFault where the folder cannot be written.
    """
    with _writing(folder):
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(folder / "eval" / ".lock").acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{folder} is being evaluated by another process; choose another run") from None
    with held:
        yield


def load(folder: Path) -> Results:
    """What `folder/eval` holds, rows added to `results.jsonl` included; nothing where there is none.

    Raises HarnessFault naming the file that cannot be read.
    """
    path, added = folder / "eval" / "results.json", _added(folder)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()
        path = added
        lines = added.read_bytes().split(b"\n")[:-1] if added.exists() else []  # the last one was torn, or is empty
        new = [msgspec.json.decode(line, type=Row) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside and evaluate again") from error
    rows = {(row.problem, row.fingerprint): row for row in (*found.rows, *new)}
    return msgspec.structs.replace(found, rows=tuple(rows.values()))


def add(folder: Path, row: Row) -> None:
    """Keep one more row, from which moment on no end of the process loses it. HarnessFault where it cannot be kept."""
    rest = msgspec.json.encode(row) + b"\n"
    with _writing(folder), _added(folder).open("ab", buffering=0) as file:
        end = file.tell()
        try:
            while rest:  # a disk that fills up takes a part, and refuses the rest only when asked once more
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(end)  # the next row would join what is there of this one
            raise


def save(folder: Path, results: Results) -> None:
    """Write all files, each whole or not at all, rows added before included. HarnessFault where they cannot be."""
    with _writing(folder):
        place = folder / "eval"
        place.mkdir(parents=True, exist_ok=True)
        replace(place / "results.csv", columns.as_csv(results.rows).encode())
        if columns.PARQUET:
            replace(place / "results.parquet", columns.as_parquet(results.rows))
        replace(place / "results.json", msgspec.json.format(msgspec.json.encode(results), indent=1))
        _added(folder).unlink(missing_ok=True)


def _added(folder: Path) -> Path:
    return folder / "eval" / "results.jsonl"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HarnessFault(f"the results in {folder / 'eval'} cannot be written: {error}", _REMEDY) from error
