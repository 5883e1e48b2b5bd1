"""The rows of an evaluation as one flat table: a line for each shape and baseline, as CSV or as Parquet."""

import csv
import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from cudal2.evaluation.records import Row
from cudal2.problem import Problem

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


def flat(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """One tuple, in the order of NAMES, for each row and timing; None for what is not there."""
    found = []
    for row in rows:
        code = next(iter(row.binary), None)
        head = (*msgspec.structs.astuple(row.problem), *(getattr(row, name) for name in _ROW), code)
        for timing in row.timings or (None,):
            found.append((*head, *(getattr(timing, name, None) for name in _TIMING)))
    return found


def as_csv(rows: Iterable[Row]) -> str:
    """The table as CSV, with a header line of NAMES."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(NAMES)
    table.writerows(flat(rows))
    return text.getvalue()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """The table as Parquet, with types. Raises ImportError without pyarrow."""
    import pyarrow
    from pyarrow import parquet

    types = pyarrow.schema([(name, _TYPES.get(name, "string")) for name in NAMES])
    values = [list(column) for column in zip(*flat(rows))] or [[] for _ in NAMES]
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(values, schema=types), file)
    return file.getvalue()
