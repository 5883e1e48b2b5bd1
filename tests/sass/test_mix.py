"""What a kernel is made of, counted."""

from collections import Counter

import pytest

from cudal2.sass import mix
from cudal2.sass.listing import Listing
from cudal2.worker.sandbox import jail


def test_operations_are_counted_without_guards_modifiers_labels_and_padding():
    lines = [
        b".text.gemm:",
        b"        /*0000*/                   LDC R1, c[0x0][0x28] ;",
        b"        /*0010*/              @!P0 HMMA.16816.F32 R4, R8, R10, R4 ;",
        b"        /*0020*/             @UP1 HMMA.16816.F32 R4, R8, R10, R4 ;",
        b"        /*0030*/                   NOP ;",
        b".L_x_0:  // NOP",
    ]
    assert list(mix.counted(lines).items()) == [("HMMA", 2), ("LDC", 1)]


@pytest.mark.slow
def test_operations_are_counted_as_they_are_listed(code: bytes, finished: Listing):
    found = mix.operations(code, jail.choose("auto"), 30)
    listed = Counter(one.operation for one in finished.instructions)
    assert "NOP" not in found and {"HMMA", "HGMMA"}.intersection(found)
    assert all(found[name] >= count for name, count in listed.items() if name != "NOP")
    assert list(found.values()) == sorted(found.values(), reverse=True)
