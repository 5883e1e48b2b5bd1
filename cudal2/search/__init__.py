"""Knob search over the kernel families: `run` it, `describe` what it found."""

from cudal2.search.loop import Found, describe, run

__all__ = ["Found", "describe", "run"]
