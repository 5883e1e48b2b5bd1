"""Which versions of its system's symbols a shared library needs, as the loader will check them."""

import io
import re

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from cudal2.worker.build import OLDEST


def needed(library: bytes) -> dict[str, tuple[int, ...]]:
    """By name, for example GLIBC_2.28: its numbers."""
    found = {}
    for section in ELFFile(io.BytesIO(library)).iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for one in versions:
                    found[one.name] = tuple(map(int, re.findall(r"\d+", one.name.partition("_")[2])))
    return found


def too_new(library: bytes) -> list[str]:
    """Those that the oldest system we mean to run on does not have."""
    return [name for name, numbers in needed(library).items() if numbers > OLDEST.get(name.partition("_")[0], ())]
