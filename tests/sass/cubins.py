"""Cubins of kernel families for the tests: the same source for the same target and seed, compiled once."""

import random

from toolkit import needs_toolkit

from cudal2 import corpus
from cudal2.records import Status
from cudal2.sass import listing
from cudal2.sass.listing import Listing
from cudal2.sass.mining import kernels
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build
from cudal2.worker.sandbox import jail


def compiled(target: str, seed: int, cache: Cache) -> bytes:
    """The cubin of a random setting; no CuTe kernel, which would take a quarter of a minute."""
    needs_toolkit()
    rng = random.Random(f"{target} {seed}")
    layout, accumulate = rng.choice(("tn", "nn")), rng.choice(("f32", "f16"))
    sample = corpus.draw(find(target), layout, rng, accumulate)
    while sample.family.startswith("cute"):
        sample = corpus.draw(find(target), layout, rng, accumulate)
    made = build.build(sample.source, find(target), cache, jail.choose("auto"), 60)
    assert made.status is Status.OK, made.log
    return made.cubin


def listed(code: bytes) -> list[Listing]:
    """The listings of all kernels of a cubin."""
    return [listing.read(code, kernel, jail.choose("auto")) for kernel in kernels(code)]
