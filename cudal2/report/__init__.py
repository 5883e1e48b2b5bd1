"""One HTML page about a run, or a picture that compares several runs or searches."""

from cudal2.report.page import PICTURES, compare, run
from cudal2.report.steps import curves
from cudal2.report.steps import table as beside

__all__ = ["PICTURES", "beside", "compare", "curves", "run"]
