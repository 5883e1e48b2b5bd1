"""What else is done with kernels and policies: `cudal2 search`, `eval`, `campaign` and `serve`."""

from typing import Annotated, Literal

import msgspec

from cudal2.config.base import LATER, NEUTRAL, Count, Schema, WorkerConfig
from cudal2.config.policy import PolicyConfig, PromptConfig, TurnsConfig
from cudal2.config.problems import ShapesConfig
from cudal2.config.training import RewardConfig
from cudal2.records import Abi


class SearchMethodConfig(Schema, frozen=True):
    """Who proposes kernels for a problem, and when the search for it ends.

    `method` is a module in `search/proposers/`. evolution (or evolve) and random choose settings of the kernel
    `families` (named, or all if none is named). mutation changes the text of the best kernels that it has found, and
    begins with kernels of these families. policy samples the language model `policy`. folder takes the sources in
    `folder`, in order of their names.

    Each round judges `generation` kernels of every problem. The generations of evolution and mutation begin with the
    best kernels of `neighbours` other shapes of the search, and the very first one also with what `prior` proposes
    (evolution goes on with known settings until none is left, up to half of each later generation): settings that are
    known to be fast for near shapes and ship with cudal2 (known), the same after half a generation of what `policy`
    writes (policy), those of NVIDIA's heuristics (nvidia, which needs `pip install cudal2[heuristics]`), or nothing
    (none). The other methods use and accept neither, so to compare with them say prior=none neighbours=0. Known
    settings come in the `order` of how near the shapes are that they were found on (nearest), or, where a cost model
    ships for the target, in turn with those that it thinks fastest (cost); then it also chooses among evolution's
    children. Of a policy the `rerank` likeliest plans are found for each prompt (1: none; it just writes), and
    the cost model says which are written out and judged.

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
    prior: Literal["none", "nvidia", "known", "policy"] = "known"
    order: Annotated[Literal["nearest", "cost"], LATER] = "cost"
    rerank: Annotated[Count, LATER] = 1
    folder: str = ""

    def __post_init__(self) -> None:
        if self.method == "evolve":
            msgspec.structs.force_setattr(self, "method", "evolution")

    @property
    def tries_known(self) -> bool:
        """Whether settings that are known to be fast are tried."""
        return self.prior in ("known", "policy")

    @property
    def asks_policy(self) -> bool:
        """Whether what is proposed depends on the policy."""
        return "policy" in (self.method, self.prior)


class SearchConfig(Schema, frozen=True):
    """`cudal2 search`: a search whose kernels go into the archive in the folder `run`.

    `policy` and `prompt` are for `search.method=policy` and `search.prior=policy`, `turns` for the first of them, where
    each turn is a generation.
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


class ExportConfig(Schema, frozen=True):
    """What `cudal2 export` writes. A kernel is exported for every number of rows up to `rows` that it is right for;
    with 0 for those of its bucket (1 to 8, 9 to 16, 17 to 32, 33 to 64, beyond that M alone); with 1 for M alone.

    With `layout` kernels nothing is built or measured: the export that stands in the run is written once more, to
    RUN/kernels, as a repository for Hugging Face's `kernels`.
    """

    rows: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    layout: Literal["package", "kernels"] = "package"


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
        self.turns.check(self.policy, self.prompt)
        if self.samples % self.turns.count:
            raise ValueError(f"samples={self.samples} is no multiple of turns.count={self.turns.count}, and must be")


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


Seconds = Annotated[float, msgspec.Meta(gt=0)]


class LimitsConfig(Schema, frozen=True):
    """What one request, one client or all of them together may take.

    A request has at most `body_bytes` bytes, must arrive within `arrive_seconds`, and waits at most `wait_seconds` for
    its verdict. Each address may make `per_minute` requests a minute. At most `connections` are open and `waiting`
    requests wait at a time. A problem has at most `flop` floating-point operations: on a processor a large one keeps
    all others waiting for minutes.
    """

    body_bytes: Count = 1 << 20
    arrive_seconds: Seconds = 10.0
    wait_seconds: Seconds = 600.0
    per_minute: Count = 6000
    connections: Count = 256
    waiting: Count = 1024
    flop: Annotated[float, msgspec.Meta(gt=0)] = 1e13


class ServeConfig(Schema, frozen=True):
    """`cudal2 serve`: the judge as a service at `host` and `port` (0: any free one). Verdicts are archived in `run`.

    `token` names the environment variable that holds the token which clients must show. On this machine's loopback it
    may be unset; then every user of this machine may ask.

    At most `batch` kernels are judged together, all of them before the next batch. `prompt` says what `POST /prompt`
    answers with, and `seed` which kernels of the archive it shows. `reward` says what a verdict is worth.
    """

    run: Annotated[str, NEUTRAL]
    host: Annotated[str, NEUTRAL] = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535), NEUTRAL] = 8765
    token: Annotated[str, NEUTRAL] = "CUDAL2_TOKEN"
    seed: int = 0
    target: str = "cpu"
    batch: Annotated[Count, NEUTRAL] = 64
    limits: Annotated[LimitsConfig, NEUTRAL] = LimitsConfig()
    prompt: PromptConfig = PromptConfig()
    reward: RewardConfig = RewardConfig()
    worker: WorkerConfig = WorkerConfig()

    def __post_init__(self) -> None:
        if "device" not in self.worker.protocols:
            raise ValueError(
                f"worker.protocols={list(self.worker.protocols)}: a reward is made of the time on the device's clock; "
                "use worker.protocols=[device], with others beside it where they are wanted"
            )
