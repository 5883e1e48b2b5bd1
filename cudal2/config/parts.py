"""The groups that the verbs' configurations are made of, but for the worker's."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.problem import Accumulate, Layout, Problem, grid, parse, sample
from cudal2.split import training


class LoraConfig(Schema, frozen=True):
    """Adapters of PEFT, for training; `rank` 0 trains every weight."""

    rank: int = 0
    alpha: int = 32
    dropout: float = 0.0


class VllmConfig(Schema, frozen=True):
    """Where vLLM runs if `policy.sampler` is vllm: in the trainer's processes (colocate), or at `url` (server).

    A server is started beforehand with `trl vllm-serve`, on GPUs of its own and with options of its own; a trainer
    waits `patience` seconds for it. In the trainer's processes `tensor_parallel_size` of them share one copy of the
    weights, and each gives vLLM `gpu_memory_utilization` of its GPU's memory for weights and cache; with `sleep` it is
    given back between samplings. Searches and evaluations sample so too, a server is for training alone.
    `max_model_length` is the longest prompt and completion together, 0: what the model allows.

    vLLM computes a little otherwise than the trainer, so a sample is weighed by the ratio of both probabilities, of its
    tokens or of all of it (`correction`, TRL's `vllm_importance_sampling_mode`); beyond `correction_most` it is cut to
    that (truncate) or left out (mask).
    """

    mode: Literal["colocate", "server"] = "colocate"
    url: Annotated[str, NEUTRAL] = "http://localhost:8000"
    patience: Annotated[float, NEUTRAL] = 240.0
    correction: Literal["sequence_mask", "sequence_truncate", "token_mask", "token_truncate", "none"] = "sequence_mask"
    correction_most: Annotated[float, msgspec.Meta(gt=1)] = 3.0
    tensor_parallel_size: int = 1
    gpu_memory_utilization: Annotated[float, NEUTRAL] = 0.3
    max_model_length: int = 0
    sleep: bool = False


class PolicyConfig(Schema, frozen=True):
    """Which language model, and how it is sampled. An empty `path` is the kernel LM that ships. Otherwise it is a
    folder, a run's too, a GGUF file, the folder of an installed Python package (`package:NAME`) or a name on the hub of
    Hugging Face.

    `dtype` is what it computes in. Weights that train are float32 all the same, so bfloat16 saves their memory only
    with adapters.
    """

    path: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraConfig = LoraConfig()
    sampler: Literal["transformers", "vllm"] = "transformers"
    vllm: VllmConfig = VllmConfig()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    chat: bool = False


class PromptConfig(Schema, frozen=True):
    """Which Jinja template of `prompts/`, and what it shows beside the problem. All but the template is of prompts that
    are written in words, and off by default.

    `exemplars` and `failures` are how many kernels of contrasting speed and failed attempts from the archive. With
    `islands` from two on those exemplars, and the parent, are of one part of the archive's kernels alone, as
    `archive/islands.py` divides them; every `island_steps` steps the worse half of the islands begins anew, 0: never.
    `parent` shows a kernel to be improved, with its profile: one of so many of the best. `notes` is a folder of a
    user's, of whose texts the passages nearest to the problem are shown, `notes_bytes` at most. Where the whole would
    have more than `bytes`, failures are left out, then exemplars from the slowest on, then notes, then the parent; 0:
    no limit.
    """

    template: str = "kernel_lm"
    exemplars: int = 0
    failures: int = 0
    islands: Annotated[int, msgspec.Meta(ge=0)] = 0
    island_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    parent: Annotated[int, msgspec.Meta(ge=0)] = 0
    notes: str = ""
    notes_bytes: Annotated[int, msgspec.Meta(gt=0)] = 4000
    bytes: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.template == "kernel_lm" and (self.parent or self.notes):
            raise ValueError("the kernel LM's prompt shows no parent and no notes: use prompt.template=instruct")
        if self.islands > 1 and not self.exemplars and not self.parent:
            raise ValueError(
                f"prompt.islands={self.islands} divides the kernels that a prompt shows, and this one shows none: add "
                "prompt.exemplars=3 or prompt.parent=1"
            )


class TurnsConfig(Schema, frozen=True):
    """How often in a row a chat policy writes a kernel: after each it is told the verdict and writes again, until there
    are `count` of them. With 1 it is told nothing."""

    count: Annotated[int, msgspec.Meta(ge=1)] = 1

    def check(self, policy: PolicyConfig) -> None:
        """Raises ValueError where that policy can be told nothing."""
        if self.count > 1 and not policy.chat:
            raise ValueError(
                f"turns.count={self.count} needs a policy that chats: policy.chat=true and a model with a chat "
                "template, such as policy=smollm2; otherwise turns.count=1"
            )


class ReturnsConfig(TurnsConfig, frozen=True):
    """What a turn earns in training: with `reward` discounted the sum of its own reward and of the later turns', each
    turn later times `discount` (the 0.4 is Kevin's, arXiv:2507.11948); with best the best reward of all turns.
    """

    reward: Literal["discounted", "best"] = "discounted"
    discount: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.4


class RewardConfig(Schema, frozen=True):
    """`name` is that of a module in `train/rewards/`, which says what it computes and reads the other keys."""

    name: str = "log"
    octaves: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    alpha: float = 0.1
    beta: float = 0.0
    margin: float = 0.05


class TrainerConfig(Schema, frozen=True):
    """GRPO: each step samples `problems_per_step` groups of `group_size` completions, each of them of `turns.count`.

    `loss` and `scale_rewards` are TRL's `loss_type` and `scale_rewards`; by group, samples of a certain policy that
    differ by the noise of a measurement alone weigh as much as right and wrong ones. `entropy` is the weight of an
    entropy bonus. `micro_batch` samples at a time go through the model in an update, 0: all of a process's. `deepspeed`
    is the configuration that shards the training over the processes, a file or one that ships: zero2, the gradients and
    the optimiser's state; zero3, the weights too. `resume` auto
    continues a run found in the folder, never refuses to. A run ends after `steps`, or after the step in which it has
    taken `minutes`, all its starts together; 0: no limit.
    """

    steps: Annotated[int, NEUTRAL] = 40
    minutes: Annotated[float, msgspec.Meta(ge=0), NEUTRAL] = 0.0
    problems_per_step: int = 2
    group_size: int = 16
    learning_rate: float = 2e-4
    beta: float = 0.0
    epsilon: float = 0.2
    iterations: int = 1
    save_steps: Annotated[int, NEUTRAL] = 10
    max_grad_norm: float = 1.0
    loss: Literal["dapo", "dr_grpo", "cispo", "bnpo", "grpo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    entropy: float = 0.0
    micro_batch: int = 0
    gradient_checkpointing: bool = False
    deepspeed: str = ""
    resume: Annotated[Literal["auto", "never"], NEUTRAL] = "auto"


class TuningConfig(Schema, frozen=True):
    """How supervised training goes on with a policy that exists: by TRL's SFTTrainer, in its own words and tokens.

    With `packing` a row of the batch holds as many whole samples as fit into `context` tokens (best fit first, as TRL
    does it), which do not see each other; without, it holds one. `micro_batch` rows at a time go through the model.
    Samples longer than `context` are left out, never cut; where they are a greater share than `left_out`, that is an
    error. A checkpoint, from which the same command goes on, is written every `save_steps` updates.
    """

    packing: bool = True
    micro_batch: Annotated[int, msgspec.Meta(ge=1)] = 1
    gradient_checkpointing: bool = False
    left_out: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    save_steps: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 100


class ShapesConfig(Schema, frozen=True):
    """Problems by name: `grid`, `sample` (about `count` shapes of the grid, drawn by `seed`), `training` (those of the
    grid that training may see), `M_N_K`, an LLM layer."""

    names: tuple[str, ...] = ("grid",)
    count: int = 100
    seed: int = 2026
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"

    def problems(self) -> list[Problem]:
        """The named problems in the order given; ValueError for an unknown name, or where none is named."""
        found: list[Problem] = []
        for name in self.names:
            if name == "grid":
                found += grid(self.layout, self.accumulate)
            elif name == "training":
                found += training(self.layout, self.accumulate)
            elif name == "sample":
                found += sample(self.count, self.seed, self.layout, self.accumulate)
            else:
                found.append(parse(name, self.layout, self.accumulate))
        if not found:
            raise ValueError("shapes.names=[] names no problem; name one, e.g. shapes.names=[256_256_256]")
        return found


class TrackerConfig(Schema, frozen=True):
    """Metrics always go to `metrics.jsonl`; `wandb` adds Weights & Biases (offline asks for no login): curves, the
    configuration, a table of up to `kernels` of each step with source and verdict, from the best reward to the worst,
    and in the end the best kernels and what the run's small files hold; where `policy`, the newest checkpoint's too.
    """

    name: Literal["jsonl", "wandb"] = "jsonl"
    mode: Literal["offline", "online"] = "offline"
    project: str = "cudal2"
    kernels: Annotated[int, msgspec.Meta(ge=0)] = 32
    policy: bool = False


class SearchMethodConfig(Schema, frozen=True):
    """Who proposes candidates, and when a problem has had enough: `kernels` and `seconds`, 0 for no limit.

    `method` is the name of a module in `search/proposers/`: evolution (also called evolve) and random set the knobs of
    kernel `families` (names, none for all), mutation changes the text of the best kernels it has found, the first ones
    of these families, policy samples the language model `policy`, folder takes the sources in `folder`, by name. A
    generation of evolution and of mutation begins with the best kernels of `neighbours` other shapes of the
    search; the very first with what `prior` proposes: known settings of near shapes, as they ship (known), or NVIDIA's
    (nvidia: `pip install cudal2[heuristics]`). The other methods have neither and refuse both: compare with them at
    prior=none neighbours=0. `seconds` are of wall time, which the kernels of a round share equally, and looked at
    between generations; a search that is continued has used up what it spent before.

    A search is continued where only NEUTRAL keys differ: its budget, and the folders and devices that it works with.
    Any other value makes another search, which nothing that was found before has a part in.
    """

    method: str = "evolution"
    kernels: Annotated[int, NEUTRAL] = 64
    seconds: Annotated[float, NEUTRAL] = 0.0
    generation: int = 8
    families: tuple[str, ...] = ()
    neighbours: int = 3
    prior: Literal["none", "nvidia", "known"] = "known"
    folder: str = ""

    def __post_init__(self) -> None:
        if self.method == "evolve":
            msgspec.structs.force_setattr(self, "method", "evolution")
