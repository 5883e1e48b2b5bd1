"""The time left is right whenever shapes to come are like those before."""

import pytest

from cudal2.evaluation.terminal import Pace, said


@pytest.mark.parametrize(("finding", "rivals"), [(0.0, 1), (3.0, 1), (0.0, 4), (7.0, 4)])
def test_at_an_even_pace_every_estimate_is_what_it_took(finding: float, rivals: int) -> None:
    """A batch of 10 of 40 shapes: `finding` seconds a shape until its kernels are there, 2 for a verdict."""
    now = 100.0
    pace, ends, estimates = Pace(40, lambda: now), 100 + 40 * (finding + 2 * rivals), []
    for _ in range(4):
        now += 10 * finding
        pace.found(10, 10, 10 * rivals)
        for _ in range(10 * rivals):
            now += 2.0
            pace.judged()
            estimates.append(now + pace.left())
    assert estimates == pytest.approx([ends] * len(estimates)) and now == ends


def test_what_was_known_before_costs_nothing_and_says_nothing() -> None:
    now = 0.0
    pace = Pace(30, lambda: now)
    pace.found(10, 0, 0)
    assert pace.left() == 0
    pace.found(10, 2, 2)
    now += 5
    pace.judged()
    assert pace.left() == pytest.approx(5 + 10 * 5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, ""), (0.4, ""), (4, "4 s"), (84, "84 s"), (120, "2 min"), (5000, "83 min"), (10800, "3.0 h")],
)
def test_the_unit_is_one_that_people_use(seconds: float, text: str) -> None:
    assert said(seconds) == (f"about {text} left" if text else "")
