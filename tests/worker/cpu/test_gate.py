"""What of a processor's instructions the gate names."""

import shutil

import pytest

from cudal2.records import HarnessFault, Status
from cudal2.worker import disassembly
from cudal2.worker.cpu import build, gate
from cudal2.worker.sandbox import jail

LINE = "    11{}9:\t{}%zmm1,%zmm2,%zmm3"


@pytest.mark.parametrize(
    "name",
    [
        "pmaddwd",
        "vpmaddwd",
        "vpmaddubsw",
        "vpdpwssd",
        "vpdpbusds",
        "{vex} vpdpbusd",
        "vdpbf16ps",
        "tdpbf16ps",
        "tdpbssd",
    ],
)
def test_integers_and_bf16_multiplied_and_added_at_once_are_named(name):
    found = gate._NARROW.match(LINE.format(3, f"{name} ").encode())
    assert found and found.group(1).decode() == name.split()[-1]


@pytest.mark.parametrize(
    "name", ["vfmadd231ps", "vfmadd231ph", "tdpfp16ps", "vpmulld", "vpaddd", "call   10 <vpdpwssd>"]
)
def test_what_honest_kernels_use_is_not(name):
    assert not gate._NARROW.match(LINE.format("a", f"{name} ").encode())


def test_what_is_no_shared_object_is_refused_and_a_missing_program_named(monkeypatch):
    kind = jail.choose("auto")
    with pytest.raises(ValueError, match="cannot be read"):
        gate.narrow(b"no ELF file", kind, 10)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(HarnessFault, match="objdump"):
        gate.narrow(b"", kind, 10)


def test_a_disassembler_that_was_stopped_says_nothing_of_the_kernel(monkeypatch):
    def stopped(*_):
        raise disassembly.Unfinished("it was killed")

    monkeypatch.setattr(gate, "narrow", stopped)
    assert build.inspected(build.Build(Status.OK), jail.choose("auto"), 1).status is Status.COMPILE_TIMEOUT
