"""Reads what wandb kept of offline runs: each start's file is a log of protocol buffers in LevelDB's format.

The format: https://github.com/google/leveldb/blob/main/doc/log_format.md, with a header of seven bytes in front.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from processes import wait_for
from wandb.proto import wandb_internal_pb2

BLOCK, HEADER, WHOLE, LAST = 1 << 15, 7, 1, 4


class Artefact(NamedTuple):
    type: str
    files: dict[str, bytes]


class Start(NamedTuple):
    """What one start of a run left: wandb's record of the run, its configuration, what it logged (a dictionary a step,
    nested keys joined by dots) and its artefacts."""

    run: Any
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    artefacts: list[Artefact]


def starts(folder: Path) -> list[Start]:
    """Every start of the run in `folder`, the first one first."""
    return [_start(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def table(folder: Path, row: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a table that was logged in `row`."""
    (path,) = folder.glob(f"wandb/offline-run-*/files/{row[f'{name}.path']}")
    found = json.loads(path.read_text())
    return [dict(zip(found["columns"], values, strict=True)) for values in found["data"]]


def _start(path: Path) -> Start:
    # Another process writes the file; on a busy machine it may do so a moment after the run has ended.
    wait_for(lambda: any(record.WhichOneof("record_type") == "exit" for record in _records(path.read_bytes())), 10)
    run, config, rows, artefacts = None, {}, [], []
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= {item.key: json.loads(item.value_json) for item in run.config.update}
        elif kind == "history":
            items = record.history.item
            rows.append({".".join(one.nested_key) or one.key: json.loads(one.value_json) for one in items})
        elif kind == "artifact":
            files = {one.path: Path(one.local_path).read_bytes() for one in record.artifact.manifest.contents}
            artefacts.append(Artefact(record.artifact.type, files))
    return Start(run, config, rows, artefacts)


def _records(log: bytes) -> Iterator[Any]:
    assert log[:4] in (b":W&B", b"")
    at, parts = HEADER, list[bytes]()
    while at + HEADER <= len(log):
        _, size, kind = struct.unpack_from("<IHB", log, at)
        left = BLOCK - at % BLOCK
        if left < HEADER or not kind:  # what is left of a block holds nothing
            at += left
            continue
        if at + HEADER + size > len(log):
            return  # it is being written
        parts.append(log[at + HEADER : at + HEADER + size])
        at += HEADER + size
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts.clear()
            yield record
