"""The rewards of verdicts: pure functions, one per module; `reward.name` is the name of a module here.

Each reward lies between LOWEST and HIGHEST, never falls when a kernel gets faster, and is lower for every failure than
for every correct kernel. The speed is the lower bound of the interval of the speedup over the best baseline on the
device's clock, so a noisy measurement does not raise a reward.

To add one, add a file. Its `reward(verdict, source, config)` is only called with verdicts that are failures or timed.
"""

import sys
from collections.abc import Callable

from cudal2 import files
from cudal2.config import RewardConfig
from cudal2.records import HarnessFault, Verdict

LOWEST, HIGHEST = -1.0, 100.0


def find(name: str) -> Callable[[Verdict, str, RewardConfig], float]:
    """The reward of that name; ValueError where there is none."""
    return files.plugin(sys.modules[__name__], name, "reward.name").reward


def reward(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """The reward of one judged candidate, in LOWEST..HIGHEST; `source` is the text that was judged.

    Raises HarnessFault where a correct kernel was not timed: it has no speed, but it is no failure either.
    """
    if verdict.ok and verdict.timing is None:
        raise HarnessFault("a correct kernel was not timed, so it has no reward", "Set worker.protocols=[device]")
    return find(config.name)(verdict, source, config)
