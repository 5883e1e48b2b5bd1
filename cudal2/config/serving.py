"""The configuration of `cudal2 serve`."""

from typing import Annotated

import msgspec

from cudal2.config.base import NEUTRAL, Schema
from cudal2.config.parts import PromptConfig
from cudal2.config.training import RewardConfig
from cudal2.config.worker import WorkerConfig

Count = Annotated[int, msgspec.Meta(ge=1)]
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
