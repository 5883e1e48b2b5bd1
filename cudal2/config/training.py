"""How a policy is trained: `cudal2 train` and `cudal2 sft`, and the groups of keys that only they have."""

from typing import Annotated, Any, Literal, get_args

import msgspec

from cudal2.config.base import LATER, NEUTRAL, Schema, WorkerConfig
from cudal2.config.policy import PolicyConfig, PromptConfig, ReturnsConfig
from cudal2.config.problems import ShapesConfig
from cudal2.problem import Accumulate, Layout


class RewardConfig(Schema, frozen=True):
    """How a verdict becomes a reward. `name` is a module in `train/rewards/`, which says how it uses the other keys:
    log reads `octaves`, milestone `margin`, and paper `alpha` and `beta`."""

    name: str = "log"
    octaves: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    alpha: float = 0.1
    beta: float = 0.0
    margin: float = 0.05


class TrainerConfig(Schema, frozen=True):
    """RL. In each step, for each of `problems_per_step` problems a group of `group_size` completions is sampled, each
    with `turns.count` turns; then the policy is updated `iterations` times.

    A run ends after `steps` steps. With `minutes` above 0 it ends earlier, after the step in which all its starts
    together have taken that long. `resume` auto continues a run that is found in the folder; never refuses to. A
    checkpoint is written every `save_steps` steps.

    `learning_rate` is Adam's, whose first step is as long in every weight, however small the gradient. For a model of
    0.1 billion parameters 1e-3 with adapters undid in one step what it had been taught; 1e-4 with all weights is as far
    (experiments/smollm2).

    `algorithm` is a module in `train/algorithms/`, which says what rewards teach and documents its own keys,
    `options` (such as trainer.algorithm=best_of trainer.options.k=4). `beta`, `epsilon`, `scale_rewards` and
    `max_grad_norm` are TRL's options of these names, `loss` is its `loss_type`; where one is auto, the algorithm
    chooses. If rewards are scaled by group, and all samples of a group are about as fast, then the noise of their
    measurement weighs as much as the difference between right and wrong does in another group. `entropy` is the weight
    of an entropy bonus.

    In an update, `micro_batch` samples at a time go through the model, 0: all samples of the process. `deepspeed`
    names the configuration that shards training over several processes: a file, or one that ships (zero2 shards the
    gradients and the optimiser's state, zero3 the weights too).
    """

    steps: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 40
    minutes: Annotated[float, msgspec.Meta(ge=0), NEUTRAL] = 0.0
    problems_per_step: Annotated[int, msgspec.Meta(ge=1)] = 2
    group_size: Annotated[int, msgspec.Meta(ge=1)] = 16
    learning_rate: float = 2e-4
    algorithm: str = "grpo"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    beta: float | Literal["auto"] = "auto"
    epsilon: float | Literal["auto"] = "auto"
    iterations: Annotated[int, msgspec.Meta(ge=1)] = 1
    save_steps: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 10
    max_grad_norm: float = 1.0
    loss: Literal["auto", "dapo", "dr_grpo", "cispo", "bnpo", "grpo"] = "auto"
    scale_rewards: Literal["auto", "group", "batch", "none"] = "auto"
    entropy: float = 0.0
    micro_batch: Annotated[int, msgspec.Meta(ge=0)] = 0
    gradient_checkpointing: bool = False
    deepspeed: str = ""
    resume: Annotated[Literal["auto", "never"], NEUTRAL] = "auto"
    best_of: Annotated[Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType, NEUTRAL] = msgspec.UNSET
    """How runs of earlier versions say the algorithm best_of and its `k`; it is read as these, and never written."""

    def __post_init__(self) -> None:
        if self.best_of is msgspec.UNSET:
            return
        if self.best_of > 1:
            options = {"k": self.best_of}
            if self.algorithm not in ("grpo", "best_of") or self.options not in ({}, options):
                raise ValueError(
                    f"trainer.best_of={self.best_of} is the old name of trainer.algorithm=best_of "
                    f"trainer.options.k={self.best_of}, and another algorithm is named beside it: leave it out"
                )
            msgspec.structs.force_setattr(self, "algorithm", "best_of")
            msgspec.structs.force_setattr(self, "options", options)
        msgspec.structs.force_setattr(self, "best_of", msgspec.UNSET)


class TuningConfig(Schema, frozen=True):
    """How a policy that exists is trained on examples: by TRL's SFTTrainer, with the policy's own tokens.

    With `packing` a row of the batch holds as many whole samples as fit into `context` tokens (TRL's best-fit packing),
    and they do not see each other. Without it a row holds one sample. `micro_batch` rows at a time go through the
    model. Samples longer than `context` are left out, never cut. If they are more than the share `left_out` of all,
    that is an error. Every `save_steps` updates a checkpoint is written, from which the same command continues. With
    `minutes` above 0 training ends, with its learning rate brought down, after that time at the latest.
    """

    packing: bool = True
    micro_batch: Annotated[int, msgspec.Meta(ge=1)] = 1
    gradient_checkpointing: bool = False
    left_out: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    save_steps: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 100
    minutes: Annotated[float, msgspec.Meta(ge=0)] = 0.0


Style = Literal["plain", "terse", "tutor"]
"""How a source is written, see `corpus/family.py`."""


class TaughtTurnsConfig(Schema, frozen=True):
    """Conversations that a model which chats, or a kernel LM, is taught, so that `turns.count` is of use: attempts, the
    verdict on each, and then a better kernel, which alone counts in the loss.

    They come from the archives of these `runs`, failures included, for shapes that training may see; without runs there
    are none. An attempt occurs `times` times, each time beside others and before another answer, and a conversation
    shows up to `attempts` of them, as many as fit into `context`.

    The share `share` of all samples are conversations, the others are what `examples` says. Of the kind of which there
    are more than that, some are left out.
    """

    runs: Annotated[tuple[str, ...], LATER] = ()
    share: Annotated[float, msgspec.Meta(gt=0, le=1), LATER] = 0.5
    attempts: Annotated[int, msgspec.Meta(ge=1), LATER] = 3
    times: Annotated[int, msgspec.Meta(ge=1), LATER] = 1


class CorpusConfig(Schema, frozen=True):
    """Which sources of the kernel families a policy learns: those for problems of these `layouts` that may be
    accumulated so, written in these `styles`; what is named twice is drawn twice as often. With more `dtypes` or
    `epilogues` than the plainest a kernel LM also gets words for them and for an M that is no multiple of 8. `turns`
    adds conversations.
    """

    layouts: Annotated[tuple[Layout, ...], msgspec.Meta(min_length=1)] = get_args(Layout)
    accumulates: Annotated[tuple[Accumulate, ...], msgspec.Meta(min_length=1)] = get_args(Accumulate)
    styles: Annotated[tuple[Style, ...], msgspec.Meta(min_length=1)] = get_args(Style)
    dtypes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("fp16",)
    epilogues: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("none",)
    turns: TaughtTurnsConfig = TaughtTurnsConfig()
    without: Annotated[dict[str, dict[str, int | str]], LATER] = msgspec.field(default_factory=dict)
    """Compositions that are shown to nobody, by family: a setting with all of these knobs' values is neither drawn nor
    taught as a known one. Whether a policy that never saw one writes it, experiments/h200/learning/compositions.py
    counts."""

    @property
    def plain(self) -> bool:
        """Whether all is fp16, and the product alone."""
        return self.dtypes == ("fp16",) and self.epilogues == ("none",)


class TrackerConfig(Schema, frozen=True):
    """Where metrics are written: always into `metrics.jsonl`, and with `name` wandb also to Weights & Biases.

    That gets curves, the configuration, a table of up to `kernels` kernels of each step (with source and verdict, the
    best reward first), and in the end the best kernels and the run's small files; with `policy` also the newest
    checkpoint. `mode` offline needs no login and sends nothing.
    """

    name: Literal["jsonl", "wandb"] = "jsonl"
    mode: Literal["offline", "online"] = "offline"
    project: str = "cudal2"
    kernels: Annotated[int, msgspec.Meta(ge=0)] = 32
    policy: bool = False


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
        self.turns.check(self.policy, self.prompt)


class SftConfig(Schema, frozen=True):
    """`cudal2 sft`: supervised training of a language model on kernels.

    If `policy.path` names a causal language model, that is trained, as `tuning` says. Otherwise a kernel LM is trained:
    the one in the folder `start`, or a new one with these `vocabulary`, `hidden`, `layers` and `heads`.

    `examples` says what it is trained on:

    - families: `samples` random settings of the kernel families, drawn without regard to the shape, from `corpus`;
    - known: what searches found fast for the shapes that training may see, or for shapes near them; with `settings`
      what that file says of the problems in it (in the format of data/settings, and packed where it ends in .xz), and
      with `also_known` both. What a file is learnt from is lent to the same products in other forms, which are drawn
      from the layouts and accumulates of `corpus` (`train/sft/known.py`);
    - archive: the fastest kernels in the folder `archive` for shapes that training may see, and those of known for
      shapes of the grid where it has none (rejection sampling fine-tuning, arXiv:2308.01825);
    - text: sources without prompts (continued pretraining, arXiv:2004.10964), for a model that exists. `text` lists
      them: families (`samples` of them), cutlass (headers and examples of the package nvidia-cutlass), or a folder with
      `.cu` and `.cuh` files.

    With `plan` each source begins with comments that state its family and knobs. The share `plan_loss` of the samples
    counts them in the loss. Of settings drawn at random they cannot be foretold, so their loss is mostly noise in what
    the code is learnt from. The share `code_loss` counts the code; all others end with their plan, and so have a
    fraction of the tokens. That is for a model that knows how kernels are written, and learns which.

    Families made after `start` was taught are spelt in pieces of lines, which takes too many tokens: `new_lines` makes
    up to so many words of such lines first.
    """

    run: Annotated[str, NEUTRAL]
    seed: int = 0
    target: str = "cpu"
    start: str = ""
    new_lines: Annotated[Annotated[int, msgspec.Meta(ge=0)], LATER] = 0
    policy: PolicyConfig = PolicyConfig()
    examples: Literal["families", "known", "archive", "text"] = "families"
    archive: str = ""
    settings: Annotated[str, LATER] = ""
    also_known: Annotated[bool, LATER] = False
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
    sampling_temperature: Annotated[Annotated[float, msgspec.Meta(gt=0, le=1)] | None, LATER] = None
    """What the policy states (`policy/learnt.py`); None leaves what `start` or `policy.path` stated."""
    verify: Annotated[int, NEUTRAL] = 256
    """After training, the worker judges so many samples on held-out shapes. The policy does not depend on them."""
    worker: Annotated[WorkerConfig, NEUTRAL] = WorkerConfig()
    tracker: Annotated[TrackerConfig, NEUTRAL] = TrackerConfig()

    def __post_init__(self) -> None:
        if (self.examples == "archive") != bool(self.archive):
            raise ValueError("examples=archive learns from the run that archive=FOLDER names: give both or neither")
        if self.settings and self.examples != "known":
            raise ValueError("settings=FILE says what is known: it wants examples=known")
        if self.also_known and not self.settings:
            raise ValueError("also_known is for settings=FILE; without one examples=known learns data/settings alone")
        if self.corpus.without and (self.examples not in ("families", "known") or self.corpus.turns.runs):
            raise ValueError("corpus.without keeps settings out: it wants examples=families or known, without turns")
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
        if self.new_lines and not self.start:
            raise ValueError("new_lines= is for a kernel LM that exists: name it, start=…")
        if self.policy.path and self.start:
            raise ValueError("start= names a kernel LM, policy.path= any model: give one of them")
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is no multiple of heads={self.heads}")
        if not self.policy.path and (self.examples == "text" or self.policy.lora.rank):
            raise ValueError(
                "examples=text and policy.lora are for a model that exists: name it, policy.path=…, or policy=smollm2"
            )
        if self.corpus.turns.runs and not (self.start or (self.policy.path and self.policy.chat)):
            raise ValueError(
                "corpus.turns.runs teaches conversations, and needs a kernel LM that can write kernels, start=…, or a "
                "model that chats: policy.chat=true and policy.path=… of one with a chat template, such as "
                "policy=smollm2"
            )
        if self.policy.path and self.batch_size % self.tuning.micro_batch:
            raise ValueError(
                f"batch_size={self.batch_size} is no multiple of tuning.micro_batch={self.tuning.micro_batch}"
            )
