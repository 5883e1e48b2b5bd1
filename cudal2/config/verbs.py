"""The whole configuration of each verb."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.parts import (
    CorpusConfig,
    ExportConfig,
    PolicyConfig,
    PromptConfig,
    ReturnsConfig,
    SearchMethodConfig,
    ShapesConfig,
    TrackerConfig,
    TurnsConfig,
)
from cudal2.config.training import RewardConfig, TrainerConfig, TuningConfig
from cudal2.config.worker import WorkerConfig
from cudal2.records import Abi


class TrainConfig(Schema, frozen=True):
    """`cudal2 train`: one GRPO run, kept in the folder `run`."""

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
    """`cudal2 sft`: supervised training of a language model on kernels.

    If `policy.path` names a causal language model, that is trained, as `tuning` says. Otherwise a kernel LM is trained:
    the one in the folder `start`, or a new one with these `vocabulary`, `hidden`, `layers` and `heads`.

    `examples` says what it is trained on:

    - families: `samples` random settings of the kernel families, drawn without regard to the shape, from `corpus`;
    - known: what searches found fast for the shapes that training may see, or for shapes near them;
    - archive: the fastest kernels for these shapes in the folder `archive`, and those of known for shapes where it has
      none (rejection sampling fine-tuning, arXiv:2308.01825);
    - text: sources without prompts (continued pretraining, arXiv:2004.10964), for a model that exists. `text` lists
      them: families (`samples` of them), cutlass (headers and examples of the package nvidia-cutlass), or a folder with
      `.cu` and `.cuh` files.

    With `plan` each source begins with comments that state its family and knobs. The share `plan_loss` of the samples
    counts them in the loss. Of settings drawn at random they cannot be foretold, so their loss is mostly noise in what
    the code is learnt from. The share `code_loss` counts the code; all others end with their plan, and so have a
    fraction of the tokens. That is for a model that knows how kernels are written, and learns which.
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
    plan_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    code_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    samples: Annotated[int, msgspec.Meta(ge=1)] = 60_000
    corpus: CorpusConfig = CorpusConfig()
    epochs: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    batch_size: Annotated[int, msgspec.Meta(ge=1)] = 16
    learning_rate: float = 3e-3
    vocabulary: int = 4096
    hidden: Annotated[int, msgspec.Meta(ge=1)] = 256
    layers: Annotated[int, msgspec.Meta(ge=1)] = 4
    heads: Annotated[int, msgspec.Meta(ge=1)] = 8
    context: Annotated[int, msgspec.Meta(ge=1)] = 512
    tuning: TuningConfig = TuningConfig()
    prompt: PromptConfig = PromptConfig()
    verify: Annotated[int, NEUTRAL] = 256
    """After training, the worker judges so many samples on held-out shapes. The policy does not depend on them."""
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
        if self.plan_loss + self.code_loss < 1 or (self.code_loss < 1 and not self.plan):
            raise ValueError(
                f"with plan={str(self.plan).lower()} plan_loss={self.plan_loss} code_loss={self.code_loss} nothing is "
                "learnt of some samples: raise one of them, code_loss to 1 where there are no plans"
            )
        if self.policy.path and self.start:
            raise ValueError("start= names a kernel LM, policy.path= any model: give one of them")
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is no multiple of heads={self.heads}")
        if not self.policy.path and (self.examples == "text" or self.policy.lora.rank):
            raise ValueError(
                "examples=text and policy.lora are for a model that exists: name it, policy.path=…, or policy=smollm2"
            )
        if self.policy.path and self.batch_size % self.tuning.micro_batch:
            raise ValueError(
                f"batch_size={self.batch_size} is no multiple of tuning.micro_batch={self.tuning.micro_batch}"
            )


class EvalConfig(Schema, frozen=True):
    """`cudal2 eval`: which shapes are evaluated, and whose kernels.

    By default the kernels come from the archive of `run`. A shape's best `finalists` kernels, and the best kernel of
    each of `neighbours` near shapes, are timed against one another, and the winner is measured. If there are none,
    `policy` writes `samples` new kernels. With `anywhere` kernels that were judged in another environment are tried
    too; they are measured in this one.

    `source` takes the kernels from elsewhere. policy means `samples` new kernels of `policy` for every shape. A folder
    is an export, another run, or holds sources that are named after their shapes; these may have CUDA-L2's entry point
    (`abi`). A policy with several `turns` writes the `samples` in conversations of `turns.count` kernels.

    `limit` evaluates only so many of the shapes, which are a representative part of all; 0: all of them. `against` is a
    table of somebody else's figures by shape, a CSV file such as CUDA-L2's, that is printed beside these.
    """

    run: Annotated[str, NEUTRAL]
    source: str = ""
    abi: Abi = "contract"
    target: str = "cpu"
    shapes: ShapesConfig = ShapesConfig()
    limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    against: Annotated[str, NEUTRAL] = ""
    finalists: int = 3
    neighbours: int = 2
    anywhere: bool = False
    samples: Annotated[int, msgspec.Meta(ge=0)] = 0
    seed: int = 0
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    turns: TurnsConfig = TurnsConfig()
    export: Annotated[ExportConfig, NEUTRAL] = ExportConfig()
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
    """`cudal2 search`: a search whose kernels go into the archive in the folder `run`.

    `policy`, `prompt` and `turns` are for `search.method=policy`, where each turn is a generation.
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
