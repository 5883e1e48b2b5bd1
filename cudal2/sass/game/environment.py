"""The game as a gymnasium environment: each step is a legal move and a measurement of the new schedule.

Rewards are CuAsmRL's (arXiv:2501.08071), the change of speed, but as a logarithm, so that they add up along an
episode: 10 times the log-ratio of two measurements, or 0.1 for a percent. The best state is always kept.
"""

import math
from typing import Any

import gymnasium
import numpy as np

from cudal2.records import Measured, Status
from cudal2.sass.game.moves import Kind, Move
from cudal2.sass.game.observation import WIDTH, Observer
from cudal2.sass.game.task import Task

FAILED = -1.0
"""The reward for a schedule that is not right; the game returns to the state before it."""


class Game(gymnasium.Env):
    """Episodes of `episode` steps, from the compiler's schedule or, in a share of `from_best`, from the best known.

    Observations are those of `observation`. Action `kind + place * len(Kind)` is a move; `action_masks` says which are
    legal. When the budget is spent, `step` raises Spent from `task.ask`. With `simulated` the simulator judges.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.simulated = task, False
        self._observer, count = Observer(task.start), len(task.start)
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (count, WIDTH), np.float32)
        self.action_space = gymnasium.spaces.Discrete(count * len(Kind))
        self.forget()

    def forget(self) -> None:
        """Forgets the best state; the compiler's is the best again."""
        self.best, self.best_speedup = self.task.start, 1.0
        self._play, self._speedup, self._steps = self.task.start.copy(), 1.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begins an episode."""
        super().reset(seed=seed)
        best = self.task.rng.random() < self.task.config.from_best
        self._play = (self.best if best else self.task.start).copy()
        self._speedup, self._steps = self.best_speedup if best else 1.0, 0
        return self._observer.see(self._play), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Makes a move: (observation, reward, whether no move is left, whether the episode is over, `speedup`)."""
        before = self._play.copy()
        self._play.apply(Move(int(action) // len(Kind), Kind(int(action) % len(Kind))))
        measured = self._measured()
        self._steps += 1
        if measured.status is Status.OK and measured.speedup > 0:
            reward = 10 * math.log(measured.speedup / self._speedup)
            self._speedup = measured.speedup
        else:
            reward, self._play = FAILED, before
        if self._speedup > self.best_speedup:
            self.best, self.best_speedup = self._play.copy(), self._speedup
        ended = not self._play.mask().any()
        info = {"speedup": self._speedup}
        return self._observer.see(self._play), reward, ended, self._steps >= self.task.config.episode, info

    def action_masks(self) -> np.ndarray:
        """Which actions are legal: bool [actions]."""
        return self._play.mask().reshape(-1)

    def _measured(self) -> Measured:
        if self.simulated:
            speedup = self.task.simulate(self._play.listing)
            return Measured(Status.OK, speedup, speedup, speedup, 1)
        return self.task.ask(self._play.edit())
