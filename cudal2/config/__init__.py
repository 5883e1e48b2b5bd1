"""The configuration of each verb, as frozen records. `load` composes it with Hydra and refuses unknown keys."""

from cudal2.config.base import NEUTRAL, EffortConfig, Schema, WorkerConfig, identity
from cudal2.config.bench import (
    BenchAaConfig,
    BenchBaselineConfig,
    BenchCallConfig,
    BenchConfig,
    BenchFloorConfig,
    BenchKernelConfig,
    BenchManyConfig,
    BenchWorkerConfig,
)
from cudal2.config.compose import Config, load
from cudal2.config.policy import (
    EndpointConfig,
    LoraConfig,
    PolicyConfig,
    PromptConfig,
    ReturnsConfig,
    TurnsConfig,
    VllmConfig,
)
from cudal2.config.problems import ShapesConfig
from cudal2.config.sass import MachineConfig, SassConfig, SassSearchConfig
from cudal2.config.training import (
    CorpusConfig,
    RewardConfig,
    SftConfig,
    TaughtTurnsConfig,
    TrackerConfig,
    TrainConfig,
    TrainerConfig,
    TuningConfig,
)
from cudal2.config.verbs import (
    CampaignConfig,
    EvalConfig,
    ExportConfig,
    LimitsConfig,
    SearchConfig,
    SearchMethodConfig,
    ServeConfig,
)

__all__ = [
    "NEUTRAL",
    "BenchAaConfig",
    "BenchBaselineConfig",
    "BenchCallConfig",
    "BenchConfig",
    "BenchFloorConfig",
    "BenchKernelConfig",
    "BenchManyConfig",
    "BenchWorkerConfig",
    "CampaignConfig",
    "Config",
    "CorpusConfig",
    "EffortConfig",
    "EndpointConfig",
    "EvalConfig",
    "ExportConfig",
    "LimitsConfig",
    "LoraConfig",
    "MachineConfig",
    "PolicyConfig",
    "PromptConfig",
    "ReturnsConfig",
    "RewardConfig",
    "SassConfig",
    "SassSearchConfig",
    "Schema",
    "SearchConfig",
    "SearchMethodConfig",
    "ServeConfig",
    "SftConfig",
    "ShapesConfig",
    "TaughtTurnsConfig",
    "TrackerConfig",
    "TrainConfig",
    "TrainerConfig",
    "TuningConfig",
    "TurnsConfig",
    "VllmConfig",
    "WorkerConfig",
    "identity",
    "load",
]
