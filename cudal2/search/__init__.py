"""Search with any proposer at a given budget: `run` it, `describe` what it found."""

from cudal2.search.found import Found, describe
from cudal2.search.loop import run

__all__ = ["Found", "describe", "run"]
