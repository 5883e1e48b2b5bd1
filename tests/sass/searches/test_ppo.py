"""The environment keeps gymnasium's contract; MaskablePPO learns to find what was planted."""

import math

import pytest
from sass.planted import listing
from sass.searches.test_searches import JUDGE, PLANTED, play

from cudal2.config import SassSearchConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass.game.play import Play
from cudal2.sass.game.task import Task

pytest.importorskip("gymnasium")


def game(ask=lambda edit: JUDGE([edit])[0], **keys):
    from cudal2.sass.searches.ppo import Game

    return Game(Task(Play(listing()), SassSearchConfig(**keys), 0, ask, JUDGE.of))


def test_the_environment_keeps_its_contract() -> None:
    one = game(episode=6, from_best=0.0)
    seen, _ = one.reset(seed=0)
    assert one.observation_space.contains(seen)
    rewards, truncated = 0.0, False
    while not truncated:
        legal = one.action_masks().nonzero()[0]
        seen, reward, ended, truncated, info = one.step(int(legal[len(legal) // 2]))
        rewards += reward
        assert one.observation_space.contains(seen) and not ended
    assert rewards == pytest.approx(10 * math.log(info["speedup"]))
    assert one.best_speedup >= info["speedup"]


def test_the_best_is_begun_from_and_what_fails_is_taken_back() -> None:
    one = game(episode=4, from_best=1.0)
    one.reset()
    while one.best_speedup == 1.0:
        legal = one.action_masks().nonzero()[0]
        one.step(int(one.task.rng.choice(list(legal))))
    best = one.best.edit()
    one.reset()
    assert one._play.edit() == best

    def fails(edit: Edit) -> Measured:
        return Measured(Status.WRONG)

    bad = game(fails)
    seen, _ = bad.reset()
    after, reward, *_ = bad.step(int(bad.action_masks().nonzero()[0][0]))
    assert reward <= -1 and (after == seen).all() and bad.best_speedup == 1.0


@pytest.mark.slow
def test_ppo_finds_what_was_planted(tmp_path) -> None:
    pytest.importorskip("sb3_contrib")
    found = play("ppo", tmp_path, 800, episode=24)
    assert found.best is not None and found.best.measured.speedup >= 0.95 * PLANTED
