"""Search with any proposer at a given budget: `check` and `run` it, `describe` what it found."""

from cudal2.search.found import Found, describe
from cudal2.search.loop import check, run

__all__ = ["Found", "check", "describe", "run"]
