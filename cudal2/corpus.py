"""Kernel families: templates whose knobs render to correct, complete, different kernel sources.

A family is two files in `data/families/FOLDER/`: `NAME.toml` (what it is, its knobs, its rules) and
`NAME.cpp.j2` or `NAME.cu.j2` (the whole source, in Jinja2). A GPU's families are all whose `needs` its architecture
offers, of whatever folder. Knobs never see the shape, so that a policy trained on draws from here has learnt how
kernels are written and nothing about which of them is fast where.

Three styles write the same kernel as three people would. `styles.toml` holds their names for things; in a
template a line that starts with `//` is a comment of "plain" and "tutor", one with `///` of "tutor" alone.
"""

import random
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Annotated, Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cudal2 import split
from cudal2.arch import Architecture, Instruction
from cudal2.assets import asset
from cudal2.contract import CUDA_CONTRACT, Contract
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.target import Target

Knobs = dict[str, int | str]

SIZES = tuple(sorted({*(2**p for p in range(6, 12)), *range(64, 512, 8), *range(512, 2049, 64)}))
"""The sizes M, N and K are drawn from: 64 to 2048, powers of two and others."""

PLAN = "// family: "
"""What a source that states its plan begins with."""

TRIES = 5_000
"""Random settings of a family that are looked at before none of them is thought to render: the strictest rules that
ship let about one in a hundred pass."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for which the Jinja2 expression `refuse` holds are not rendered.

    It sees the knobs, `layout`, and for a GPU `arch`, its record: `arch.shared_memory` is what a block may have.
    Without a GPU there is no such fact, and a rule that asks for one is an error.
    """

    refuse: str
    because: str


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels of one structure: `knobs` lists the values each knob may take, `source` the method's origin.

    `needs` are the instructions without which none of its sources compiles, `weight` how often it is drawn beside the
    others of its target (1 for kernels that take minutes of compiling). `folder` is where its files are,
    `architecture` the GPU that it is to be rendered for. A knob named `accumulate` tells which problems a setting
    serves: one that sums in f16 does not serve an f32 problem.
    """

    summary: str
    layouts: tuple[Layout, ...]
    knobs: dict[str, tuple[int | str, ...]]
    rules: tuple[Rule, ...] = ()
    source: str = ""
    needs: frozenset[Instruction] = frozenset()
    weight: Annotated[int, msgspec.Meta(ge=1)] = 1
    name: str = ""
    folder: str = ""
    suffix: str = ""
    architecture: Architecture | None = None


class Sample(msgspec.Struct, frozen=True):
    """One source of the corpus and the setting it came from."""

    family: str
    layout: Layout
    knobs: Knobs
    source: str


def families(target: Target) -> tuple[Family, ...]:
    """All families that run on that target, folder by folder, by name; ValueError where none does."""
    offered = target.architecture.instructions if target.architecture else frozenset()
    found = tuple(one for one in _families(target.suffix, target.architecture) if one.needs <= offered)
    if not found:
        raise ValueError(f"no family in data/families runs on {target.name}: all of them need other instructions")
    return found


def render(family: Family, knobs: Knobs, layout: Layout) -> str:
    """The complete source for that setting.

    Raises ValueError for an unknown knob or value, and where a rule refuses the setting, with its reason.
    """
    if knobs.keys() != family.knobs.keys():
        raise ValueError(f"family {family.name} has the knobs {', '.join(family.knobs)}; got {', '.join(knobs)}")
    for knob, value in knobs.items():
        if value not in family.knobs[knob]:
            allowed = ", ".join(map(str, family.knobs[knob]))
            raise ValueError(f"family {family.name}: {knob}={value} is not one of {allowed}")
    if reason := refusal(family, knobs, layout):
        raise ValueError(f"family {family.name}: {reason}")
    return written(family, knobs, layout)


def written(family: Family, knobs: Knobs, layout: Layout) -> str:
    """What the template says for a value of each knob, be it refused or not."""
    style = str(knobs["style"])
    names = _styles(family.folder)[style]
    template = _environment(family.folder).get_template(f"{family.name}{family.suffix}.j2")
    return _keep_comments(template.render(names, **knobs, **_facts(family), layout=layout), style)


def refusal(family: Family, knobs: Knobs, layout: Layout) -> str:
    """Why a setting is not rendered; empty where it is."""
    if layout not in family.layouts:
        return f"there is no {layout} kernel"
    for rule in family.rules:
        if _expression(family.folder, rule.refuse)(**knobs, **_facts(family), layout=layout):
            return rule.because
    return ""


def _facts(family: Family) -> dict[str, Architecture | Contract]:
    """What rules and templates see beside the knobs: of a GPU its record, and the contract."""
    return {"arch": family.architecture, "contract": CUDA_CONTRACT} if family.architecture else {}


def settings(family: Family, layout: Layout) -> Iterator[Knobs]:
    """Every setting that renders, in the order of the knobs' values."""
    for values in product(*family.knobs.values()):
        knobs = dict(zip(family.knobs, values))
        if not refusal(family, knobs, layout):
            yield knobs


def draw(target: Target, layout: Layout, rng: random.Random, accumulate: Accumulate = "f32") -> Sample:
    """A random source: a family by its weight, then its allowed settings uniformly. The shape plays no part.

    For `accumulate` "f32" only kernels that sum in f32 are drawn, for "f16" also those. Raises ValueError where the
    target has no family with such a kernel, or rules refuse whatever is tried.
    """
    open_ = [family for family in families(target) if _can_be_drawn(target, family.name, layout, accumulate)]
    if not open_:
        raise ValueError(
            f"no family in data/families has a {layout} kernel for {target.name} that sums in {accumulate}: "
            f"rules refused each of {TRIES} random settings"
        )
    family = rng.choice([family for family in open_ for _ in range(family.weight)])
    knobs = _allowed(family, layout, accumulate, rng)
    if knobs is None:
        raise ValueError(f"family {family.name}: its rules refused {TRIES} random settings for {target.name}")
    return Sample(family.name, layout, knobs, render(family, knobs, layout))


def _allowed(family: Family, layout: Layout, accumulate: Accumulate, rng: random.Random) -> Knobs | None:
    """A random setting that renders and serves such problems, or None where TRIES of them found none."""
    if layout not in family.layouts:
        return None
    for _ in range(TRIES):
        knobs = {knob: rng.choice(values) for knob, values in family.knobs.items()}
        if accumulate == "f32" and knobs.get("accumulate") == "f16":
            continue
        if not refusal(family, knobs, layout):
            return knobs
    return None


@cache
def _can_be_drawn(target: Target, name: str, layout: Layout, accumulate: Accumulate) -> bool:
    """Whether a family has anything to draw; by chance of its own, so that the draws of a seed stay the same."""
    family = next(family for family in families(target) if family.name == name)
    return _allowed(family, layout, accumulate, random.Random(name)) is not None


def plan(sample: Sample) -> str:
    """The setting of a sample as comments, a line for the family and for each knob: what an author decides before he
    writes. A model that writes them first finds later what it has decided, in one place, and keeps to it.
    """
    chosen = {"family": sample.family, **sample.knobs}
    return "".join(f"// {name}: {value}\n" for name, value in chosen.items())


def stated(text: str, target: Target) -> tuple[str, Knobs] | None:
    """The family and the knobs that a source begins with as its plan; None where they are none of the target's."""
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
    """Whether a source that begins with a plan is, letter for letter, what the families render for that plan."""
    setting = stated(text, target)
    if setting is None:
        return False
    name, knobs = setting
    family = next(one for one in families(target) if one.name == name)
    layouts = [layout for layout in family.layouts if not refusal(family, knobs, layout)]
    samples = (Sample(name, layout, knobs, render(family, knobs, layout)) for layout in layouts)
    return any(text == plan(sample) + sample.source for sample in samples)


def draw_problem(rng: random.Random, layout: Layout, held_out: bool = False) -> Problem:
    """A random f32 problem, small sizes likelier than large; all held out, or none."""
    weights = [1 / size for size in SIZES]
    while True:
        powers = rng.random() < 0.5
        m, n, k = (2 ** rng.choice(range(6, 12)) if powers else rng.choices(SIZES, weights)[0] for _ in range(3))
        problem = Problem(m, n, k, layout)
        if split.held_out(problem) == held_out:
            return problem


def _keep_comments(text: str, style: str) -> str:
    lines = []
    for line in text.splitlines():
        code = line.lstrip()
        if code.startswith({"terse": "//", "plain": "///"}.get(style, "\0")):
            continue
        lines.append(line.replace("///", "//", 1) if code.startswith("///") else line.rstrip())
    return "\n".join(lines).strip() + "\n"


@cache
def _families(suffix: str, architecture: Architecture | None) -> tuple[Family, ...]:
    """Every family in that language, whatever it needs. ValueError where a file is no record of one."""
    found = []
    for path in sorted(asset("data", "families").glob(f"*/*{suffix}.j2")):
        name = path.name.removesuffix(f"{suffix}.j2")
        record = tomllib.loads(path.with_name(f"{name}.toml").read_text())
        family = msgspec.convert(record, Family)
        if architecture and not family.needs:
            raise ValueError(f"{path.parent.name}/{name}.toml does not say which instructions its kernels need: needs")
        place = {"name": name, "folder": path.parent.name, "suffix": suffix, "architecture": architecture}
        found.append(msgspec.structs.replace(family, **place))
    return tuple(found)


@cache
def _styles(folder: str) -> dict[str, dict[str, str]]:
    return tomllib.loads(asset("data", "families", folder, "styles.toml").read_text())


@cache
def _environment(folder: str) -> Environment:
    return Environment(
        loader=FileSystemLoader(asset("data", "families", folder)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _expression(folder: str, text: str) -> Any:
    return _environment(folder).compile_expression(text, undefined_to_none=False)
