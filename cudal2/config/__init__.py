"""The configuration of each verb, as frozen records. `load` composes it with Hydra and refuses unknown keys."""

from cudal2.config.base import NEUTRAL, Schema, identity
from cudal2.config.bench import (
    BenchAaConfig,
    BenchBaselineConfig,
    BenchCallConfig,
    BenchConfig,
    BenchKernelConfig,
    BenchManyConfig,
    BenchWorkerConfig,
)
from cudal2.config.campaign import CampaignConfig
from cudal2.config.compose import Config, load
from cudal2.config.endpoint import EndpointConfig
from cudal2.config.parts import (
    CorpusConfig,
    ExportConfig,
    LoraConfig,
    PolicyConfig,
    PromptConfig,
    ReturnsConfig,
    SearchMethodConfig,
    ShapesConfig,
    TrackerConfig,
    TurnsConfig,
    VllmConfig,
)
from cudal2.config.sass import MachineConfig, SassConfig, SassSearchConfig
from cudal2.config.serving import LimitsConfig, ServeConfig
from cudal2.config.training import RewardConfig, TrainerConfig, TuningConfig
from cudal2.config.verbs import EvalConfig, SearchConfig, SftConfig, TrainConfig
from cudal2.config.worker import EffortConfig, WorkerConfig

__all__ = [
    "NEUTRAL",
    "BenchAaConfig",
    "BenchBaselineConfig",
    "BenchCallConfig",
    "BenchConfig",
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
