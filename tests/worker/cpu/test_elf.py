"""What of a shared object the loader would run, and what the judge does about it."""

import struct

import pytest

from cudal2.worker.cpu import elf
from tests.worker.cpu.shared_objects import CALL, built

OBJECTS = f"""
#include <string.h>
#include <vector>
struct Held {{ std::vector<int> values; Held() : values(3, 7) {{}} }};
static Held held;
thread_local int calls = 3;
__attribute__((constructor)) static void begin() {{ held.values[0] = 5; }}
__attribute__((destructor)) static void end() {{ held.values[0] = 6; }}
{CALL} {{ ++calls; memcpy(held.values.data(), &calls, 4); return held.values[0]; }}
"""


@pytest.fixture(scope="module")
def library() -> bytes:
    return built(OBJECTS)


def patched(library: bytes, place: int, form: str, *values: int) -> bytes:
    data = bytearray(library)
    struct.pack_into(form, data, place, *values)
    return bytes(data)


def entry(library: bytes, tag: int) -> elf.Entry:
    return next(entry for entry in elf.Image(library).entries if entry.tag == tag)


def test_only_tags_of_constructors_and_destructors_change(library):
    found = elf.without_constructors(library)
    before, after = elf.Image(library).entries, elf.Image(found).entries
    assert [one.value for one in before] == [one.value for one in after]
    moved = {one.tag: other.tag for one, other in zip(before, after) if one.tag != other.tag}
    assert set(moved) == set(elf.CONSTRUCTORS) & {one.tag for one in before} and len(moved) == 6
    assert all(new == old + elf.WITHHELD for old, new in moved.items())
    assert sum(a != b for a, b in zip(library, found)) <= 8 * len(moved)


@pytest.mark.parametrize("flags", [("-Wl,-z,noseparate-code",), ("-Wl,-z,now",), ("-Wl,--hash-style=both",), ("-O0",)])
def test_ordinary_objects_pass_however_they_are_linked(flags):
    assert elf.without_constructors(built(OBJECTS, *flags))


@pytest.mark.parametrize("static", ["", "static "])
def test_functions_that_choose_others_are_refused(static):
    source = f"""
    static int one() {{ return 1; }}
    extern "C" {{ {static}int (*pick())() {{ return one; }} {static}int picked() __attribute__((ifunc("pick"))); }}
    {CALL} {{ return picked(); }}
    """
    with pytest.raises(ValueError, match="choose others while it is loaded"):
        elf.check_loading(built(source))


def relocations(library: bytes) -> list[int]:
    """Where in the file each of them stands."""
    image = elf.Image(library)
    start = image.offset(image.values[elf.RELA], 0)
    return list(range(start, start + image.values[elf.RELASZ], elf.RELOCATION.size))


def test_relocations_write_to_data_of_the_object_alone_and_not_to_the_dynamic_section(library):
    image = elf.Image(library)
    code = next(one for one in image.loads if one.flags & elf.EXECUTE)
    for target in (image.section.address, image.section.address - 4, code.address, 1 << 40, (1 << 64) - 4096):
        with pytest.raises(ValueError, match="outside its data"):
            elf.check_loading(patched(library, relocations(library)[0], "<Q", target))


@pytest.mark.parametrize("kind", [5, 37, 38, 42], ids=["copy", "irelative", "relative64", "unknown"])
def test_relocations_that_copy_or_call_are_refused(library, kind):
    with pytest.raises(ValueError, match=r"unusual type|choose others"):
        elf.check_loading(patched(library, relocations(library)[0] + 8, "<Q", kind))


def test_what_comes_twice_is_refused(library):
    place = entry(library, 0x6FFFFFF9).place  # a count that nobody needs
    with pytest.raises(ValueError, match="twice"):
        elf.check_loading(patched(library, place, "<q", 25))


@pytest.mark.parametrize(
    ("tag", "said"), [(17, "unusual way"), (22, "unusual way"), (0x7FFFFFFD, "unusual way"), (0x60010019, "of ours")]
)
def test_unusual_entries_are_refused(library, tag, said):
    with pytest.raises(ValueError, match=said):
        elf.check_loading(patched(library, entry(library, 0x6FFFFFF9).place, "<q", tag))


@pytest.mark.parametrize("tag", [elf.RELA, elf.JMPREL, elf.SYMTAB, elf.GNU_HASH])
def test_tables_that_relocations_could_rewrite_are_refused(library, tag):
    data = next(one for one in elf.Image(library).loads if one.flags & elf.WRITE)
    with pytest.raises(ValueError, match="where it must not"):
        elf.check_loading(patched(library, entry(library, tag).place + 8, "<Q", data.address))


def test_other_libraries_are_refused(library):
    image = elf.Image(library)
    names = image.offset(image.values[elf.STRTAB], 0)
    place = library.index(b"libstdc++.so.6", names)
    with pytest.raises(ValueError, match=r"linked with libstdc\+\+\.so\.7"):
        elf.check_loading(library[:place] + b"libstdc++.so.7" + library[place + 14 :])


def headers(library: bytes) -> dict[int, int]:
    """By kind, the place of the last program header of each."""
    return {struct.unpack_from("<I", library, place)[0]: place for place in range(64, 64 + 56 * library[56], 56)}


def test_damaged_files_are_refused(library):
    with pytest.raises(ValueError, match="cut off"):
        elf.check_loading(b"no ELF file")
    for size in (63, 200, len(library) // 2):
        with pytest.raises(ValueError):
            elf.check_loading(library[:size])
    note, last = headers(library)[4], headers(library)[elf.LOAD]
    with pytest.raises(ValueError, match="or several"):
        elf.check_loading(patched(library, note, "<I", elf.DYNAMIC))
    with pytest.raises(ValueError, match="overlap"):
        elf.check_loading(
            patched(library, last + 16, "<Q", 0x1000 + struct.unpack_from("<Q", library, last + 8)[0] % 4096)
        )
    with pytest.raises(ValueError, match="can be written to"):
        elf.check_loading(patched(library, last + 4, "<I", 7))


def test_no_damage_to_a_byte_of_what_the_loader_reads_is_more_than_a_value_error(library):
    """Whatever a file says, reading it ends, and with nothing worse."""
    section = elf.Image(library).section
    for place in (*range(64), *range(64, 64 + 56 * library[56]), *range(section.offset, section.offset + 400)):
        for value in (0, 0x7F, 0xFF):
            try:
                elf.without_constructors(patched(library, place, "B", value))
            except ValueError:
                continue


@pytest.mark.parametrize("flags", [(), ("-Wl,-z,pack-relative-relocs",)], ids=["plain", "packed"])
def test_more_relocations_than_a_kernel_needs_are_refused(flags) -> None:
    """Of packed ones 4 MB would name 33 million places, each of which is looked at."""
    table = 'asm(".data\\n.p2align 3\\nhere: .rept %d\\n.quad here\\n.endr\\n.text");' + CALL + "{ return 0; }"
    elf.check_loading(built(table % 1000, *flags))
    with pytest.raises(ValueError, match="relocations"):
        elf.check_loading(built(table % (elf.MOST + 1), *flags))
