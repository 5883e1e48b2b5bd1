"""Search with any proposer at a given budget: `check` and `run` it, `describe` what it found."""

from cudal2.search.loop import Result, check, describe, run

__all__ = ["Result", "check", "describe", "run"]
