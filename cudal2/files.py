"""Writing files atomically."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically: a process that is killed meanwhile leaves the old file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
