"""What is decoded is encoded to the same bytes, and nvdisasm agrees on which fields go together."""

import random

import msgspec
import pytest

from cudal2.worker.cuda.compile.cubin import Controls, EditRefused, controls_of, mismatch, with_controls


def test_every_word_of_a_kernel_goes_there_and_back(finished) -> None:
    for one in finished.instructions:
        assert controls_of(one.word) == one.controls
        assert with_controls(one.word, one.controls) == one.word
        assert not mismatch(one.controls), one.text


def test_every_value_of_every_field_goes_there_and_back() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        word = rng.randbytes(16)
        controls = Controls(*(rng.randrange(1 << bits) for bits in (4, 1, 3, 3, 6, 3)))
        written = with_controls(word, controls)
        assert controls_of(written) == controls
        assert with_controls(written, controls_of(word)) == word


def test_what_does_not_fit_a_field_is_refused() -> None:
    with pytest.raises(EditRefused, match="4 bits"):
        with_controls(bytes(16), Controls(16, 0, 7, 7, 0, 0))


def test_fields_that_do_not_go_together_are_named() -> None:
    good = Controls(stall=4, yield_=1, write_barrier=7, read_barrier=7, wait=0, reuse=1)
    assert not mismatch(good)
    assert "reuse" in mismatch(msgspec.structs.replace(good, yield_=0))
    assert "stall" in mismatch(msgspec.structs.replace(good, stall=12))
    assert "stall" in mismatch(msgspec.structs.replace(good, stall=0))
