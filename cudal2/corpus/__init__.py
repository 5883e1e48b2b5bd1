"""Kernel families, random draws from them, the plan of a source, and the rendering nearest to a given source."""

from cudal2.corpus.drawing import SIZES, Sample, allowed, draw, draw_problem
from cudal2.corpus.family import (
    STYLES,
    Family,
    Knobs,
    Rule,
    applies,
    families,
    forms,
    lacks,
    refusal,
    render,
    settings,
    written,
)
from cudal2.corpus.plans import PLAN, keeps_its_plan, plan, stated, without_plan

__all__ = [
    "PLAN",
    "SIZES",
    "STYLES",
    "Family",
    "Knobs",
    "Rule",
    "Sample",
    "allowed",
    "applies",
    "draw",
    "draw_problem",
    "families",
    "forms",
    "keeps_its_plan",
    "lacks",
    "plan",
    "refusal",
    "render",
    "settings",
    "stated",
    "without_plan",
    "written",
]
