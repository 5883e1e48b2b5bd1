"""What the commands say of bad cubins and bad edits: one line each, with what to do; a broken rule is told as data."""

import io
import struct

import msgspec
import pytest
from elftools.elf.elffile import ELFFile
from sass.planted import one

from cudal2 import cli
from cudal2.problem import parse
from cudal2.records import Control, Shift, to_json
from cudal2.sass.dependence import Checker, violations
from cudal2.sass.listing import Listing
from cudal2.sass.polish import subject
from cudal2.worker.cuda.compile import cubin

MACHINE = 48
"""Where an ELF header holds `e_flags`, whose second byte is the architecture's number from CUDA 13 on."""


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line that a command ends with where it cannot do what it is told."""
    assert cli.main(["sass", *command]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def stripped(code: bytes) -> bytes:
    """The cubin without a table of symbols: its section is there, and said to be nothing."""
    file, found = ELFFile(io.BytesIO(code)), bytearray(code)
    place = file["e_shoff"] + file.get_section_index(".symtab") * file["e_shentsize"] + 4
    found[place : place + 4] = struct.pack("<I", 0)
    return bytes(found)


def unknown(code: bytes, listing: Listing) -> bytes:
    """The cubin with an operation that is none in place of its first."""
    start, _ = cubin.code_of(code, listing.kernel)
    return code[:start] + b"\xff\x0f" + code[start + 2 :]


def elsewhere(code: bytes) -> bytes:
    """The cubin as if it were for sm_87, which has the instructions of sm_80 and no table of latencies."""
    return code[: MACHINE + 1] + bytes([87]) + code[MACHINE + 2 :]


@pytest.mark.slow
@pytest.mark.parametrize("code", ["sm_80"], indirect=True)
def test_a_bad_cubin_is_one_line_with_a_remedy(code, finished, tmp_path, capsys) -> None:
    for name, bad, words in (
        ("stripped", stripped(code), ("stripped", "compile")),
        ("unknown", unknown(code, finished), ("unknown", "compile", "pip install")),
        ("elsewhere", elsewhere(code), ("sm_87", "sm_90a", "mining")),
    ):
        path = tmp_path / f"{name}.cubin"
        path.write_bytes(bad)
        error = said(capsys, "check", str(path))
        assert all(word in error for word in words), error


@pytest.fixture
def listed(code, finished, monkeypatch) -> None:
    """The cubin is found, whatever is named, and is listed already."""
    monkeypatch.setattr(subject, "find", lambda *_: subject.Subject(code, finished, parse("64_64_64")))


@pytest.mark.parametrize("code", ["sm_80"], indirect=True)
def test_a_bad_edit_is_one_line_with_a_remedy(code, finished, listed, tmp_path, capsys) -> None:
    edit = tmp_path / "edit.json"
    made = cubin.made_for(code, finished.kernel, Shift(0, 1))
    for text, words in (
        (to_json(msgspec.structs.replace(made, sha256="0" * 64)), ("another cubin", "make an edit for this one")),
        (to_json(msgspec.structs.replace(made, moves=(Shift(0, 10**6),))), ("outside", "make it anew")),
        (to_json(msgspec.structs.replace(made, moves=(Control(0, "stall", 16),))), ("4 bits", "give 0 to 15")),
        ("no edit", ("not an edit", "write kernel")),
    ):
        edit.write_text(text)
        error = said(capsys, "check", "kernel.cubin", f"edit={edit}")
        assert all(word in error for word in words), error


@pytest.mark.parametrize("code", ["sm_80"], indirect=True)
def test_an_illegal_move_is_named_with_its_rule(code, finished, listed, tmp_path, capsys) -> None:
    edit = tmp_path / "edit.json"
    checker = Checker(finished)
    place = next(p for p in range(len(finished.instructions)) if "is defined, then used" in checker.may_swap(p))
    edit.write_text(to_json(cubin.made_for(code, finished.kernel, Shift(place, place + 1))))
    assert cli.main(["sass", "check", "kernel.cubin", f"edit={edit}"]) == 1
    printed = capsys.readouterr()
    assert f"order at {place + 1} (with {place})" in printed.out and "not measured" in printed.out and not printed.err


def test_an_unknown_operation_never_moves_and_nothing_passes_it() -> None:
    """What nvdisasm lists and the rules do not know is pinned; what it touches stays behind what defines that."""
    those = [
        one("NOP", "", set(), set()),
        one("MOV", "R0, R1", {"R0"}, {"R1"}, stall=15, yield_=0),
        one("FROB", "R2", {"R2"}, set(), stall=15, yield_=0),
        one("MOV", "R4, R5", {"R4"}, {"R5"}, stall=15, yield_=0),
        one("EXIT", "", set(), set(), stall=5),
    ]
    found = Listing("k", "sm_80", tuple(msgspec.structs.replace(o, origin=place) for place, o in enumerate(those)))
    checker = Checker(found)
    assert violations(found) == ()
    for place in (1, 2):
        assert "FROB is pinned" in checker.may_swap(place)
        assert {broken.rule for broken in violations(found.swapped(place))} == {"order"}
