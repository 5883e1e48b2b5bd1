"""Which instructions of a built kernel would multiply narrower numbers than it is asked to.

Integers of 16 bits, or bf16, multiplied and added in one instruction, are twice as fast as fp32 and on normals nearly
as exact, so measuring errors alone does not tell them apart. A gate names a fault early; it is no proof. It looks at
the bytes that can be executed, whatever a symbol or a section says of them, and twice: at the instructions that follow
one another from the first byte on, of which none may be narrow, and at what would be one if it began at any byte. The
latter happens by chance, about once in a megabyte of honest code, so only several of one kind near each other count.
Names and encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

import re
import shutil
from collections.abc import Iterable, Iterator

from cudal2.records import HarnessFault
from cudal2.worker import disassembly
from cudal2.worker.cpu import elf
from cudal2.worker.sandbox import jail

_NARROW = re.compile(
    rb"^\s*[0-9a-f]+:\t(?:\{?\w+\}? )*?"
    rb"(v?pmadd(?:wd|ubsw)|vpmadd52\w+|vpdp\w+|vp4dp\w+|vdpbf16ps|t?tdp[bh]\w+)\b"
)
"""Multiply and add in one: of bytes, words, bf16, 8-bit floats; not `tdpfp16ps`, which adds products of halves in
fp32."""
CODE_BYTES = 8 << 20
"""Most that a kernel may have to execute; looking at it takes two seconds."""
NEAR, SEVERAL = 1 << 16, 3
"""So many of one kind within so many bytes are no chance: jumping between them costs little, so near is far."""
GAP = bytes(64)
"""Between two segments, so that no instruction lies in both."""


def narrow(library: bytes, kind: jail.Kind, seconds: float) -> tuple[str, ...]:
    """The names of such instructions in a shared object.

    ValueError where it cannot be read, the kind `disassembly.Unfinished` where `seconds` were too few; HarnessFault
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
        with disassembly.listing([program, *raw], code, kind, seconds) as lines:
            return tuple(sorted({*in_order(lines), *anywhere(code)}))
    except disassembly.Unfinished:
        raise
    except ValueError as error:
        raise ValueError("its instructions cannot be read") from error


def in_order(lines: Iterable[bytes]) -> Iterator[str]:
    """Names of narrow instructions in a disassembler's listing."""
    return (found.group(1).decode() for line in lines if (found := _NARROW.match(line)))


def anywhere(code: bytes) -> Iterator[str]:
    """What these bytes hold SEVERAL of within NEAR, whatever byte they begin at."""
    for name, form in _FORMS.items():
        places = [found.start() for found in form.finditer(code)]
        if any(last - first < NEAR for first, last in zip(places, places[SEVERAL - 1 :])):
            yield name


def _one_of(allowed: Iterable[int]) -> bytes:
    return b"[%s]" % b"".join(rb"\x%02x" % byte for byte in allowed)


def _form(table: int, prefixes: set[int], codes: Iterable[int], wide: set[int], tiles: bool = False) -> re.Pattern:
    """Of a table of opcodes (1 is 0F, 2 is 0F38, 5 is MAP5), with one of these prefixes (0 none, 1 66, 2 F3, 3 F2) and
    bits W: as VEX, as EVEX unless they are of `tiles`, and the old form with the prefix 66.
    """
    code = _one_of(codes)
    selects = _one_of(byte for byte in range(256) if byte & 3 in prefixes and byte >> 7 in wide)
    forms = [rb"\xc4%s%s%s" % (_one_of(byte for byte in range(256) if byte & 31 == table), selects, code)]
    if not tiles:
        tables = _one_of(byte for byte in range(256) if byte & 7 == table)
        forms.append(rb"\x62%s%s[\x00-\xff]%s" % (tables, selects, code))
    if table == 1:
        forms.append(rb"\xc5%s%s" % (_one_of(byte for byte in range(256) if byte & 3 in prefixes), code))
    if wide == {0, 1}:
        forms.append(rb"\x66[\x40-\x4f]?%s%s" % ({1: rb"\x0f", 2: rb"\x0f\x38"}[table], code))
    return re.compile(b"(?=%s)" % b"|".join(forms))  # nothing is consumed: they may overlap


_FORMS = {
    "pmaddwd": _form(1, {1}, [0xF5], {0, 1}),
    "pmaddubsw": _form(2, {1}, [0x04], {0, 1}),
    "vpmadd52": _form(2, {1}, [0xB4, 0xB5], {1}),
    "vpdpb": _form(2, {0, 1, 2, 3}, [0x50, 0x51], {0}),
    "vpdpw": _form(2, {1}, [0x52, 0x53], {0}),
    "vp4dpw": _form(2, {3}, [0x52, 0x53], {0}),
    "vpdpw of mixed signs": _form(2, {0, 1, 2}, [0xD2, 0xD3], {0}),
    "vdpbf16ps": _form(2, {2}, [0x52], {0}),
    "tdpb": _form(2, {0, 1, 2, 3}, [0x5E], {0}, tiles=True),
    "tdpbf16ps": _form(2, {2}, [0x5C], {0}, tiles=True),
    "tdpbf8ps": _form(5, {0, 1, 2, 3}, [0xFD], {0}, tiles=True),
}
