"""The file of rows in a dataset: Parquet, or a line of JSON for each row."""

import types
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from cudal2.dataset.rows import Row

Format = Literal["parquet", "jsonl"]
GROUP = 1000
"""Rows that are held in memory at a time."""


def write(folder: Path, form: Format, rows: Iterable[Row]) -> Path:
    """Writes `data.parquet` or `data.jsonl`; a kill leaves the file of before."""
    file, partial = folder / f"data.{form}", folder / f".data.{form}.partial"
    try:
        (_write_parquet if form == "parquet" else _write_jsonl)(partial, iter(rows))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file


def find(dataset: Path) -> Path:
    """The file of a dataset, which may be named itself. Raises ValueError where there is none, or more than one."""
    if dataset.is_file():
        return dataset
    found = [file for form in get_args(Format) if (file := dataset / f"data.{form}").is_file()]
    if len(found) != 1:
        several = f"holds {' and '.join(file.name for file in found)}: name one of them" if found else ""
        raise ValueError(f"{dataset} {several or 'holds no data.parquet and no data.jsonl'}")
    return found[0]


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, not yet checked. Raises ValueError where it is neither Parquet nor JSON."""
    if file.suffix == ".jsonl":
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.MsgspecError as error:
                    raise ValueError(f"{file}, line {number}: {error}") from error
        return
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            for group in opened.iter_batches(GROUP):
                yield from group.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file} is not Parquet: {error}") from error


def _write_jsonl(file: Path, rows: Iterator[Row]) -> None:
    with file.open("wb") as lines:
        for row in rows:
            lines.write(msgspec.json.encode(row) + b"\n")


def _write_parquet(file: Path, rows: Iterator[Row]) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    hints = {name: _plain(hint) for name, hint in get_type_hints(Row).items()}
    schema = pyarrow.schema([(name, kinds[hint]) for name, hint in hints.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as opened:
        while group := list(islice(rows, GROUP)):
            opened.write_table(pyarrow.Table.from_pylist(msgspec.to_builtins(group), schema))


def _plain(hint: Any) -> Any:
    """The type itself, of one that may be None."""
    return next(kind for kind in hint.__args__ if kind is not type(None)) if isinstance(hint, types.UnionType) else hint
