"""Shared objects for the tests of what the loader and the gate see."""

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cudal2.target import CPU
from cudal2.worker.cpu.backend import FLAGS

CALL = 'extern "C" int hgemm(const void*, const void*, void*, int, int, int, void*)'
"""What a kernel's function is declared as."""


@cache
def built(source: str, *flags: str) -> bytes:
    """Compiled as kernels are, outside of any jail."""
    with TemporaryDirectory() as folder:
        file, output = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        file.write_text(source)
        subprocess.run(["g++", *FLAGS, *CPU.flags, *flags, str(file), "-o", str(output)], check=True)
        return output.read_bytes()
