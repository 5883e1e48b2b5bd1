"""No library of an export asks for a symbol that an older system lacks."""

import subprocess

import pytest
from families.contract import some_settings
from toolkit import needs_toolkit
from versions import needed, too_new

from cudal2 import corpus
from cudal2.problem import Problem
from cudal2.runtime import op
from cudal2.target import CPU
from cudal2.worker.cuda import launcher

NEW = "int arc4random(void); int asks(void) { return arc4random(); }"
"""A library stands for libc that has this function since a version to come."""


def test_the_library_of_the_operators_asks_for_nothing_new():
    assert needed(op.library()) and too_new(op.library()) == []


@pytest.mark.slow
def test_the_launcher_asks_for_nothing_new():
    needs_toolkit()
    assert needed(launcher.library()) and too_new(launcher.library()) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", corpus.families(CPU), ids=lambda family: family.name)
def test_kernels_of_the_families_ask_for_nothing_new(family, tmp_path):
    """Built as for a verdict. A kernel that a model wrote may ask for more."""
    (knobs,) = some_settings(family, family.layouts[0], 1, seed=0)
    source = corpus.render(family, knobs, Problem(64, 64, 64, family.layouts[0]))
    file = tmp_path / "kernel.so"
    command = ["g++", *CPU.flags, "-shared", "-fPIC", "-x", "c++", "-", "-o", file]
    subprocess.run(command, input=source.encode(), check=True)
    assert too_new(file.read_bytes()) == []


def test_what_is_new_is_found(tmp_path):
    made = tmp_path / "new.so"
    (tmp_path / "script").write_text("GLIBC_2.99 { arc4random; };")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-xc", "-", "-Wl,-soname,libc.so.6", f"-Wl,--version-script={tmp_path / 'script'}",
         "-o", made], input=b"int arc4random(void) { return 0; }", check=True,
    )  # fmt: skip
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-xc", "-", "-xnone", made, "-o", tmp_path / "asks.so"],
        input=NEW.encode(),
        check=True,
    )
    assert too_new((tmp_path / "asks.so").read_bytes()) == ["GLIBC_2.99"]
