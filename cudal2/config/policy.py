"""The policy: which language model writes kernels, where it runs, what it is asked, and how it is sampled."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import LATER, NEUTRAL, Schema


class LoraConfig(Schema, frozen=True):
    """LoRA adapters (PEFT's) that are trained in place of the weights. With `rank` 0 all weights are trained."""

    rank: Annotated[int, msgspec.Meta(ge=0)] = 0
    alpha: int = 32
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


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


class EndpointConfig(Schema, frozen=True):
    """Where a model answers, and how it is asked, if `policy.sampler` is endpoint.

    `url` is that of an OpenAI-compatible API, such as http://localhost:8000/v1; `policy.path` is the model's name
    there. `key` is the name of the environment variable that holds the key, which is stored nowhere; without it none is
    sent. The model's name tells one search from another, not its address.

    `effort` is sent as `reasoning_effort`, if it is set. With `seeded` each request has a seed of its own, which not
    every server takes. `context` is how many tokens the model reads at once (estimated, as three bytes each); with
    turns the oldest are left out where they are more; 0: no limit is known.

    So many requests run `at_once`. One that is refused for now, or finds nobody, is sent again up to `retries` times,
    each time later. Nothing may come for `patience` seconds: where a server does not `stream`, that is the time of a
    whole answer. No request begins once the run has had `requests` answers or `tokens` tokens, read and written; 0: no
    limit.
    """

    url: Annotated[str, NEUTRAL] = ""
    key: Annotated[str, NEUTRAL] = ""
    effort: Annotated[str, LATER] = ""
    seeded: Annotated[bool, LATER] = True
    context: Annotated[int, msgspec.Meta(ge=0), LATER] = 0
    at_once: Annotated[int, msgspec.Meta(ge=1, le=1024), NEUTRAL] = 8
    retries: Annotated[int, msgspec.Meta(ge=0, le=100), NEUTRAL] = 4
    patience: Annotated[float, msgspec.Meta(gt=0), NEUTRAL] = 600.0
    stream: Annotated[bool, NEUTRAL] = True
    requests: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 0
    tokens: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 0


class PolicyConfig(Schema, frozen=True):
    """Which language model writes kernels, and how it is sampled.

    An empty `path` means the kernel LM that ships. Otherwise `path` is a folder (of a model or of a run), a GGUF file,
    the folder of an installed Python package (`package:NAME`), a policy that ships (`shipped:NAME`), or a model's name
    on the Hugging Face hub.

    The model computes in `dtype`. Weights that are trained are float32 in any case, so bfloat16 saves memory for
    weights only with adapters. A completion has at most `max_new_tokens` tokens; `top_k` 0 means no limit. With `chat`
    the model is asked in its chat template, which it must have.

    Without a `temperature` training samples at 1, all else as the policy's folder states (`policy/learnt.py`), or at 1.
    A search draws the first kernel of a prompt at it, and all others at `further_temperature` if there is one.

    With `sampler` endpoint a model elsewhere is asked, by an API; it is always a chat, and temperature, top p and top k
    are sent only where they are not the defaults.
    """

    path: str = ""
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraConfig = LoraConfig()
    sampler: Literal["transformers", "vllm", "endpoint"] = "transformers"
    vllm: VllmConfig = VllmConfig()
    endpoint: EndpointConfig = EndpointConfig()
    temperature: Annotated[float, msgspec.Meta(gt=0)] | None = None
    further_temperature: Annotated[Annotated[float, msgspec.Meta(gt=0)] | None, LATER] = None
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


KERNEL_LM = "kernel_lm"
"""The template of a policy that does not say which one it learnt."""


class PromptConfig(Schema, frozen=True):
    """What the policy is asked: a Jinja template in `prompts/`, and what it shows beside the problem.

    Without a `template` it is the one that the policy learnt, as its folder states (`policy/learnt.py`).
    The keys other than `template` are for prompts in words, and are off by default. `exemplars` is how many kernels of
    contrasting speed are shown from the archive, `failures` how many failed attempts. `parent` is from how many of the
    best kernels one is drawn, which is shown with its profile, to be improved. With two or more `islands` the archive's
    kernels are divided into as many parts, and the exemplars and the parent of a prompt come from one part
    (`archive/selection.py`); after every `island_steps` steps the worse half of the islands begins anew, 0: never.

    `notes` is a folder of the user's texts. The passages nearest to the problem are shown, at most `notes_bytes` bytes.
    `bytes` limits the length of the whole prompt, 0: no limit. What does not fit is left out in this order: failures,
    exemplars (the slowest first), notes, the parent.
    """

    template: str = ""
    exemplars: Annotated[int, msgspec.Meta(ge=0)] = 0
    failures: Annotated[int, msgspec.Meta(ge=0)] = 0
    islands: Annotated[int, msgspec.Meta(ge=0)] = 0
    island_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    parent: Annotated[int, msgspec.Meta(ge=0)] = 0
    notes: str = ""
    notes_bytes: Annotated[int, msgspec.Meta(gt=0)] = 4000
    bytes: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def bare(self) -> bool:
        """Whether the prompt is the kernel LM's: a token for each fact, and the completion is only the source."""
        return not self.template or self.template.startswith(KERNEL_LM)

    @property
    def worked(self) -> bool:
        """Whether it states what an expert works out of the sizes."""
        return self.template == "kernel_lm_worked"

    def __post_init__(self) -> None:
        if self.bare and (self.parent or self.notes):
            raise ValueError("the kernel LM's prompt shows no parent and no notes: use prompt.template=instruct")
        if self.islands > 1 and not self.exemplars and not self.parent:
            raise ValueError(
                f"prompt.islands={self.islands} divides the kernels that a prompt shows, and this one shows none: add "
                "prompt.exemplars=3 or prompt.parent=1"
            )


class TurnsConfig(Schema, frozen=True):
    """A policy writes `count` kernels in a row. After each but the last it is told the verdict. With 1 it is told
    nothing. It is a model that chats, or a kernel LM that was taught turns."""

    count: Annotated[int, msgspec.Meta(ge=1)] = 1

    def check(self, policy: PolicyConfig, prompt: PromptConfig) -> None:
        """Raises ValueError where there are several turns but the policy can neither chat nor is a kernel LM."""
        if self.count > 1 and not (policy.chat or prompt.bare):
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
