"""The configuration of `cudal2 campaign`."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.parts import PolicyConfig, PromptConfig, ShapesConfig
from cudal2.config.worker import WorkerConfig


class CampaignConfig(Schema, frozen=True):
    """All `shapes` are searched by each of the `methods` and then evaluated. Everything is kept in the folder `run`.

    Each shape gets at most `kernels` kernels. Each method proposes an equal share of them, in rounds of `generation`
    kernels; it learns from the verdicts of one round before it proposes the next. The methods are those of
    `cudal2 search`; `policy` samples the model `policy.path`. A campaign may be continued with more kernels. The best
    `finalists` of a shape are timed against one another, and the winner is measured for the table.

    Shapes are worked on `slice` at a time. With a larger slice, compilers and devices wait less; with a smaller one,
    there is something to report sooner. `worker` says how a search measures; the evaluation measures more strictly.

    The campaign stops in good order after `minutes` of wall time, report and export included, or, with 0, when all
    shapes are done. `export` says when kernels are exported: at the end of every start (always), once all shapes are
    done (done), or never.
    """

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "cpu"
    shapes: ShapesConfig = ShapesConfig()
    kernels: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 16
    generation: Annotated[int, msgspec.Meta(ge=1)] = 8
    finalists: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 3
    methods: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("evolution", "policy")
    slice: Annotated[int, msgspec.Meta(ge=1)] = 32
    minutes: Annotated[float, msgspec.Meta(ge=0), NEUTRAL] = 0.0
    export: Annotated[Literal["always", "done", "never"], NEUTRAL] = "always"
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    worker: WorkerConfig = WorkerConfig()

    def __post_init__(self) -> None:
        if len(set(self.methods)) < len(self.methods) or self.kernels < len(self.methods):
            raise ValueError(
                f"kernels={self.kernels} a shape cannot be shared by methods={list(self.methods)}: name each of them "
                "once, and no more of them than kernels"
            )

    @property
    def share(self) -> int:
        """How many kernels each method proposes for a shape."""
        return self.kernels // len(self.methods)
