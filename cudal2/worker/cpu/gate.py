"""Which instructions of a built kernel would multiply other numbers than it is asked to.

Integers of 16 bits, or bf16, are multiplied twice as fast as fp32, and on normals nearly as exactly: measuring errors
hardly tells them apart, and where sums in fp16 are allowed not at all. Where bf16 is asked for, its own instructions
may be used: they add in fp32, and that they take the smallest numbers (below 2^-126) for zero is what torch's library
does, too; fp16 then is the type of too few exponents. A gate names a fault early; it is no proof. It looks at the bytes
that can be executed, whatever a symbol or a section says of them, and twice: at the instructions that follow
one another from the first byte on, of which none may be narrow, and at what would be one if it began at any byte. The
latter happens by chance, about once in a megabyte of honest code, so only several of one kind count.
Names and encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

import re
import shutil
from collections.abc import Iterable, Iterator

from cudal2.dtype import FP16, DType
from cudal2.records import HarnessFault
from cudal2.worker.build import Unfinished, listing
from cudal2.worker.cpu import elf
from cudal2.worker.sandbox import jail

_NARROW = re.compile(
    rb"^\s*[0-9a-f]+:\t(?:\{?\w+\}? )*?"
    rb"(v?pmadd(?:wd|ubsw)|v?pmul(?:h(?:rs|u)?|l)w|vpmadd52\w+|vpdp\w+|vp4dp\w+|vdpbf16ps|t?tdp[bh]\w+|tdpfp16ps"
    rb"|vf(?:n?m(?:add|sub)\w*|c?maddc)\w*[ps]h)\b"
)
"""Multiply and add in one: of bytes, words, bf16, 8-bit floats, halves; and products of words, of which there are twice
as many in a register as of floats."""
_OWN = {"fp16": re.compile(rb"tdpfp16ps|vf"), "bf16": re.compile(rb"vdpbf16ps|tdpbf16ps")}
"""Which of these multiply numbers of a type as they are. Of halves, `tdpfp16ps` adds in fp32, the others in fp16."""
CODE_BYTES = 256 << 10
"""Most that a kernel may have to execute. Ours have a tenth of it, and in so much hardly anything occurs by chance."""
SEVERAL = 4
"""So many of one kind that differ are no chance, wherever they are, for to jump between them costs little. Fewer are of
use, too, as one in a loop is; but one honest kernel in twelve has one."""
SHORTEST = 6
"""Bytes of an EVEX instruction in which its registers are named, or how its memory is."""
GAP = bytes(64)
"""Between two segments, so that no instruction lies in both."""


def narrow(library: bytes, kind: jail.Kind, seconds: float, dtype: DType = FP16) -> tuple[str, ...]:
    """The names of such instructions in a shared object that is given numbers of that type.

    ValueError where it cannot be read, the kind `build.Unfinished` where `seconds` were too few; HarnessFault
    where there is no objdump or no jail.
    """
    program = shutil.which("objdump")
    if program is None:
        raise HarnessFault("objdump is not installed", "Install it: apt-get install binutils")
    code = GAP.join(elf.Image(library).code())
    if len(code) > CODE_BYTES:
        raise ValueError(f"it has {len(code)} bytes of instructions, at most {CODE_BYTES}")
    try:
        raw = ["-D", "-b", "binary", "-m", "i386:x86-64", "--no-show-raw-insn"]
        with listing([program, *raw], code, kind, seconds) as lines:
            return tuple(sorted({*in_order(lines, dtype), *anywhere(code, dtype)}))
    except Unfinished:
        raise
    except ValueError as error:
        raise ValueError("its instructions cannot be read") from error


def in_order(lines: Iterable[bytes], dtype: DType = FP16) -> Iterator[str]:
    """Names of narrow instructions in a disassembler's listing."""
    names = (found.group(1) for line in lines if (found := _NARROW.match(line)))
    return (name.decode() for name in names if not _OWN[dtype.name].match(name))


def anywhere(code: bytes, dtype: DType = FP16) -> Iterator[str]:
    """What these bytes hold SEVERAL of, whatever byte they begin at."""
    for name, form in _FORMS.items():
        if not _OWN[dtype.name].match(name.encode()):
            kinds = {code[found.start() : found.start() + SHORTEST] for found in form.finditer(code)}
            if len(kinds) >= SEVERAL:
                yield name


def _one_of(allowed: Iterable[int]) -> bytes:
    return b"[%s]" % b"".join(rb"\x%02x" % byte for byte in allowed)


_WIDTHS = _one_of(byte for byte in range(256) if byte & 0x60 != 0x60)


def _form(table: int, prefixes: set[int], codes: Iterable[int], wide: set[int]) -> re.Pattern[bytes]:
    """Of a table of opcodes (1 is 0F, 2 is 0F38), with one of these prefixes (0 none, 1 66, 2 F3, 3 F2) and bits W: as
    VEX, as EVEX, and where W says nothing the old form with the prefix 66.

    Of EVEX only what a processor takes: two bits are fixed (until one has APX's 32 registers), and no width is 3. Else
    honest code looks like it far oftener: an offset behind `vfmadd213ss` did five times in one kernel.
    """
    code = _one_of(codes)
    chosen = [byte for byte in range(256) if byte & 3 in prefixes and byte >> 7 in wide]
    selects, fixed = _one_of(chosen), _one_of(byte for byte in chosen if byte & 4)
    forms = [
        rb"\xc4%s%s%s" % (_one_of(byte for byte in range(256) if byte & 31 == table), selects, code),
        rb"\x62%s%s%s%s" % (_one_of(byte for byte in range(256) if byte & 15 == table), fixed, _WIDTHS, code),
    ]
    if table == 1:
        forms.append(rb"\xc5%s%s" % (_one_of(byte for byte in range(256) if byte & 3 in prefixes), code))
    if wide == {0, 1}:
        forms.append(rb"\x66[\x40-\x4f]?%s%s" % ({1: rb"\x0f", 2: rb"\x0f\x38"}[table], code))
    return _overlapping(forms)


def _tiles(table: int, prefixes: set[int], code: int) -> re.Pattern[bytes]:
    """The same of three registers of tiles, of which there are eight: as VEX, with no memory and no other width."""
    tables = _one_of(byte for byte in range(256) if byte & 31 == table)
    selects = _one_of(byte for byte in range(256) if byte & 3 in prefixes and byte & 0b11000100 == 0b01000000)
    return _overlapping([rb"\xc4%s%s%s[\xc0-\xff]" % (tables, selects, _one_of([code]))])


def _overlapping(forms: list[bytes]) -> re.Pattern[bytes]:
    return re.compile(b"(?=%s)" % b"|".join(forms))  # nothing is consumed


_FORMS = {
    "pmaddwd": _form(1, {1}, [0xF5], {0, 1}),
    "pmullw": _form(1, {1}, [0xD5, 0xE4, 0xE5], {0, 1}),
    "pmulhrsw": _form(2, {1}, [0x0B], {0, 1}),
    "pmaddubsw": _form(2, {1}, [0x04], {0, 1}),
    "vpmadd52": _form(2, {1}, [0xB4, 0xB5], {1}),
    "vpdpb": _form(2, {0, 1, 2, 3}, [0x50, 0x51], {0}),
    "vpdpw": _form(2, {1}, [0x52, 0x53], {0}),
    "vp4dpw": _form(2, {3}, [0x52, 0x53], {0}),
    "vpdpw of mixed signs": _form(2, {0, 1, 2}, [0xD2, 0xD3], {0}),
    "vdpbf16ps": _form(2, {2}, [0x52], {0}),
    "tdpb": _tiles(2, {0, 1, 2, 3}, 0x5E),
    "tdpbf16ps": _tiles(2, {2}, 0x5C),
    "tdpfp16ps": _tiles(2, {3}, 0x5C),
    "tdpbf8ps": _tiles(5, {0, 1, 2, 3}, 0xFD),
}
