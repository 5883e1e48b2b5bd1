"""Which instructions of a built kernel would multiply narrower numbers than it is asked to.

Integers of 16 bits, or bf16, multiplied and added in one instruction, are twice as fast as fp32 and on normals nearly
as exact, so measuring errors alone does not tell them apart. A gate names a fault early; it is no proof: what jumps
into the middle of an instruction is not seen. Names: Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2.
"""

import re
import shutil

from cudal2.records import HarnessFault
from cudal2.worker import disassembly
from cudal2.worker.sandbox import jail

_NARROW = re.compile(
    rb"^\s*[0-9a-f]+:\t(?:\{?\w+\}? )*?(v?pmadd(?:wd|ubsw)|vpmadd52\w+|vpdp\w+|vp4dp\w+|vdpbf16ps|tdpb\w+)\b"
)
"""Multiply and add in one: of bytes, words, bf16; not `tdpfp16ps`, which adds products of halves in fp32."""


def narrow(library: bytes, kind: jail.Kind, seconds: float) -> tuple[str, ...]:
    """The names of such instructions in a shared object.

    ValueError where it cannot be read, the kind `disassembly.Unfinished` where `seconds` were too few; HarnessFault
    where there is no objdump or no jail.
    """
    program = shutil.which("objdump")
    if program is None:
        raise HarnessFault("objdump is not installed", "Install it: apt-get install binutils")
    try:
        with disassembly.listing([program, "-d", "--no-show-raw-insn"], library, kind, seconds) as lines:
            return tuple(sorted({found.group(1).decode() for line in lines if (found := _NARROW.match(line))}))
    except disassembly.Unfinished:
        raise
    except ValueError as error:
        raise ValueError("its instructions cannot be read") from error
