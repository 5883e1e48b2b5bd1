"""Which problems are asked for: the kind of product, whose keys records of several verbs have, and lists of shapes."""

from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec

from cudal2 import dtype as dtypes
from cudal2 import llm, operators
from cudal2.config.base import LATER, Schema
from cudal2.problem import Accumulate, Layout, Problem, grid, off_lattice, parse, sample
from cudal2.split import KEPT_APART, draw, open_families, training

Dtype = Annotated[str, LATER]
"""The name of a record in `cudal2.dtype`."""


Epilogue = Annotated[str, LATER]
"""The name of a file in `cudal2/operators`."""


class Kind(Protocol):
    """What a record of the configuration has that asks for problems."""

    @property
    def layout(self) -> Layout: ...
    @property
    def accumulate(self) -> Accumulate: ...
    @property
    def dtype(self) -> str: ...
    @property
    def epilogue(self) -> str: ...


def kind_keys(kind: Kind) -> dict[str, str]:
    """All four and their values."""
    return {"layout": kind.layout, "accumulate": kind.accumulate, "dtype": kind.dtype, "epilogue": kind.epilogue}


def check_kind(kind: Kind) -> None:
    """Raises ValueError, with the known names, for an unknown dtype or epilogue."""
    dtypes.find(kind.dtype)
    operators.known(kind.epilogue)


def named(text: str, kind: Kind) -> Problem:
    """The problem that a user names; what the name leaves out is as `kind` says.

    Raises ValueError for what is no problem, or has a dtype or an epilogue that nobody knows.
    """
    parsed = parse(text, kind.layout, kind.accumulate, kind.dtype, kind.epilogue)
    operators.known(parsed.epilogue)
    return parsed


class DrawnConfig(Schema, frozen=True):
    """Which problems are drawn: of at most `flop` FLOP, with M a multiple of `rows`, any of these layouts, types and
    epilogues (in place of `shapes.layout`, `.dtype` and `.epilogue`). A policy has to know them."""

    flop: Annotated[float, msgspec.Meta(gt=0), LATER] = 1e8
    rows: Annotated[int, msgspec.Meta(ge=1), LATER] = 1
    layouts: Annotated[tuple[Layout, ...], LATER] = ("tn", "nn")
    dtypes: Annotated[tuple[str, ...], LATER] = ("fp16", "bf16")
    epilogues: Annotated[tuple[str, ...], LATER] = ("none", "bias")

    def __post_init__(self) -> None:
        if not (self.layouts and self.dtypes and self.epilogues):
            raise ValueError("shapes.drawn.layouts, .dtypes and .epilogues each have to name something")
        for dtype in self.dtypes:
            dtypes.find(dtype)
        for epilogue in self.epilogues:
            operators.known(epilogue)


class ShapesConfig(Schema, frozen=True):
    """Which problems, by `names`, with this `layout`, type of accumulator, `dtype` of all operands (fp16, bf16) and
    `epilogue` (a file in `cudal2/operators`: none, bias, bias_gelu) unless a name states its own.

    A name is `grid` (the 1,000 shapes), `sample` (about `count` shapes of the grid, drawn with `seed`), `training`
    (those shapes of the grid that training may see), `llm` (every layer of every model in `data/shapes/llm.toml` for 1,
    2, 4 … 8192 rows), `llm-sample` (about `count` of them, from each model and number of rows its share), `llm-open`
    (those of the models that training may see), `llm-apart` (those of the others), `off-lattice` (`count` shapes that
    no usual tile divides), `drawn` (`count` problems to learn from, as the keys in `drawn` say), a shape (`M_N_K`, or
    as a whole problem `256_384_512_nn_f16` or `7_384_512_tn_f32_bf16_bias`), or a layer of a model
    (`qwen2.5-7b.qkv@8`). With a dtype behind it, as in `llm_bf16` or `qwen2.5-7b.qkv@8_bf16`, a list or a layer is of
    that type. Layers that have a bias ask for it.
    """

    names: tuple[str, ...] = ("grid",)
    count: int = 100
    seed: int = 2026
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"
    dtype: Dtype = "fp16"
    epilogue: Epilogue = "none"
    drawn: DrawnConfig = DrawnConfig()

    def __post_init__(self) -> None:
        check_kind(self)
        if self.names == ("drawn",):
            for kind, usual in (("layout", "tn"), ("dtype", "fp16"), ("epilogue", "none")):
                if (value := getattr(self, kind)) != usual:
                    raise ValueError(f"shapes=drawn has kinds of its own: say shapes.drawn.{kind}s=[{value}]")

    def problems(self) -> list[Problem]:
        """The named problems in the order given. Raises ValueError for an unknown name, or where none is named."""
        problems: list[Problem] = []
        for name in self.names:
            listed, _, dtype = name.partition("_")
            if listed == "drawn":
                dtypes = (dtype,) if dtype else self.drawn.dtypes
                kinds = msgspec.structs.asdict(self.drawn) | {"dtypes": dtypes, "accumulate": self.accumulate}
                problems += draw(self.count, self.seed, **kinds)
            elif listed in self._lists():
                kind = msgspec.structs.replace(self, names=(), dtype=dtype or self.dtype)
                problems += [named(shape, kind) for shape in self._lists()[listed]()]
            else:
                problems.append(named(name, self))
        if not problems:
            raise ValueError("shapes.names=[] names no problem; name one, e.g. shapes.names=[256_256_256]")
        return problems

    def _lists(self) -> dict[str, Callable[[], list[str]]]:
        """The names of problems that each list holds."""
        return {
            "grid": lambda: [problem.mnk for problem in grid()],
            "training": lambda: [problem.mnk for problem in training()],
            "sample": lambda: [problem.mnk for problem in sample(self.count, self.seed)],
            "off-lattice": lambda: [problem.mnk for problem in off_lattice(self.count, self.seed)],
            "llm": llm.names,
            "llm-sample": lambda: llm.sample(self.count, self.seed),
            "llm-open": lambda: llm.names(open_families()),
            "llm-apart": lambda: llm.names(KEPT_APART),
        }
