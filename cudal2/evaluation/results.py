"""The results of an evaluation, kept in `RUN/eval/results.json`.

The same figures are in `results.csv` and, where pyarrow is installed, in `results.parquet`. During an evaluation each
row is first appended to `results.jsonl`, because writing a thousand rows takes a while. From time to time, and at the
end, all files are written anew and the appended rows are removed.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from cudal2.evaluation.records import Results, Row
from cudal2.files import replace
from cudal2.problem import Problem
from cudal2.records import HarnessFault

PARQUET = find_spec("pyarrow") is not None
"""Whether Parquet can be written: datasets, which training needs, brings pyarrow."""

_SHAPE = Problem.__struct_fields__
_ROW = ("fingerprint", "machine", "status", "reason", "rho", "max_error", "repeatable", "kernel")
_SPEEDUP = ("speedup", "low", "high", "pairs", "paired", "confidence")
_TIMING = ("baseline", "protocol", "candidate_us", "baseline_us", *_SPEEDUP)
NAMES = (*_SHAPE, *_ROW, "binary", *_TIMING)
"""The columns, of Problem, Row and Timing. Those of a timing are empty where no kernel is right, and `binary`, the
SHA-256 of code that was measured as it was, where a source was compiled."""
_TYPES = dict.fromkeys(("m", "n", "k", "pairs"), "int64") | dict.fromkeys(("paired", "repeatable"), "bool")
_REAL = ("rho", "max_error", "candidate_us", "baseline_us", "speedup", "low", "high", "confidence")
_TYPES |= dict.fromkeys(_REAL, "float64")
_REMEDY = "Make room or the folder writable and evaluate again: finished shapes are kept"


@contextmanager
def only_evaluation_of(folder: Path) -> Iterator[None]:
    """The lock of a process that adds and saves rows in the folder; two would overwrite each other's.

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
    """The results in `folder/eval`, with rows appended to `results.jsonl`; empty where there are none.

    Raises HarnessFault, which names the file, where one cannot be read.
    """
    path, added = folder / "eval" / "results.json", _added(folder)
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()
        path = added
        lines = added.read_bytes().split(b"\n")[:-1] if added.exists() else []  # the last one was torn, or is empty
        new = [msgspec.json.decode(line, type=Row) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside and evaluate again") from error
    rows = {(row.problem, row.fingerprint): row for row in (*saved.rows, *new)}
    return msgspec.structs.replace(saved, rows=tuple(rows.values()))


def add(folder: Path, row: Row) -> None:
    """Append one row; after that it survives any end of the process. HarnessFault where it cannot be written."""
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
    """Write all files, each atomically, with the rows appended before. HarnessFault where they cannot be written."""
    with _writing(folder):
        place = folder / "eval"
        place.mkdir(parents=True, exist_ok=True)
        replace(place / "results.csv", as_csv(results.rows).encode())
        if PARQUET:
            replace(place / "results.parquet", as_parquet(results.rows))
        replace(place / "results.json", msgspec.json.format(msgspec.json.encode(results), indent=1))
        _added(folder).unlink(missing_ok=True)


def joined(several: Sequence[Results], together: bool = False) -> Results:
    """The rows of several evaluations. If a shape has several in one environment (`together`: in any) the last counts,
    with the timings beside other baselines and under other protocols that those before it of the same kernel have."""
    rows: dict[tuple[Problem, str], Row] = {}
    for row in (row for results in several for row in results.rows):
        key = row.problem, "" if together else row.fingerprint
        if row.timings and (before := rows.get(key)) and before.kernel == row.kernel:
            own = {(timing.baseline, timing.protocol) for timing in row.timings}
            more = [timing for timing in before.timings if (timing.baseline, timing.protocol) not in own]
            # A row begins with those of the device's clock.
            timings = sorted((*more, *row.timings), key=lambda timing: timing.protocol != "device")
            row = msgspec.structs.replace(row, timings=tuple(timings))
        rows[key] = row
    return Results(
        {name: environment for results in several for name, environment in results.environments.items()},
        tuple(rows.values()),
    )


def _added(folder: Path) -> Path:
    return folder / "eval" / "results.jsonl"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HarnessFault(f"the results in {folder / 'eval'} cannot be written: {error}", _REMEDY) from error


def _flat(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """One tuple, in the order of NAMES, for each row and timing; None for what is not there."""
    table = []
    for row in rows:
        code = next(iter(row.binary), None)
        head = (*msgspec.structs.astuple(row.problem), *(getattr(row, name) for name in _ROW), code)
        for timing in row.timings or (None,):
            table.append((*head, *(getattr(timing, name, None) for name in _TIMING)))
    return table


def as_csv(rows: Iterable[Row]) -> str:
    """The table as CSV, with a header line of NAMES."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(NAMES)
    table.writerows(_flat(rows))
    return text.getvalue()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """The table as Parquet, with types. Raises ImportError without pyarrow."""
    import pyarrow
    from pyarrow import parquet

    types = pyarrow.schema([(name, _TYPES.get(name, "string")) for name in NAMES])
    values = [list(column) for column in zip(*_flat(rows))] or [[] for _ in NAMES]
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(values, schema=types), file)
    return file.getvalue()
