"""What the loader reads of a shared object, read as it reads it: segments, and the entries of the dynamic section.

Only what the program headers say counts; sections and their symbols are names for people, and may say anything. Bytes
that a stranger shaped: whatever is damaged, or has an unusual form, is a ValueError. Names: System V ABI, AMD64.

And no code of it runs while it is loaded: then the runner may still open its file and map code. Three things would run:
constructors, functions that choose a symbol's address (IFUNC), and whatever relocations make of the loader, which
applies them before anybody looks. So the tags of constructors are renamed to private ones, which no loader knows: the
runner calls them itself, when the filter of system calls is narrow (runner.cpp). Renaming is safe against relocations
that write tags: the loader notes which tags there are as soon as an object is mapped, and they may not touch the
dynamic section. Other ways are refused: relocations and tables that an ordinary object does not have. Read as glibc
reads it (elf/dl-load.c, elf/get-dynamic-info.h, sysdeps/x86_64/dl-machine.h).
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
MOST_SEGMENTS, MOST = 64, 1 << 16
"""Segments; relocations, and symbols, which a kernel of so little code has a few dozen of. A packed table of 4 MB would
name 33 million places, and take a minute to read."""
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


WITHHELD = 0x60010000
"""Added to the tags of constructors and destructors; in the range of tags that an operating system may use."""
CONSTRUCTORS = 12, 13, 25, 26, 27, 28, 32, 33
"""INIT, FINI, INIT_ARRAY, FINI_ARRAY, their sizes, PREINIT_ARRAY, its size."""
LIBRARIES = {"libgomp.so.1", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"}
"""What a kernel may be linked with: what g++ does of itself."""
PLTRELSZ, STRTAB, SYMTAB, RELA, RELASZ, STRSZ = 2, 5, 6, 7, 8, 10
REL, PLTREL, TEXTREL, JMPREL, FLAGS = 17, 20, 22, 23, 30
RELRSZ, RELR, GNU_HASH, AUXILIARY, FILTER = 35, 36, 0x6FFFFEF5, 0x7FFFFFFD, 0x7FFFFFFF
DF_TEXTREL = 4
RELOCATION, WORD, SYMBOL = struct.Struct("<QQq"), struct.Struct("<Q"), struct.Struct("<IBBHQQ")
ORDINARY = {0: 0, 1: 8, 6: 8, 7: 8, 8: 8, 16: 8, 17: 8, 18: 8, 36: 16}
"""Types of relocations that copy nothing and call nothing, with the bytes that each writes: NONE, 64, GLOB_DAT,
JUMP_SLOT, RELATIVE, DTPMOD64, DTPOFF64, TPOFF64, TLSDESC."""
CHOSEN = 37
"""IRELATIVE: by the result of a function."""
IFUNC = 10
SAID_CHOSEN = "it has functions that choose others while it is loaded (ifunc, target_clones); call what you want called"


def without_constructors(library: bytes) -> bytes:
    """The shared object, of which the loader runs nothing; `runner.cpp` runs what was a constructor.

    ValueError where it is no ordinary one, with what is unusual in plain words.
    """
    image = check_loading(library)
    patched = bytearray(library)
    for entry in image.entries:
        if entry.tag in CONSTRUCTORS:
            ENTRY.pack_into(patched, entry.place, WITHHELD + entry.tag, entry.value)
    return bytes(patched)


def check_loading(library: bytes) -> Image:
    """The shared object, read; ValueError where loading it may run code of it beside its constructors."""
    image = Image(library)
    values = image.values
    if values.keys() & {REL, TEXTREL, AUXILIARY, FILTER} or values.get(FLAGS, 0) & DF_TEXTREL:
        raise ValueError("it is linked in an unusual way")
    if any(WITHHELD <= entry.tag <= WITHHELD + max(CONSTRUCTORS) for entry in image.entries):
        raise ValueError("it has private entries of ours")
    for one in image.segments:
        if one.kind == TLS and one.stored:
            image.offset(one.address, one.stored)
    _check_libraries(image)
    most = 0
    for number, (place, size, symbol) in enumerate(_writes(image)):
        if number == MOST:
            raise ValueError(f"it has more than {MOST} relocations")
        most = max(most, symbol)
        _check_target(image, place, size)
    _check_symbols(image, most)
    return image


def _check_libraries(image: Image) -> None:
    start = image.offset(image.values.get(STRTAB, 0), image.values.get(STRSZ, 0), writable=False)
    for entry in image.entries:
        if entry.tag == NEEDED:
            name = image.data[start + entry.value :].split(b"\0", 1)[0][:80].decode(errors="replace")
            if name not in LIBRARIES:
                raise ValueError(f"it is linked with {name}")


def _writes(image: Image) -> Iterator[tuple[int, int, int]]:
    """The address, size and symbol of all that relocations write. ValueError where they are not ORDINARY."""
    values = image.values
    if values.get(PLTREL, RELA) != RELA:
        raise ValueError("it is linked in an unusual way")
    for start, length in ((RELA, RELASZ), (JMPREL, PLTRELSZ)):
        if start in values:
            for place, info, _ in image.table(values[start], values.get(length, 0), RELOCATION):
                if info & 0xFFFFFFFF == CHOSEN:
                    raise ValueError(SAID_CHOSEN)
                if info & 0xFFFFFFFF not in ORDINARY:
                    raise ValueError(f"it has a relocation of the unusual type {info & 0xFFFFFFFF}")
                yield place, ORDINARY[info & 0xFFFFFFFF], info >> 32
    if RELR in values:  # packed: an address, then bit masks of the 63 words behind it
        place = 0
        for (word,) in image.table(values[RELR], values.get(RELRSZ, 0), WORD):
            if word & 1:
                yield from ((place + 8 * bit, 8, 0) for bit in range(63) if word >> (bit + 1) & 1)
                place += 63 * 8
            else:
                yield word, 8, 0
                place = word + 8


def _check_target(image: Image, place: int, size: int) -> None:
    """Only data of its own may be written, and not the section that the loader goes by."""
    section = image.section
    inside = any(
        one.flags & WRITE and one.address <= place and place + size <= one.address + one.size for one in image.loads
    )
    if size and (not inside or (section.address < place + size and place < section.address + section.size)):
        raise ValueError("it has a relocation outside its data")


def _check_symbols(image: Image, most: int) -> None:
    """None that can be found, by its number up to `most` or by its name, is chosen by a function."""
    if SYMTAB not in image.values or GNU_HASH not in image.values:
        raise ValueError("it has no symbols, or no hashes of their names")
    count = max(most, _last_by_name(image, image.values[GNU_HASH])) + 1
    for _, info, *_ in image.table(image.values[SYMTAB], count * SYMBOL.size, SYMBOL):
        if info & 15 == IFUNC:
            raise ValueError(SAID_CHOSEN)


def _last_by_name(image: Image, address: int) -> int:
    """The greatest number of a symbol that a look-up by name comes to: the end of the last chain of hashes."""

    def words(place: int, count: int) -> tuple[int, ...]:
        start = image.offset(place, 4 * count, writable=False)
        return struct.unpack_from(f"<{count}I", image.data, start)

    buckets, first, filters, _ = words(address, 4)
    begins = address + 16 + 8 * filters
    chains = words(begins, buckets)
    last = max(chains, default=0)
    if any(0 < chain < first for chain in chains):
        raise ValueError("its hashes of names are damaged")
    if not last:
        return 0
    while not words(begins + 4 * (buckets + last - first), 1)[0] & 1:
        last += 1
        if last > MOST:
            raise ValueError(f"it has more than {MOST} symbols")
    return last
