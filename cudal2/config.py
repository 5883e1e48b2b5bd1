"""The frozen schema that a composed Hydra configuration must fit, key for key.

Hydra composes `conf/`; `load` checks the result once, at the entry; everything after reads these records.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cudal2.assets import asset
from cudal2.problem import Accumulate, Layout, Problem, grid, parse, sample
from cudal2.records import STRICT
from cudal2.target import find


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class WorkerConfig(_Config, frozen=True):
    """How candidates are built, jailed and timed. 0 for threads or jobs means every core."""

    cache: str = "~/.cache/cudal2"
    jail: Literal["auto", "bubblewrap", "landlock", "off"] = "auto"
    threads: int = 0
    build_jobs: int = 0
    compile_seconds: float = 60.0
    run_seconds: float = 20.0
    memory_mib: int = 4096
    batch_ms: float = 10.0
    min_pairs: Annotated[int, msgspec.Meta(ge=1)] = 7
    max_pairs: Annotated[int, msgspec.Meta(ge=1)] = 25
    disturbed: float = 1.6
    """A baseline this many times slower than alone was disturbed, as was a speedup whose interval spans this factor."""
    devices: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)] = (0,)
    """GPUs that candidates are spread over, one owner each, counted from 0 among those that can be seen (what trains
    takes the first); a processor is used whole."""
    protocols: tuple[Literal["device", "offline", "server"], ...] = ("device",)
    """What is timed on a GPU: replays on its own clock; single calls on the host's; the same after idle gaps.

    With none of them kernels are only checked, on any target."""
    host_calls: int = 50
    """Calls in a block of `offline` or `server`."""
    server_qps: float = 1000.0
    """Calls a second of `server`, in the mean."""
    timing_seconds: float = 3.0
    """Timing stops here too, once there are `min_pairs`."""
    precision: float = 0.01
    """Timing stops once the interval of the speedup is within ± this share of it."""
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = STRICT
    """Of that interval, whatever the noise and however often one looks; `min_pairs` of 6 or less have no 95%."""


class LoraConfig(_Config, frozen=True):
    """Adapters of PEFT, for training; `rank` 0 trains every weight."""

    rank: int = 0
    alpha: int = 32
    dropout: float = 0.0


class VllmConfig(_Config, frozen=True):
    """Where vLLM runs if `policy.sampler` is vllm: in the trainer's processes (colocate), or at `url` (server).

    A server is started beforehand with `trl vllm-serve`, on GPUs of its own and with options of its own. In the
    trainer's processes `tensor_parallel_size` of them share one copy of the weights, and each gives vLLM
    `gpu_memory_utilization` of its GPU's memory for weights and cache; with `sleep` it is given back between
    samplings. `max_model_length` is the longest prompt and completion together, 0: what the model allows.
    """

    mode: Literal["colocate", "server"] = "colocate"
    url: str = "http://localhost:8000"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.3
    max_model_length: int = 0
    sleep: bool = False


class PolicyConfig(_Config, frozen=True):
    """Which language model, and how it is sampled. An empty `path` is the kernel LM that ships.

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
    max_new_tokens: int = 256
    chat: bool = False


class PromptConfig(_Config, frozen=True):
    """Which Jinja template of `prompts/`, and how many exemplars and failed attempts from the archive it shows."""

    template: str = "kernel_lm"
    exemplars: int = 0
    failures: int = 0


class RewardConfig(_Config, frozen=True):
    """See `train/rewards.py` for what each name computes."""

    name: Literal["log", "paper", "milestone"] = "log"
    alpha: float = 0.1
    beta: float = 0.0
    margin: float = 0.05


class TrainerConfig(_Config, frozen=True):
    """GRPO: each step samples `problems_per_step` groups of `group_size` completions.

    `micro_batch` samples at a time go through the model in an update, 0: all of a process's. `deepspeed` is the
    configuration that shards the model over the processes, a file or the one that ships (zero3). `resume` auto
    continues a run found in the folder, never refuses to. A run ends after `steps`, or after the step in which it has
    taken `minutes`, all its starts together; 0: no limit.
    """

    steps: int = 40
    minutes: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    problems_per_step: int = 2
    group_size: int = 16
    learning_rate: float = 5e-4
    beta: float = 0.0
    epsilon: float = 0.2
    iterations: int = 1
    save_steps: int = 10
    max_grad_norm: float = 1.0
    scale_rewards: Literal["group", "batch", "none"] = "group"
    micro_batch: int = 0
    gradient_checkpointing: bool = False
    deepspeed: str = ""
    resume: Literal["auto", "never"] = "auto"


class ShapesConfig(_Config, frozen=True):
    """Problems by name: `grid`, `sample` (about `count` shapes of the grid, drawn by `seed`), `M_N_K`, an LLM layer."""

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
            elif name == "sample":
                found += sample(self.count, self.seed, self.layout, self.accumulate)
            else:
                found.append(parse(name, self.layout, self.accumulate))
        if not found:
            raise ValueError("shapes.names=[] names no problem; name one, e.g. shapes.names=[256_256_256]")
        return found


class TrackerConfig(_Config, frozen=True):
    """Metrics always go to `metrics.jsonl`; `wandb` adds Weights & Biases (offline asks for no login)."""

    name: Literal["jsonl", "wandb"] = "jsonl"
    mode: Literal["offline", "online"] = "offline"
    project: str = "cudal2"


class TrainConfig(_Config, frozen=True):
    """One GRPO run, all of it under the folder `run`."""

    run: str
    seed: int = 0
    target: str = "cpu"
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    reward: RewardConfig = RewardConfig()
    trainer: TrainerConfig = TrainerConfig()
    worker: WorkerConfig = WorkerConfig()
    shapes: ShapesConfig = ShapesConfig()
    tracker: TrackerConfig = TrackerConfig()

    def __post_init__(self) -> None:
        if "device" not in self.worker.protocols:
            raise ValueError(
                f"worker.protocols={list(self.worker.protocols)}: a reward is made of the time on the device's clock; "
                "use worker.protocols=[device], with others beside it where they are wanted"
            )


class SftConfig(_Config, frozen=True):
    """Supervised training of the kernel LM from scratch on sources drawn from the families."""

    run: str
    seed: int = 0
    target: str = "cpu"
    samples: int = 60_000
    epochs: float = 2.0
    batch_size: int = 16
    learning_rate: float = 3e-3
    vocabulary: int = 4096
    hidden: int = 256
    layers: int = 4
    heads: int = 8
    context: int = 512
    prompt: PromptConfig = PromptConfig()
    verify: int = 256
    """Samples on held-out shapes that the worker judges after training."""
    worker: WorkerConfig = WorkerConfig()
    tracker: TrackerConfig = TrackerConfig()

    def __post_init__(self) -> None:
        if self.prompt.exemplars or self.prompt.failures:
            raise ValueError(
                "training from nothing has no kernels to show in a prompt; use prompt.exemplars=0 prompt.failures=0"
            )


class EvalConfig(_Config, frozen=True):
    """Which shapes the archive of `run` is evaluated on.

    A shape's `finalists` best kernels and the best of `neighbours` other shapes are timed against one another. Where
    nothing is archived for a shape or near it, `policy` writes `samples` new kernels. `anywhere` also tries kernels
    that were judged in another environment; they are measured in this one.
    """

    run: str
    target: str = "cpu"
    shapes: ShapesConfig = ShapesConfig()
    finalists: int = 3
    neighbours: int = 2
    anywhere: bool = False
    samples: int = 0
    seed: int = 0
    policy: PolicyConfig = PolicyConfig()
    prompt: PromptConfig = PromptConfig()
    worker: WorkerConfig = WorkerConfig()


class SearchMethodConfig(_Config, frozen=True):
    """How settings are proposed, and when a problem has had enough: `kernels` and `seconds`, 0 for no limit.

    `families` are names, none for all. A generation of `evolve` begins with the best settings of `neighbours` other
    shapes of the search; the very first with what `prior` proposes: known settings of near shapes, as they ship
    (known), or NVIDIA's (nvidia: `pip install cudal2[heuristics]`). `random` has neither and refuses both; compare
    with it, or with a policy, at prior=none neighbours=0. `seconds` are of wall time, which the kernels of a round
    share equally, and looked at between generations; a search that is continued has used up what it spent before.

    A search is continued where only its budget or the folders and devices that it works with differ (see
    `search/history.py`). Any other value makes another search, which nothing that was found before has a part in.
    """

    method: Literal["evolve", "random"] = "evolve"
    kernels: int = 64
    seconds: float = 0.0
    generation: int = 8
    families: tuple[str, ...] = ()
    neighbours: int = 3
    prior: Literal["none", "nvidia", "known"] = "known"


class SearchConfig(_Config, frozen=True):
    """A search over the knobs of kernel families, into the archive of the folder `run`."""

    run: str
    seed: int = 0
    target: str = "cpu"
    shapes: ShapesConfig = ShapesConfig()
    search: SearchMethodConfig = SearchMethodConfig()
    worker: WorkerConfig = WorkerConfig()


class BenchConfig(_Config, frozen=True):
    """What `cudal2 bench` measures with."""

    target: str = "cpu"
    worker: WorkerConfig = WorkerConfig()


Config = TypeVar("Config", bound=_Config)


def load(name: str, overrides: list[str], schema: type[Config], base: Config | None = None) -> Config:
    """Compose `conf/NAME.yaml` with Hydra overrides into a record of `schema`.

    The schema's own defaults are the config `schema`, so that files state only what differs from them. With a `base`
    its values stand wherever no override says otherwise, instead of those defaults and of the groups' own choices.
    Raises ValueError for an unknown group, key, value or target, naming it.
    """
    # Hydra's grammar reads 64_64_64 as the integer 646464; a quoted one stays a name.
    overrides = [re.sub(r"(?<=[=\[,])(\d+_\d+_\d+)(?=[\],]|$)", r"'\1'", override) for override in overrides]
    start = schema(**{field.name: "???" for field in msgspec.structs.fields(schema) if field.required})
    if base is not None:
        given = {override.partition("=")[0] for override in overrides}
        chosen = {key: getattr(start, key) for key in given.intersection(schema.__struct_fields__)}
        start = msgspec.structs.replace(base, **chosen)  # a group that is chosen is chosen whole
        overrides = [*overrides, *(f"~{group}" for group in _groups(name) if group not in given)]
    ConfigStore.instance().store("schema", msgspec.to_builtins(start))
    try:
        with initialize_config_dir(str(asset("conf")), version_base="1.3"):
            composed = compose(name, overrides)
        plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        config = msgspec.convert(plain, schema)
        find(plain["target"])
    except (HydraException, OmegaConfBaseException, msgspec.ValidationError, ValueError) as error:
        message = str(error).split("Config search path")[0].strip()
        raise ValueError(f"configuration {name}: {message}") from error
    return config


def _groups(name: str) -> list[str]:
    """The groups that `conf/NAME.yaml` makes a choice of."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(asset("conf", f"{name}.yaml")))
    entries = [entry for entry in plain["defaults"] if isinstance(entry, dict)]
    return [group for entry in entries for group, choice in entry.items() if choice is not None]
