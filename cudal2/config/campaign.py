"""The configuration of `cudal2 campaign`."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.parts import PolicyConfig, PromptConfig, ShapesConfig
from cudal2.config.worker import WorkerConfig


class CampaignConfig(Schema, frozen=True):
    """All of `shapes`, searched by each of `methods` and evaluated, all of it under the folder `run`.

    Of the at most `kernels` that a shape gets each method proposes an equal share, `generation` of them before it
    learns from what they came to; the methods are those of a search, `policy` samples `policy.path`. A campaign may
    go on with more kernels than it was begun with. The best `finalists` of a shape are timed against one another.

    Shapes are taken `slice` at a time: with more at a time compilers and devices wait less, with fewer there is sooner
    something to report. `worker` searches, and evaluates more strictly.

    All ends in order after `minutes` of wall time, report and export included; 0 is when all is done. What is exported
    at the end of every start (always) takes its part of them; or only once all shapes are (done); or never.
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
        """Kernels a shape by each method."""
        return self.kernels // len(self.methods)
