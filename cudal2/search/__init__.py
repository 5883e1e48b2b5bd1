"""Search with any proposer at a given budget: `check` and `run` it, `describe` what it found."""

from cudal2.search.loop import check, run
from cudal2.search.terminal import Result, describe

__all__ = ["Result", "check", "describe", "run"]
