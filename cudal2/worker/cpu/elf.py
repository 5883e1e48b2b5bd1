"""What the loader reads of a shared object, read as it reads it: segments, and the entries of the dynamic section.

Only what the program headers say counts; sections and their symbols are names for people, and may say anything. Bytes
that a stranger shaped: whatever is damaged, or has an unusual form, is a ValueError. Names: System V ABI, AMD64.
"""

import struct
from collections.abc import Iterator
from functools import cached_property

import msgspec

PAGE = 4096
LOAD, DYNAMIC, TLS = 1, 2, 7
EXECUTE, WRITE = 1, 2
NULL, NEEDED = 0, 1
"""Tags: the end of the dynamic section, and the only one that may stand there more than once."""
HEADER = struct.Struct("<4s3B9xHHIQQQI6H")
SEGMENT = struct.Struct("<IIQQQQQQ")
ENTRY = struct.Struct("<qQ")
SHARED, AMD64 = 3, 62
MOST_SEGMENTS = 64
HIGHEST = 1 << 46


class Segment(msgspec.Struct, frozen=True):
    """Of what `kind` and `flags`: `stored` bytes from `offset` on in the file, `size` from `address` on in memory."""

    kind: int
    flags: int
    offset: int
    address: int
    stored: int
    size: int

    @property
    def pages(self) -> range:
        """The addresses of all its pages."""
        return range(self.address // PAGE * PAGE, -(-(self.address + self.size) // PAGE) * PAGE)


class Entry(msgspec.Struct, frozen=True):
    """Of the dynamic section: a tag and its value, and where they stand in the file."""

    tag: int
    value: int
    place: int


class Image:
    """A shared object for this kind of processor. ValueError where it is none, or segments share a page."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self.segments = tuple(_segments(data))
        except struct.error as error:
            raise ValueError("it is cut off") from error
        self.loads = tuple(one for one in self.segments if one.kind == LOAD)
        end = 0
        for one in self.loads:
            if one.pages.start < end or not one.size or one.address % PAGE != one.offset % PAGE:
                raise ValueError("its segments overlap")
            if one.flags & EXECUTE and one.flags & WRITE:
                raise ValueError("it has code that can be written to")
            end = one.pages.stop

    def offset(self, address: int, size: int, writable: bool | None = None) -> int:
        """Where in the file these bytes of memory come from; ValueError where none of that kind do."""
        for one in self.loads:
            inside = one.address <= address and address + size <= one.address + one.stored
            if inside and writable in (None, bool(one.flags & WRITE)):
                return one.offset + address - one.address
        raise ValueError("a table of it lies where it must not")

    def table(self, address: int, size: int, form: struct.Struct) -> Iterator[tuple[int, ...]]:
        """The rows of a table that nobody can write to."""
        if size % form.size:
            raise ValueError("a table of it ends within a row")
        start = self.offset(address, size, writable=False)
        return form.iter_unpack(self.data[start : start + size])

    @cached_property
    def section(self) -> Segment:
        """The dynamic section."""
        found = [one for one in self.segments if one.kind == DYNAMIC]
        if len(found) != 1 or self.offset(found[0].address, found[0].stored) != found[0].offset:
            raise ValueError("it has no dynamic section, or several")
        return found[0]

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Those of the dynamic section up to its end; ValueError where there is none, or a tag stands there twice."""
        found: list[Entry] = []
        first = self.section.offset
        for place in range(first, first + self.section.stored - ENTRY.size + 1, ENTRY.size):
            tag, value = ENTRY.unpack_from(self.data, place)
            if tag == NULL:
                tags = [entry.tag for entry in found if entry.tag != NEEDED]
                if len(tags) > len(set(tags)):
                    raise ValueError("its dynamic section says something twice")
                return tuple(found)
            found.append(Entry(tag, value, place))
        raise ValueError("its dynamic section does not end")

    @cached_property
    def values(self) -> dict[int, int]:
        """By tag, without the libraries that are needed."""
        return {entry.tag: entry.value for entry in self.entries if entry.tag != NEEDED}

    def code(self) -> Iterator[bytes]:
        """Of each executable segment what can be executed: its pages are mapped whole."""
        for one in self.loads:
            if one.flags & EXECUTE:
                yield self.data[one.offset // PAGE * PAGE : -(-(one.offset + one.stored) // PAGE) * PAGE]


def _segments(data: bytes) -> Iterator[Segment]:
    fields = HEADER.unpack_from(data)
    first, size, count = fields[8], fields[12], fields[13]
    if fields[:6] != (b"\x7fELF", 2, 1, 1, SHARED, AMD64) or size != SEGMENT.size:
        raise ValueError("it is no shared object of this kind of processor")
    if count > MOST_SEGMENTS:
        raise ValueError("it has too many segments")
    if first + count * size > len(data):
        raise ValueError("it is cut off")
    for number in range(count):
        kind, flags, offset, address, _, stored, memory, _ = SEGMENT.unpack_from(data, first + number * size)
        if address + memory > HIGHEST or stored > memory or (kind == LOAD and offset + stored > len(data)):
            raise ValueError("a segment lies beyond its end")
        yield Segment(kind, flags, offset, address, stored, memory)
