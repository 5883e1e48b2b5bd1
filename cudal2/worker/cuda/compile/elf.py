"""Reads ELF files that a stranger shaped: whatever is wrong with one is a ValueError, never a harness fault."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol, SymbolTableSection

_DAMAGE = (ELFError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""What pyelftools runs into, beside its own errors, where numbers, links or names in a file are damaged."""


@contextmanager
def opened(file: bytes) -> Iterator[ELFFile]:
    """The ELF file of these bytes. ValueError where it is none, or where what is read of it inside is damaged."""
    try:
        yield ELFFile(io.BytesIO(file))
    except _DAMAGE as error:
        raise ValueError(f"not an ELF file: {type(error).__name__} {error}"[:300]) from error


def symbols(file: bytes, section: str) -> list[Symbol]:
    """The named symbols of an ELF file. ValueError where it is none."""
    with opened(file) as elf:
        table = elf.get_section_by_name(section)
        if not isinstance(table, SymbolTableSection):
            raise ValueError(f"no section {section}")
        return [symbol for symbol in table.iter_symbols() if symbol.name]
