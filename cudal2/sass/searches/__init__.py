"""Searches for a faster schedule at an equal budget of measurements: `search.method` names one of the modules here.

To add one, add a file. Its `search(task)` runs until `task.ask` raises Spent; the caller remembers the best edit.
"""

import sys
from collections.abc import Callable

from cudal2 import files
from cudal2.sass.game.task import Task

METHODS = ("random", "greedy", "annealing", "evolution", "scheduler", "ppo")
"""All searches, in the order of comparisons."""


def find(name: str) -> Callable[[Task], None]:
    """The search that the configuration names; ValueError where there is none of that name."""
    return files.plugin(sys.modules[__name__], name, "search.method").search
