"""Each search finds the good order that was planted, with a budget that chance does not find it with; and again."""

from pkgutil import iter_modules

import pytest
from sass.planted import listing

from cudal2.config import SassSearchConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass import searches
from cudal2.sass.dependence import violations
from cudal2.sass.game.play import Play, edited
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.game.task import Budget, Journal, Spent, Task

JUDGE = Simulated(listing())
PLANTED = JUDGE.of(listing(good=True))
"""How much faster the good order is."""


def play(method: str, folder, budget: int, judge=lambda edit, best: JUDGE([edit])[0], seed: int = 0, **keys) -> Budget:
    """The whole search; its journal lies in the folder."""
    config = SassSearchConfig(method=method, measurements=budget, **keys)
    asked = Budget(Journal(folder / f"{method}.jsonl", {"seed": seed}), judge, budget)
    with pytest.raises(Spent):
        searches.find(method)(Task(Play(listing()), config, seed, asked, JUDGE.of))
    return asked


def test_there_is_something_to_find() -> None:
    assert PLANTED > 1.5


def test_there_are_as_many_as_are_compared() -> None:
    assert {found.name for found in iter_modules(searches.__path__)} == set(searches.METHODS)


@pytest.mark.parametrize(
    ("method", "budget", "seed"),
    [
        ("greedy", 60, 0),
        ("scheduler", 12, 0),
        ("evolution", 60, 0),
        pytest.param("annealing", 400, 2, marks=pytest.mark.slow),
    ],
)
def test_a_search_finds_what_was_planted(method: str, budget: int, seed: int, tmp_path) -> None:
    found = play(method, tmp_path, budget, seed=seed)
    assert found.best is not None and found.best.measured.speedup >= 0.95 * PLANTED
    assert len(found.seen) <= budget
    assert violations(edited(listing(), found.best.edit)) == ()


def test_chance_does_not(tmp_path) -> None:
    found = play("random", tmp_path, 100)
    assert found.best is not None and found.best.measured.speedup < 0.92 * PLANTED


def test_a_killed_search_goes_on_where_it_was(tmp_path) -> None:
    whole = play("evolution", tmp_path / "whole", 40)
    asked: list[Edit] = []

    def dies(edit: Edit, best: float) -> Measured:
        if len(asked) == 15:
            raise KeyboardInterrupt
        asked.append(edit)
        return JUDGE([edit])[0]

    with pytest.raises(KeyboardInterrupt):
        play("evolution", tmp_path / "cut", 40, dies)
    with (tmp_path / "cut/evolution.jsonl").open("ab") as file:
        file.write(b'{"edit": torn')
    again: list[Edit] = []

    def counts(edit: Edit, best: float) -> Measured:
        again.append(edit)
        return JUDGE([edit])[0]

    cut = play("evolution", tmp_path / "cut", 40, counts)
    assert list(cut.seen) == list(whole.seen)
    assert not set(asked) & set(again) and len(again) == 25
    with pytest.raises(ValueError, match="another search"):
        Journal(tmp_path / "cut/evolution.jsonl", {"seed": 1})


@pytest.mark.parametrize("method", ["greedy", "annealing", "evolution"])
def test_schedules_that_fail_are_never_the_best(method: str, tmp_path) -> None:
    """Half of all schedules are wrong here; no search ends, or takes one for its best."""

    def judge(edit: Edit, best: float) -> Measured:
        return JUDGE([edit])[0] if len(edit.moves) % 2 else Measured(Status.WRONG, reason="some bits differ")

    found = play(method, tmp_path, 20, judge)
    assert found.best is not None and len(found.best.edit.moves) % 2


def test_a_surrogate_saves_measurements(tmp_path) -> None:
    """The simulator as judge and as surrogate agree: what it likes best of some is measured best, too."""
    alone, helped = (play("greedy", tmp_path / str(n), 10, surrogate=n).best for n in (0, 8))
    assert alone is not None and helped is not None
    assert helped.measured.speedup > alone.measured.speedup


def test_an_unknown_search_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="annealing"):
        searches.find("luck")
