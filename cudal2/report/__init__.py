"""One HTML page about a run, or a picture that compares several runs or searches."""

from cudal2.report.page import PICTURES, compare, curves, run

__all__ = ["PICTURES", "compare", "curves", "run"]
