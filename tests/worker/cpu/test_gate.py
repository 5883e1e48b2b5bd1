"""What of a processor's instructions the gate names."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cudal2.dtype import BF16
from cudal2.records import HarnessFault, Status
from cudal2.worker.build import Unfinished
from cudal2.worker.cpu import backend, elf, gate
from cudal2.worker.sandbox import jail
from tests.worker.cpu.shared_objects import CALL, built

LINE = "    11{}9:\t{}%zmm1,%zmm2,%zmm3"


@pytest.mark.parametrize(
    "name",
    [
        "pmaddwd",
        "vpmaddwd",
        "vpmaddubsw",
        "vpmullw",
        "pmulhw",
        "vpmulhuw",
        "vpmulhrsw",
        "vpdpwssd",
        "vpdpbusds",
        "{vex} vpdpbusd",
        "vdpbf16ps",
        "tdpbf16ps",
        "tdpbssd",
    ],
)
def test_narrow_products_are_named(name):
    assert list(gate.in_order([LINE.format(3, f"{name} ").encode()])) == [name.split()[-1]]


@pytest.mark.parametrize(
    "name", ["vfmadd231ps", "vfmadd231ph", "tdpfp16ps", "vpmulld", "vpmuludq", "vpaddd", "call   10 <vpdpwssd>"]
)
def test_what_honest_kernels_use_is_not(name):
    assert not list(gate.in_order([LINE.format("a", f"{name} ").encode()]))


@pytest.mark.parametrize(
    ("name", "narrow"),
    [
        *(("vdpbf16ps", False), ("tdpbf16ps", False), ("vfmadd231ps", False), ("vcvtneps2bf16", False)),
        *(("vpdpwssd", True), ("tdpbssd", True), ("vfmadd231ph", True), ("tdpfp16ps", True), ("vfmaddcph", True)),
    ],
)
def test_where_bf16_is_asked_for_its_own_instructions_may_be_used_and_none_of_fp16(name, narrow):
    assert bool(list(gate.in_order([LINE.format(3, f"{name} ").encode()], BF16))) == narrow


@pytest.mark.parametrize(
    "text",
    [
        "vpmaddwd %xmm1,%xmm2,%xmm3",
        "vpmaddwd %ymm1,%ymm2,%ymm13",
        "vpmaddwd (%rax),%ymm12,%ymm13",
        "vpmaddwd %zmm1,%zmm2,%zmm30{%k1}",
        "pmaddwd %xmm1,%xmm2",
        "pmaddwd %xmm9,%xmm2",
        "vpmaddubsw %ymm11,%ymm2,%ymm3",
        "vpmaddubsw %zmm1,%zmm2,%zmm3",
        "pmaddubsw %xmm1,%xmm12",
        "vpmullw (%rax),%zmm2,%zmm3",
        "pmulhw %xmm1,%xmm2",
        "vpmulhuw %ymm1,%ymm2,%ymm3",
        "vpmulhrsw %zmm1,%zmm2,%zmm3",
        "pmulhrsw %xmm1,%xmm12",
        "vpmadd52luq %zmm1,%zmm2,%zmm3",
        "vpmadd52huq %ymm1,%ymm2,%ymm3",
        "vpdpbusd %zmm1,%zmm2,%zmm3",
        "vpdpbusds (%rsi),%zmm2,%zmm23",
        "vpdpwssd (%rsi){1to16},%zmm2,%zmm3",
        "vpdpwssds %ymm1,%ymm2,%ymm3",
        "{vex} vpdpwssd %ymm1,%ymm2,%ymm3",
        "vdpbf16ps %zmm1,%zmm2,%zmm3",
        "v4fmaddps (%rax),%zmm4,%zmm1",
        "vp4dpwssd (%rax),%zmm4,%zmm1",
        "tdpbf16ps %tmm1,%tmm2,%tmm3",
        "tdpbssd %tmm1,%tmm2,%tmm3",
        "tdpbuud %tmm1,%tmm2,%tmm3",
        "tdpfp16ps %tmm1,%tmm2,%tmm3",
        "vfmadd231ps %zmm1,%zmm2,%zmm3",
        "vdpphps %zmm1,%zmm2,%zmm3",
        "vpmulld %zmm1,%zmm2,%zmm3",
    ],
)
def test_bytes_are_known_wherever_they_stand_if_there_are_several(text):
    """By what the assembler makes of an instruction; some are honest, and nothing is said of one or two."""
    honest = ("v4fmaddps", "tdpfp16ps", "vfmadd231ps", "vdpphps", "vpmulld")
    try:
        code = assembled(text)
    except subprocess.CalledProcessError:
        pytest.skip("the assembler is older than the instruction")
    for gap, said in ((0, True), (3, True), (1 << 16, True)):
        spread = b"".join(
            code[:-1] + bytes([(code[-1] & 0xC0) + number]) + b"\x01" * gap for number in range(gate.SEVERAL)
        )
        assert bool(list(gate.anywhere(b"\xb8" + spread))) == (said and not text.startswith(honest))
    assert not list(gate.anywhere((code + b"\x90") * (gate.SEVERAL - 1)))
    assert not list(gate.anywhere((code + b"\x90" * 8) * 100)), "one and the same, as unrolled loops have by chance"


def test_offsets_of_honest_code_are_no_instructions():
    """`vfmadd213ss 0x19e4(%rip),%xmm1,%xmm14` and its like: an EVEX without its fixed bits, in a kernel of a family."""
    places = ("e419", "e418", "d518", "e417", "d517", "e516")
    code = b"".join(bytes.fromhex(f"c46271a935{place}0000") for place in places)
    assert not list(gate.anywhere(code))
    hidden = b"".join(bytes.fromhex(f"b86271ad48{place}") for place in places)
    assert list(gate.anywhere(hidden)) == ["pmullw"]


@cache
def assembled(text: str) -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder, "code")
        subprocess.run(["as", "-o", file, "-"], input=f"{text}\n", text=True, check=True, stderr=subprocess.DEVNULL)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", file, f"{file}.raw"], check=True)
        return Path(f"{file}.raw").read_bytes()


HIDDEN = r"""
asm(".text\n.p2align 6\n%s\ntile:\n" "vpdpwssd %%zmm1,%%zmm2,%%zmm3\nret\n" ".size tile,.-tile\n");
"""


@pytest.mark.parametrize("kind", ["@object", "@function", "@notype", "@tls_object"])
def test_no_symbol_hides_an_instruction(kind):
    library = built(HIDDEN % f".type tile,{kind}" + f"{CALL} {{ return 0; }}")
    assert gate.narrow(library, jail.choose("auto"), 10) == ("vpdpwssd",)


def test_code_beside_the_sections_is_seen():
    """A page is executable to its end, whatever the headers say how much of it is stored."""
    library = built(f"{CALL} {{ return 0; }}")
    image = elf.Image(library)
    segment = next(one for one in image.loads if one.flags & elf.EXECUTE)
    assert segment.stored < 3000 and not gate.narrow(library, jail.choose("auto"), 10)
    place = segment.offset + elf.PAGE - 100
    code = b"".join(assembled(f"vpdpwssd %zmm{number},%zmm2,%zmm3") for number in range(5))
    hidden = library[:place] + code + library[place + len(code) :]
    assert "vpdpw" in gate.narrow(hidden, jail.choose("auto"), 10)


def test_what_is_no_shared_object_is_refused_and_a_missing_program_named(monkeypatch):
    kind = jail.choose("auto")
    with pytest.raises(ValueError, match="cut off"):
        gate.narrow(b"no ELF file", kind, 10)
    monkeypatch.setattr(gate, "CODE_BYTES", 100)
    with pytest.raises(ValueError, match="bytes of instructions, at most 100"):
        gate.narrow(built(f"{CALL} {{ return 0; }}"), kind, 10)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(HarnessFault, match="objdump"):
        gate.narrow(b"", kind, 10)


def test_a_disassembler_that_was_stopped_says_nothing_of_the_kernel(monkeypatch):
    def stopped(*_):
        raise Unfinished("it was killed")

    monkeypatch.setattr(gate, "narrow", stopped)
    library = built(f"{CALL} {{ return 0; }}")
    assert (
        backend.inspected(backend.Build(Status.OK, library), jail.choose("auto"), 1, BF16).status
        is Status.COMPILE_TIMEOUT
    )
