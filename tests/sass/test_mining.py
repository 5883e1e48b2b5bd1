"""The table of distances: what is mined of some kernels, and of others later, is the table of them all."""

from sass.cubins import compiled, listed

from cudal2.sass import mining
from cudal2.worker.cache import Cache


def test_kernels_may_be_added_later(tmp_path) -> None:
    cache = Cache(tmp_path)
    first, second = (listed(compiled("sm_90a", seed, cache)) for seed in (0, 1))
    assert mining.added(mining.mined(first), mining.mined(second)) == mining.mined(first + second)
