"""Which instructions of a built kernel would multiply narrower numbers than it is asked to.

Integers of 16 bits, or bf16, multiplied and added in one instruction, are twice as fast as fp32 and on normals nearly
as exact, so measuring errors alone does not tell them apart. A gate names a fault early; it is no proof: what jumps
into the middle of an instruction is not seen. Names: Intel 64 and IA-32 Architectures Software Developer's Manual,
volume 2.

objdump parses bytes that a stranger chose, so it runs in the jail.
"""

import re
import shutil

from cudal2.records import HarnessFault
from cudal2.worker.build import job
from cudal2.worker.sandbox import jail, seccomp

LISTING_BYTES = 256 << 20
_NARROW = re.compile(
    rb"^\s*[0-9a-f]+:\t(?:\{?\w+\}? )*?(v?pmadd(?:wd|ubsw)|vpmadd52\w+|vpdp\w+|vp4dp\w+|vdpbf16ps|tdpb\w+)\b"
)
"""Multiply and add in one: of bytes, words, bf16; not `tdpfp16ps`, which adds products of halves in fp32."""


def narrow(library: bytes, kind: jail.Kind, seconds: float) -> tuple[str, ...]:
    """The names of such instructions in a shared object.

    ValueError where it cannot be read within `seconds`; HarnessFault where there is no objdump or no jail.
    """
    program = shutil.which("objdump")
    if program is None:
        raise HarnessFault("objdump is not installed", "Install it: apt-get install binutils")
    with job("read a kernel") as folder:
        (folder / "kernel.so").write_bytes(library)
        code = jail.run(
            kind,
            # The jail has no standard output; the shell gives it a file.
            ["/bin/sh", "-c", 'exec "$0" -d --no-show-raw-insn kernel.so > listing 2> told', program],
            seconds,
            writable=[folder],
            limits=jail.Limits(file_size=LISTING_BYTES, cpu_seconds=int(seconds) + 1),
            filter_program=seccomp.toolchain(),
        )
        listing = folder / "listing"
        if code != 0 or listing.is_symlink() or not listing.is_file():
            raise ValueError("its instructions cannot be read")
        with listing.open("rb") as lines:
            return tuple(sorted({found.group(1).decode() for line in lines if (found := _NARROW.match(line))}))
