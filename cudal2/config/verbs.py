"""The whole configuration of each verb."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.parts import (
    PolicyConfig,
    PromptConfig,
    ReturnsConfig,
    RewardConfig,
    SearchMethodConfig,
    ShapesConfig,
    TrackerConfig,
    TrainerConfig,
    TuningConfig,
    TurnsConfig,
)
from cudal2.config.worker import WorkerConfig
from cudal2.records import Abi


class TrainConfig(Schema, frozen=True):
    """One GRPO run, all of it under the folder `run`."""

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "cpu"
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    turns: ReturnsConfig = ReturnsConfig()
    reward: RewardConfig = RewardConfig()
    trainer: TrainerConfig = TrainerConfig()
    worker: WorkerConfig = WorkerConfig()
    shapes: ShapesConfig = ShapesConfig()
    tracker: Annotated[TrackerConfig, NEUTRAL] = TrackerConfig()

    def __post_init__(self) -> None:
        if "device" not in self.worker.protocols:
            raise ValueError(
                f"worker.protocols={list(self.worker.protocols)}: a reward is made of the time on the device's clock; "
                "use worker.protocols=[device], with others beside it where they are wanted"
            )
        self.turns.check(self.policy)


class SftConfig(Schema, frozen=True):
    """Supervised training on kernels: of the kernel LM, from nothing or from the one in `start`; or of any causal
    language model that `policy.path` names, as `tuning` says.

    Of `examples`, families means `samples` settings drawn at random, whatever the shape; known means what searches
    found fast for the shapes that training may see, or for shapes near them; archive the fastest kernels for these
    shapes that the folder `archive` holds, and what is known where it holds none (rejection sampling fine-tuning,
    arXiv:2308.01825). `plan` has each source begin with its family and knobs as comments. A policy that exists may also
    read on (continued pretraining, arXiv:2004.10964): `examples` text means no prompts but the sources that `text`
    names, families for `samples` of theirs, cutlass for the headers and examples of the package nvidia-cutlass, or a
    folder with `.cu` and `.cuh` files.

    `vocabulary`, `hidden`, `layers` and `heads` are those of a kernel LM made from nothing.
    """

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "cpu"
    start: str = ""
    policy: PolicyConfig = PolicyConfig()
    examples: Literal["families", "known", "archive", "text"] = "families"
    archive: str = ""
    text: tuple[str, ...] = ("families", "cutlass")
    plan: bool = False
    samples: int = 60_000
    epochs: float = 2.0
    batch_size: int = 16
    learning_rate: float = 3e-3
    vocabulary: int = 4096
    hidden: int = 256
    layers: int = 4
    heads: int = 8
    context: int = 512
    tuning: TuningConfig = TuningConfig()
    prompt: PromptConfig = PromptConfig()
    verify: Annotated[int, NEUTRAL] = 256
    """Samples on held-out shapes that the worker judges after training, which the policy does not depend on."""
    worker: Annotated[WorkerConfig, NEUTRAL] = WorkerConfig()
    tracker: Annotated[TrackerConfig, NEUTRAL] = TrackerConfig()

    def __post_init__(self) -> None:
        if (self.examples == "archive") != bool(self.archive):
            raise ValueError("examples=archive learns from the run that archive=FOLDER names: give both or neither")
        if self.prompt.exemplars or self.prompt.failures or self.prompt.parent:
            raise ValueError(
                "supervised training has no kernels to show in a prompt; use prompt.exemplars=0 prompt.failures=0 "
                "prompt.parent=0"
            )
        if self.policy.path and self.start:
            raise ValueError("start= names a kernel LM, policy.path= any model: give one of them")
        if not self.policy.path and (self.examples == "text" or self.policy.lora.rank):
            raise ValueError(
                "examples=text and policy.lora are for a model that exists: name it, policy.path=…, or policy=smollm2"
            )
        if self.policy.path and self.batch_size % self.tuning.micro_batch:
            raise ValueError(
                f"batch_size={self.batch_size} is no multiple of tuning.micro_batch={self.tuning.micro_batch}"
            )


class EvalConfig(Schema, frozen=True):
    """Which shapes are evaluated, and on whose kernels.

    A shape's `finalists` best kernels in the archive of `run` and the best of `neighbours` other shapes are timed
    against one another. Where nothing is archived for a shape or near it, `policy` writes `samples` new kernels.
    `anywhere` also tries kernels that were judged in another environment; they are measured in this one.

    `source` says where else kernels come from: policy, `samples` new ones of `policy` for every shape; or a folder,
    what `cudal2 export` wrote, another run, or sources named after their shapes, which may be CUDA-L2's (`abi`).
    Of these `samples` a policy with `turns` writes `turns.count` in a row. `limit` takes only so many shapes, a fair
    part of them, 0: all of them.
    """

    run: Annotated[str, NEUTRAL]
    source: str = ""
    abi: Abi = "contract"
    target: str = "cpu"
    shapes: ShapesConfig = ShapesConfig()
    limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    finalists: int = 3
    neighbours: int = 2
    anywhere: bool = False
    samples: int = 0
    seed: int = 0
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    turns: TurnsConfig = TurnsConfig()
    worker: WorkerConfig = WorkerConfig()

    def __post_init__(self) -> None:
        if self.source == "policy" and not self.samples:
            raise ValueError("source=policy has the policy write kernels: say how many a shape, such as samples=16")
        if self.abi != "contract" and self.source in ("", "policy"):
            raise ValueError(f"abi={self.abi} is that of published sources: say which, with source=FOLDER")
        self.turns.check(self.policy)
        if self.samples % self.turns.count:
            raise ValueError(f"samples={self.samples} is no multiple of turns.count={self.turns.count}, and must be")


class SearchConfig(Schema, frozen=True):
    """A search into the archive of the folder `run`; `policy`, `prompt` and `turns` are what `search.method=policy`
    samples: a generation after each turn.
    """

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "cpu"
    shapes: ShapesConfig = ShapesConfig()
    search: SearchMethodConfig = SearchMethodConfig()
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    turns: TurnsConfig = TurnsConfig()
    worker: WorkerConfig = WorkerConfig()


class BenchConfig(Schema, frozen=True):
    """What `cudal2 bench` measures with."""

    target: str = "cpu"
    worker: WorkerConfig = WorkerConfig()
