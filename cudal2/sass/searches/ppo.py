"""Proximal policy optimisation with invalid actions masked (S. Huang and S. Ontañón, arXiv:2006.14171), as in CuAsmRL
(arXiv:2501.08071): sb3-contrib's MaskablePPO plays the game, with one measurement per step.
"""

from importlib.util import find_spec

import torch

from cudal2.sass.game.task import Task

if missing := [name for name in ("gymnasium", "sb3_contrib") if find_spec(name) is None]:
    raise ValueError(f'search.method=ppo needs {", ".join(missing)}: pip install "cudal2[sass]"')

import gymnasium
from sb3_contrib import MaskablePPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from cudal2.sass.game.environment import Game

STEPS = 64
"""Steps between two updates."""
FOREVER = 10**9


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
