"""Kernel families: templates whose knobs render to correct, complete, different kernel sources.

A family is two files in `data/families/FOLDER/`: `NAME.toml` (what it is, its knobs, its rules) and
`NAME.cpp.j2` or `NAME.cu.j2` (the whole source, in Jinja2). A GPU's families are all whose `needs` its architecture
offers, from any folder. Knobs do not depend on the shape: a policy that is trained on random draws learns how
kernels are written, but not which of them is fast for which shape.

Each kernel is written in one of three styles, as three people would write it. `styles.toml` holds the names that each
uses for variables, `[STYLE.DTYPE]` those that are other for a type, `[types.DTYPE]` what all call its parts. In a
template a line that starts with `//` is a comment of the styles "plain" and "tutor", one that starts with `///` of
"tutor" only.

A template is rendered for a form of problem: its layout, `dtype` (the record), `operator` (its epilogue, whose
operands beside A, B and C are `more`; `taken` and `given` are these as parameters and as arguments, each with a comma
behind it), and whether M may be `ragged`, that is no multiple of 8. Parts in `data/families/common/` may be included
by all. Where a function takes a problem or a layout, a layout alone means the plainest problem of that layout: fp16, no
epilogue, M a multiple of 8.
"""

import tomllib
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import product
from typing import Annotated, Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cudal2 import operators
from cudal2.arch import Architecture, Instruction
from cudal2.contract import CUDA_CONTRACT, PLAIN
from cudal2.files import asset
from cudal2.problem import Layout, Problem
from cudal2.target import Target

Knobs = dict[str, int | str]
STYLES = "plain", "terse", "tutor"
"""What the knob `style` may be."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for which the Jinja2 expression `refuse` is true are not rendered; `because` is the reason given.

    The expression may use the knobs, `layout`, `dtype` (a record), `operator` (the epilogue) and, for a GPU, its record
    `arch` (`arch.shared_memory` is in bytes per block). For a CPU there is no `arch`, and a rule that uses it is an
    error.
    """

    refuse: str
    because: str


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels of one structure. `knobs` lists the values that each parameter may take; `source` cites the method.

    `dtypes` and `epilogues` name what it has kernels for, with any number of rows.

    `needs` are the instructions that its sources use; `weight` is how often it is drawn, relative to the other families
    of its target (1 for kernels that compile for minutes). `folder` is where its files are, `architecture` the GPU to
    render for. A knob named `accumulate` says which problems a setting serves: one that sums in f16 does not serve an
    f32 problem. `whole_tiles` says that each block computes whole tiles of `tile_m` × `tile_n`, and that a
    multiprocessor runs `blocks` of them at a time. `applies` is a Jinja2 expression over `m`, `n` and `k`: a search
    proposes the family only where it is true. Its kernels are right for every shape all the same.
    """

    summary: str
    layouts: tuple[Layout, ...]
    knobs: dict[str, tuple[int | str, ...]]
    rules: tuple[Rule, ...] = ()
    dtypes: tuple[str, ...] = ("fp16",)
    epilogues: tuple[str, ...] = ("none",)
    source: str = ""
    needs: frozenset[Instruction] = frozenset()
    weight: Annotated[int, msgspec.Meta(ge=1)] = 1
    whole_tiles: bool = False
    applies: str = "true"
    name: str = ""
    folder: str = ""
    suffix: str = ""
    architecture: Architecture | None = None


def families(target: Target) -> tuple[Family, ...]:
    """All families that run on that target, ordered by folder and name; ValueError where none does."""
    offered = target.architecture.instructions if target.architecture else frozenset()
    fitting = tuple(one for one in _families(target.suffix, target.architecture) if one.needs <= offered)
    if not fitting:
        raise ValueError(f"no family in data/families runs on {target.name}: all of them need other instructions")
    return fitting


def form(asked: Problem | Layout) -> Problem:
    """A small problem that stands for all that have the same source: only whether M is a multiple of 8 counts."""
    if not isinstance(asked, Problem):
        return msgspec.structs.replace(PLAIN, layout=asked)
    return msgspec.structs.replace(asked, m=1 if asked.m % 8 else PLAIN.m, n=PLAIN.n, k=PLAIN.k)


def forms(family: Family) -> Iterator[Problem]:
    """Every form of problem that a family has kernels for, the plainest first."""
    for m, epilogue, dtype, layout in product((PLAIN.m, 1), family.epilogues, family.dtypes, family.layouts):
        yield Problem(m, PLAIN.n, PLAIN.k, layout, "f32", dtype, epilogue)


def render(family: Family, knobs: Knobs, asked: Problem | Layout) -> str:
    """The complete source for that setting.

    Raises ValueError for an unknown knob or value, and where a rule refuses the setting, with its reason.
    """
    if knobs.keys() != family.knobs.keys():
        raise ValueError(f"family {family.name} has the knobs {', '.join(family.knobs)}; got {', '.join(knobs)}")
    for knob, value in knobs.items():
        if value not in family.knobs[knob]:
            allowed = ", ".join(map(str, family.knobs[knob]))
            raise ValueError(f"family {family.name}: {knob}={value} is not one of {allowed}")
    if reason := refusal(family, knobs, asked):
        raise ValueError(f"family {family.name}: {reason}")
    return written(family, knobs, asked)


def written(family: Family, knobs: Knobs, asked: Problem | Layout) -> str:
    """The source for that setting, even where a rule refuses it."""
    style, problem = str(knobs["style"]), form(asked)
    styles = _styles(family.folder)
    names = styles[style] | styles.get("types", {}).get(problem.dtype, {}) | styles[style].get(problem.dtype, {})
    facts = _facts(family.architecture, problem)
    names["taken"] = "".join(f"const {names['half']}* {name}, " for name in facts["more"])
    names["given"] = "".join(f"{name}, " for name in facts["more"])
    template = _environment(family.folder).get_template(f"{family.name}{family.suffix}.j2")
    return _keep_comments(template.render(names, **knobs, **facts), style)


def refusal(family: Family, knobs: Knobs, asked: Problem | Layout) -> str:
    """Why a setting is refused; empty where it is not."""
    problem = form(asked)
    if lacking := lacks(family, problem):
        return lacking
    if knobs.get("accumulate", "f32") not in problem.type.accumulators:
        return f"{problem.dtype} is not summed in {knobs['accumulate']}"
    facts = _facts(family.architecture, problem)
    for rule in family.rules:
        if _expression(family.folder, rule.refuse)(**knobs, **facts):
            return rule.because
    return ""


def lacks(family: Family, problem: Problem) -> str:
    """What of a problem a family has no kernels for; empty where it has."""
    for asked, has in ((problem.layout, family.layouts), (problem.dtype, family.dtypes)):
        if asked not in has:
            return f"there is no {asked} kernel"
    return "" if problem.epilogue in family.epilogues else f"there is no kernel with the epilogue {problem.epilogue}"


def applies(family: Family, problem: Problem) -> bool:
    """Whether a family has kernels for that problem, and may be fast for that shape."""
    shape = {"m": problem.m, "n": problem.n, "k": problem.k}
    return not lacks(family, problem) and bool(_expression(family.folder, family.applies)(**shape))


@lru_cache
def _facts(architecture: Architecture | None, problem: Problem) -> dict[str, Any]:
    """What rules and templates may use beside the knobs: the form of problem; for a GPU its record and the contract."""
    facts: dict[str, Any] = {"layout": problem.layout, "dtype": problem.type, "ragged": problem.m % 8 != 0}
    facts |= {"operator": problem.epilogue}
    facts |= {"more": [operand.name for operand in operators.find(problem.epilogue).more(problem)]}
    return facts | ({"arch": architecture, "contract": CUDA_CONTRACT} if architecture else {})


def settings(family: Family, asked: Problem | Layout) -> Iterator[Knobs]:
    """Every setting that renders, in the order of the knobs' values."""
    for values in product(*family.knobs.values()):
        knobs = dict(zip(family.knobs, values))
        if not refusal(family, knobs, asked):
            yield knobs


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
    """Every family whose sources end in `suffix`; ValueError where a family for GPUs states no `needs`."""
    read = []
    for path in sorted(asset("data", "families").glob(f"*/*{suffix}.j2")):
        name = path.name.removesuffix(f"{suffix}.j2")
        record = tomllib.loads(path.with_name(f"{name}.toml").read_text())
        family = msgspec.convert(record, Family)
        if architecture and not family.needs:
            raise ValueError(f"{path.parent.name}/{name}.toml does not say which instructions its kernels need: needs")
        place = {"name": name, "folder": path.parent.name, "suffix": suffix, "architecture": architecture}
        read.append(msgspec.structs.replace(family, **place))
    return tuple(read)


@cache
def _styles(folder: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(asset("data", "families", folder, "styles.toml").read_text())


@cache
def _environment(folder: str) -> Environment:
    return Environment(
        loader=FileSystemLoader([asset("data", "families") / name for name in (folder, "common")]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _expression(folder: str, text: str) -> Any:
    return _environment(folder).compile_expression(text, undefined_to_none=False)
