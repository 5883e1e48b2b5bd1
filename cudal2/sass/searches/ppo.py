"""Proximal policy optimisation with invalid actions masked (S. Huang and S. Ontañón, arXiv:2006.14171), as in CuAsmRL
(arXiv:2501.08071): sb3-contrib's MaskablePPO plays the game, with one measurement per step.

`Game` is the game as a gymnasium environment: each step is a legal move and a measurement of the new schedule. Rewards
are CuAsmRL's, the change of speed, but as a logarithm, so that they add up along an episode: 10 times the log-ratio of
two measurements, or 0.1 for a percent. The best state is always kept.
"""

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from cudal2.records import Measured, Status
from cudal2.sass import opcodes
from cudal2.sass.game.legality import LONGEST
from cudal2.sass.game.play import Kind, Move, Play
from cudal2.sass.game.task import Chains, Task
from cudal2.sass.listing import Instruction
from cudal2.worker.cuda.compile.cubin import NO_BARRIER, Controls

if missing := [name for name in ("gymnasium", "sb3_contrib") if find_spec(name) is None]:
    raise ValueError(f'search.method=ppo needs {", ".join(missing)}: pip install "cudal2[sass]"')

import gymnasium
from sb3_contrib import MaskablePPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

STEPS = 64
"""Steps between two updates."""
FOREVER = 10**9
_CLASSES = (
    opcodes.MATRIX,
    opcodes.SHARED_LOADS,
    opcodes.SHARED_STORES,
    opcodes.GLOBAL_LOADS,
    opcodes.GLOBAL_STORES,
    opcodes.COPIES,
    opcodes.CONSTANT_LOADS,
    opcodes.ARITHMETIC,
    frozenset({"BAR", "DEPBAR", "LDGDEPBAR"}),
)
_OWN = len(_CLASSES) + 1 + 5 + 3 * 6 + 6
WIDTH = _OWN + 6 + len(Kind)
"""The number of features of one instruction, most of them from 0 to 1: its class, fields and operands; whether it is
pinned; the distance to the next dependence up and down; its critical path; its place; and which moves are legal."""
FAILED = -1.0
"""The reward for a schedule that is not right; the game returns to the state before it."""


class Game(gymnasium.Env):
    """Episodes of `episode` steps, from the compiler's schedule or, in a share of `from_best`, from the best known.

    Observations are those of `Observer`. Action `kind + place * len(Kind)` is a move; `action_masks` says which are
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


class Observer:
    """Makes observations of one game; features that never change are computed once."""

    def __init__(self, start: Play) -> None:
        self._chains = Chains(start.legality)
        self._own: dict[tuple[int, Controls], np.ndarray] = {}
        self._longest = max(1, int(self._chains.way.max(initial=1)))

    def see(self, play: Play) -> np.ndarray:
        """The observation of a state: float32 [instructions, WIDTH]."""
        known, count = play.legality, len(play)
        seen = np.zeros((count, WIDTH), np.float32)
        seen[:, :_OWN] = [self._figures(instruction) for instruction in play.instructions]
        numbers = known.order
        above, below = self._chains.nearest(known.where)
        seen[:, _OWN] = known.fixed[numbers]
        seen[:, _OWN + 1] = np.minimum(above[numbers], 32) / 32
        seen[:, _OWN + 2] = np.minimum(below[numbers], 32) / 32
        seen[:, _OWN + 3] = self._chains.way[numbers] / self._longest
        seen[:, _OWN + 4] = (np.arange(count) - known.first) / np.maximum(1, known.last - known.first)
        seen[:, _OWN + 5] = (np.arange(count) - numbers) / count
        seen[:, _OWN + 6 :] = play.mask()
        return seen

    def _figures(self, instruction: Instruction) -> np.ndarray:
        key = (instruction.origin, instruction.controls)
        if key not in self._own:
            self._own[key] = np.array(_own(instruction), np.float32)
        return self._own[key]


def _own(instruction: Instruction) -> list[float]:
    """The features of an instruction that depend only on itself and its fields."""
    kinds = [float(instruction.operation in operations) for operations in _CLASSES]
    fields = instruction.controls
    names = [*instruction.defines, *instruction.uses]
    return [
        *kinds,
        float(not any(kinds)),
        *(
            fields.stall / LONGEST,
            fields.yield_,
            fields.reuse.bit_count() / 3,
            instruction.compiled.reuse.bit_count() / 3,
        ),
        float(bool(instruction.guard)),
        *(float(fields.wait >> number & 1) for number in range(6)),
        *_one_hot(fields.write_barrier),
        *_one_hot(fields.read_barrier),
        *(min(len(group), 16) / 16 for group in (instruction.defines, instruction.uses)),
        *(float(any(name.startswith(letter) for name in names)) for letter in ("P", "UR", "UP")),
        float(bool(instruction.defines & instruction.uses)),
    ]


def _one_hot(barrier: int) -> list[float]:
    return [float(barrier == number) for number in range(NO_BARRIER - 1)]


class Window(BaseFeaturesExtractor):
    """Convolutions along the window: the neighbours of an instruction decide where it should go."""

    def __init__(self, space: gymnasium.spaces.Box, features: int = 128) -> None:
        super().__init__(space, features)
        count, width = space.shape
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(width, 32, 7, padding=3),
            torch.nn.ReLU(),
            torch.nn.Conv1d(32, 16, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * count, features),
            torch.nn.ReLU(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """(batch, instructions, features) to (batch, features)."""
        return self.layers(observations.transpose(1, 2))


def search(task: Task) -> None:
    """Learns while it plays, first for `pretrain` steps on the simulator."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network is several times slower with more of them
    try:
        _play(Game(task), task)
    finally:
        torch.set_num_threads(threads)


def _play(game: Game, task: Task) -> None:
    model = MaskablePPO(
        "MlpPolicy",
        game,
        n_steps=STEPS,
        batch_size=STEPS,
        n_epochs=10,
        learning_rate=3e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        seed=task.rng.getrandbits(31),
        device="cpu",
        policy_kwargs={"features_extractor_class": Window, "net_arch": [64]},
    )
    if task.config.pretrain:
        game.simulated = True
        model.learn(task.config.pretrain, reset_num_timesteps=False)
        game.simulated = False
        game.forget()
    model.learn(FOREVER, reset_num_timesteps=False)
