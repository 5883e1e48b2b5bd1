"""What is decoded is encoded to the same bytes, and nvdisasm agrees on which fields go together."""

import random

import msgspec
import pytest

from cudal2.sass import encoding
from cudal2.sass.encoding import Controls
from cudal2.worker.cuda.compile.cubin import EditRefused


def test_every_word_of_a_kernel_goes_there_and_back(finished) -> None:
    for one in finished.instructions:
        assert encoding.decode(one.word) == one.controls
        assert encoding.encode(one.word, one.controls) == one.word
        assert not encoding.mismatch(one.controls), one.text


def test_every_value_of_every_field_goes_there_and_back() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        word = rng.randbytes(16)
        controls = Controls(*(rng.randrange(1 << bits) for bits in (4, 1, 3, 3, 6, 3)))
        written = encoding.encode(word, controls)
        assert encoding.decode(written) == controls
        assert encoding.encode(written, encoding.decode(word)) == word


def test_what_does_not_fit_a_field_is_refused() -> None:
    with pytest.raises(EditRefused, match="4 bits"):
        encoding.encode(bytes(16), Controls(16, 0, 7, 7, 0, 0))


def test_fields_that_do_not_go_together_are_named() -> None:
    good = Controls(stall=4, yield_=1, write_barrier=7, read_barrier=7, wait=0, reuse=1)
    assert not encoding.mismatch(good)
    assert "reuse" in encoding.mismatch(msgspec.structs.replace(good, yield_=0))
    assert "stall" in encoding.mismatch(msgspec.structs.replace(good, stall=12))
    assert "stall" in encoding.mismatch(msgspec.structs.replace(good, stall=0))
