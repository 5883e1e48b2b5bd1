"""Reads what wandb kept of an offline run: its file is a log of protocol buffers in LevelDB's format.

The format: https://github.com/google/leveldb/blob/main/doc/log_format.md, with a header of seven bytes in front.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK, HEADER, WHOLE, LAST = 1 << 15, 7, 1, 4


def records(folder: Path) -> Iterator[Any]:
    """All records of the offline runs below `folder`, the first start's first."""
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in _chunks(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record


def _chunks(log: bytes) -> Iterator[bytes]:
    assert log[:4] == b":W&B"
    at, parts = HEADER, list[bytes]()
    while at + HEADER <= len(log):
        if BLOCK - at % BLOCK < HEADER:  # what is left of a block holds no header
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", log, at)
        if not kind:
            at += BLOCK - at % BLOCK
            continue
        at += HEADER
        parts.append(log[at : at + size])
        at += size
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts.clear()


def rows(folder: Path) -> list[dict[str, Any]]:
    """What was logged, a dictionary a step, nested keys joined by dots."""
    found = []
    for record in records(folder):
        if record.HasField("history"):
            items = record.history.item
            found.append({".".join(one.nested_key) or one.key: json.loads(one.value_json) for one in items})
    return found
