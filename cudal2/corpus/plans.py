"""The plan of a source: comments at its beginning that state its family and knobs."""

import re

from cudal2.corpus.drawing import Sample
from cudal2.corpus.family import Knobs, families, forms, refusal, render
from cudal2.target import Target

PLAN = "// family: "
"""The beginning of a source that states its plan."""
_PLAN_LINE = re.compile(r"// [a-z]\w*: .*")


def plan(sample: Sample) -> str:
    """The setting of a sample as comments, one line for the family and one for each knob.

    A model that writes these lines first can read all its decisions in one place while it writes the code.
    """
    chosen = {"family": sample.family, **sample.knobs}
    return "".join(f"// {name}: {value}\n" for name, value in chosen.items())


def stated(text: str, target: Target) -> tuple[str, Knobs] | None:
    """The family and knobs in the plan of a source; None where it has no plan, or one of no family of the target."""
    first, *rest = text.splitlines(keepends=True) or [""]
    family = next((one for one in families(target) if first == f"{PLAN}{one.name}\n"), None)
    if family is None or len(rest) < len(family.knobs):
        return None
    knobs: Knobs = {}
    for (name, values), line in zip(family.knobs.items(), rest):
        chosen = next((value for value in values if line == f"// {name}: {value}\n"), None)
        if chosen is None:
            return None
        knobs[name] = chosen
    return family.name, knobs


def keeps_its_plan(text: str, target: Target) -> bool:
    """Whether a source begins with a plan and is, letter for letter, what its family renders for that plan."""
    setting = stated(text, target)
    if setting is None:
        return False
    name, knobs = setting
    family = next(one for one in families(target) if one.name == name)
    served = (problem for problem in forms(family) if not refusal(family, knobs, problem))
    samples = (Sample(name, problem.layout, knobs, render(family, knobs, problem)) for problem in served)
    return any(text == plan(sample) + sample.source for sample in samples)


def without_plan(text: str) -> str:
    """The source without the plan that it may begin with."""
    if not text.startswith(PLAN):
        return text
    lines = text.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if not _PLAN_LINE.match(line)), len(lines))
    return "".join(lines[first:])
