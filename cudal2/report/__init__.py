"""One HTML page about a run, or a picture that compares several runs or searches."""

from cudal2.report.beside import table as beside
from cudal2.report.page import PICTURES, compare, run
from cudal2.report.steps import curves

__all__ = ["PICTURES", "beside", "compare", "curves", "run"]
