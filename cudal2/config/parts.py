"""The groups of keys that several verbs share; the worker's are in `worker.py`."""

from collections.abc import Callable
from typing import Annotated, Literal, get_args

import msgspec

from cudal2 import llm
from cudal2.config import kinds
from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.endpoint import EndpointConfig
from cudal2.config.kinds import Dtype, Epilogue
from cudal2.problem import Accumulate, Layout, Problem, grid, off_lattice, sample
from cudal2.split import KEPT_APART, open_families, training

Style = Literal["plain", "terse", "tutor"]
"""How a source is written, see `corpus/family.py`."""


class LoraConfig(Schema, frozen=True):
    """LoRA adapters (PEFT's) that are trained in place of the weights. With `rank` 0 all weights are trained."""

    rank: Annotated[int, msgspec.Meta(ge=0)] = 0
    alpha: int = 32
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


class CorpusConfig(Schema, frozen=True):
    """Which sources of the kernel families a policy learns: those for problems of these `layouts` that may be
    accumulated so, written in these `styles`. With more `dtypes` or `epilogues` than the plainest a kernel LM also gets
    words for them and for an M that is no multiple of 8.
    """

    layouts: Annotated[tuple[Layout, ...], msgspec.Meta(min_length=1)] = get_args(Layout)
    accumulates: Annotated[tuple[Accumulate, ...], msgspec.Meta(min_length=1)] = get_args(Accumulate)
    styles: Annotated[tuple[Style, ...], msgspec.Meta(min_length=1)] = get_args(Style)
    dtypes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("fp16",)
    epilogues: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("none",)

    @property
    def plain(self) -> bool:
        """Whether all is fp16, and the product alone."""
        return self.dtypes == ("fp16",) and self.epilogues == ("none",)


class ExportConfig(Schema, frozen=True):
    """What `cudal2 export` writes. A kernel is exported for every number of rows up to `rows` that it is right for;
    with 0 for those of its bucket (1 to 8, 9 to 16, 17 to 32, 33 to 64, beyond that M alone); with 1 for M alone.

    With `layout` kernels nothing is built or measured: the export that stands in the run is written once more, to
    RUN/kernels, as a repository for Hugging Face's `kernels`.
    """

    rows: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    layout: Literal["package", "kernels"] = "package"


class VllmConfig(Schema, frozen=True):
    """Where and how vLLM runs if `policy.sampler` is vllm.

    With `mode` server, training samples from a server at `url`, for which it waits up to `patience` seconds. Start the
    server beforehand with `trl vllm-serve`, on its own GPUs and with its own options. With colocate vLLM runs in the
    trainer's own processes, and also serves searches and evaluations. Then `tensor_parallel_size` processes share one
    copy of the weights; each gives vLLM the share `gpu_memory_utilization` of its GPU's memory for weights and cache.
    With `sleep` vLLM frees this memory between samplings. `max_model_length` is the largest number of tokens of a
    prompt and its completion together, 0: as many as the model allows.

    vLLM and the trainer compute slightly different probabilities. So the loss weights each token, or each whole sample,
    by the ratio of the two (`correction`, TRL's `vllm_importance_sampling_mode`). A ratio above `correction_most` is
    cut to it (truncate), or the token or sample is left out (mask). A sample's ratio is the product of those of its
    tokens and leaves any bounds as texts grow: sequence_mask leaves out nearly all texts of 2,000 tokens. So auto is
    sequence_mask up to 512 tokens (`policy.max_new_tokens`), and token_truncate beyond.
    """

    mode: Literal["colocate", "server"] = "colocate"
    url: Annotated[str, NEUTRAL] = "http://localhost:8000"
    patience: Annotated[float, NEUTRAL] = 240.0
    correction: Literal["auto", "sequence_mask", "sequence_truncate", "token_mask", "token_truncate", "none"] = "auto"
    correction_most: Annotated[float, msgspec.Meta(gt=1)] = 3.0
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    gpu_memory_utilization: Annotated[float, NEUTRAL] = 0.3
    max_model_length: int = 0
    sleep: bool = False


class PolicyConfig(Schema, frozen=True):
    """Which language model writes kernels, and how it is sampled.

    An empty `path` means the kernel LM that ships. Otherwise `path` is a folder (of a model or of a run), a GGUF file,
    the folder of an installed Python package (`package:NAME`), a policy that ships (`shipped:NAME`), or a model's name
    on the Hugging Face hub.

    The model computes in `dtype`. Weights that are trained are float32 in any case, so bfloat16 saves memory for
    weights only with adapters. A completion has at most `max_new_tokens` tokens; `top_k` 0 means no limit. With `chat`
    the model is asked in its chat template, which it must have.

    With `sampler` endpoint a model elsewhere is asked, by an API; it is always a chat, and temperature, top p and top k
    are sent only where they are not the defaults.
    """

    path: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraConfig = LoraConfig()
    sampler: Literal["transformers", "vllm", "endpoint"] = "transformers"
    vllm: VllmConfig = VllmConfig()
    endpoint: EndpointConfig = EndpointConfig()
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 512
    chat: bool = False

    def __post_init__(self) -> None:
        if self.sampler == "endpoint":
            msgspec.structs.force_setattr(self, "chat", True)

    def check_here(self) -> None:
        """Raises ValueError where the model is elsewhere, and so cannot be trained."""
        if self.sampler == "endpoint":
            raise ValueError("policy.sampler=endpoint cannot be trained: its weights are elsewhere; use search or eval")


class PromptConfig(Schema, frozen=True):
    """What the policy is asked: a Jinja template in `prompts/`, and what it shows beside the problem.

    The keys other than `template` are for prompts in words, and are off by default. `exemplars` is how many kernels of
    contrasting speed are shown from the archive, `failures` how many failed attempts. `parent` is from how many of the
    best kernels one is drawn, which is shown with its profile, to be improved. With two or more `islands` the archive's
    kernels are divided into as many parts, and the exemplars and the parent of a prompt come from one part
    (`archive/islands.py`); after every `island_steps` steps the worse half of the islands begins anew, 0: never.

    `notes` is a folder of the user's texts. The passages nearest to the problem are shown, at most `notes_bytes` bytes.
    `bytes` limits the length of the whole prompt, 0: no limit. What does not fit is left out in this order: failures,
    exemplars (the slowest first), notes, the parent.
    """

    template: str = "kernel_lm"
    exemplars: Annotated[int, msgspec.Meta(ge=0)] = 0
    failures: Annotated[int, msgspec.Meta(ge=0)] = 0
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
    """A chat policy writes `count` kernels in a row. After each but the last it is told the verdict. With 1 it is told
    nothing."""

    count: Annotated[int, msgspec.Meta(ge=1)] = 1

    def check(self, policy: PolicyConfig) -> None:
        """Raises ValueError where there are several turns but the policy cannot chat."""
        if self.count > 1 and not policy.chat:
            raise ValueError(
                f"turns.count={self.count} needs a policy that chats: policy.chat=true and a model with a chat "
                "template, such as policy=smollm2; otherwise turns.count=1"
            )


class ReturnsConfig(TurnsConfig, frozen=True):
    """The turns of a policy in training, and what each of them earns.

    With `reward` discounted it is the sum of the turn's own reward and those of all later turns, each multiplied by
    `discount` once per turn in between (0.4 is Kevin's value, arXiv:2507.11948). With best it is the best reward of all
    turns.
    """

    reward: Literal["discounted", "best"] = "discounted"
    discount: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.4


class ShapesConfig(Schema, frozen=True):
    """Which problems, by `names`, with this `layout`, type of accumulator, `dtype` of all operands (fp16, bf16) and
    `epilogue` (a file in `cudal2/operators`: none, bias, bias_gelu) unless a name states its own.

    A name is `grid` (the 1,000 shapes), `sample` (about `count` shapes of the grid, drawn with `seed`), `training`
    (those shapes of the grid that training may see), `llm` (every layer of every model in `data/shapes/llm.toml` for 1,
    2, 4 … 8192 rows), `llm-sample` (about `count` of them, from each model and number of rows its share), `llm-open`
    (those of the models that training may see), `llm-apart` (those of the others), `off-lattice` (`count` shapes that
    no usual tile divides), a shape (`M_N_K`, or as a whole problem `256_384_512_nn_f16` or
    `7_384_512_tn_f32_bf16_bias`), or a layer of a model (`qwen2.5-7b.qkv@8`). With a dtype behind it, as in `llm_bf16`
    or `qwen2.5-7b.qkv@8_bf16`, a list or a layer is of that type. Layers that have a bias ask for it.
    """

    names: tuple[str, ...] = ("grid",)
    count: int = 100
    seed: int = 2026
    layout: Layout = "tn"
    accumulate: Accumulate = "f32"
    dtype: Dtype = "fp16"
    epilogue: Epilogue = "none"

    def __post_init__(self) -> None:
        kinds.check(self)

    def problems(self) -> list[Problem]:
        """The named problems in the order given. Raises ValueError for an unknown name, or where none is named."""
        found: list[Problem] = []
        for name in self.names:
            listed, _, dtype = name.partition("_")
            if listed in self._lists():
                kind = msgspec.structs.replace(self, names=(), dtype=dtype or self.dtype)
                found += [kinds.problem(shape, kind) for shape in self._lists()[listed]()]
            else:
                found.append(kinds.problem(name, self))
        if not found:
            raise ValueError("shapes.names=[] names no problem; name one, e.g. shapes.names=[256_256_256]")
        return found

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


class SearchMethodConfig(Schema, frozen=True):
    """Who proposes kernels for a problem, and when the search for it ends.

    `method` is a module in `search/proposers/`. evolution (or evolve) and random choose settings of the kernel
    `families` (named, or all if none is named). mutation changes the text of the best kernels that it has found, and
    begins with kernels of these families. policy samples the language model `policy`. folder takes the sources in
    `folder`, in order of their names.

    Each round judges `generation` kernels of every problem. The generations of evolution and mutation begin with the
    best kernels of `neighbours` other shapes of the search, and the very first one also with what `prior` proposes:
    settings that are known to be fast for near shapes and ship with cudal2 (known), those of NVIDIA's heuristics
    (nvidia, which needs `pip install cudal2[heuristics]`), or nothing (none). The other methods use and accept neither,
    so to compare with them say prior=none neighbours=0. Known settings come in the `order` of how near the shapes are
    that they were found on, or of the speed that a model of all measured ones predicts (cost; `cudal2[cost]`).

    A problem's budget is `kernels` kernels and `seconds` seconds, 0 for no limit. The wall time of a round is shared
    equally by its kernels, and it is looked at between rounds. What was spent before a search was continued counts.

    A search is continued if only NEUTRAL keys differ: its budget, and the folders and devices that it works with. With
    any other difference a new search begins, which uses nothing of what was found before.
    """

    method: str = "evolution"
    kernels: Annotated[int, NEUTRAL] = 64
    seconds: Annotated[float, NEUTRAL] = 0.0
    generation: int = 8
    families: tuple[str, ...] = ()
    neighbours: int = 3
    prior: Literal["none", "nvidia", "known"] = "known"
    order: Literal["nearest", "cost"] = "nearest"
    folder: str = ""

    def __post_init__(self) -> None:
        if self.method == "evolve":
            msgspec.structs.force_setattr(self, "method", "evolution")
        if self.order == "cost" and self.prior != "known":
            raise ValueError("search.order=cost puts known settings in order: it needs search.prior=known")
