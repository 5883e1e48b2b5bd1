"""Files that are there whole or not at all."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Write a file at once: whoever is killed meanwhile leaves the old one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
