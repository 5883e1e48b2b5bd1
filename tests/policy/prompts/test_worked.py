"""What a prompt works out of a shape: numbers in a fixed order, which tell waves apart and never leave their range."""

import random

from cudal2.policy.prompts.worked import LEVELS, TILES, waves, worked
from cudal2.problem import LARGEST, Problem


def test_as_many_numbers_for_every_problem_each_of_them_a_word():
    rng = random.Random(0)
    for _ in range(300):
        m, n, k = (8 * int((limit // 8) ** rng.random()) for limit in LARGEST.values())
        told = worked(Problem(max(m - rng.randrange(8), 1), n, k), 132)
        assert len(told) == 5 + len(TILES) and all(0 <= number < LEVELS for number in told)


def test_more_tiles_are_never_told_as_fewer_and_a_wave_that_begins_is_told():
    told = [waves(count, 132) for count in range(1, 133)]
    assert told == sorted(told) and len(set(told)) > 20
    for full in (132, 264, 396):
        assert waves(full, 132) != waves(full + 1, 132)
    assert len({waves(264 + more, 132) for more in (1, 40, 80, 132)}) == 4
