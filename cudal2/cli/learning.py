"""The verbs that train a policy and pack a run. They import what they need when they run."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from cudal2.cli.arguments import add_verb, configured, options, stay_offline


def add(verbs: Any) -> None:
    """Add `train`, `sft`, `pack` and `unpack` to the command's verbs."""
    verb = add_verb(
        verbs,
        "train",
        _train,
        "GRPO: sample kernels, judge them, update the policy; run=FOLDER alone continues the run in it",
        entry="train",
        schema="TrainConfig",
        configure=lambda arguments: training_config(arguments.overrides),
        sweeps=True,
        keys="cudal2 train experiment=demo run=runs/mine trainer.steps=10",
    )
    text = "print what the policy would be asked next for this problem, and train nothing"
    verb.add_argument("--prompt", metavar="M_N_K", help=text)
    verb.set_defaults(again="the same command, or `cudal2 train run=FOLDER`, takes the step under way again")
    verb = add_verb(
        verbs,
        "sft",
        _sft,
        "teach a model kernels: the kernel LM from nothing, or the one in policy.path",
        entry="sft",
        schema="SftConfig",
        sweeps=True,
        keys="cudal2 sft run=runs/sft samples=2000",
    )
    verb.set_defaults(again="the same command goes on: from a checkpoint with policy.path, else from the start")

    text = "a run or a campaign as files of at most 16 MB, to go on with it elsewhere"
    add_verb(
        verbs, "pack", _pack, text, places=("RUN", "OUT"), keys="cudal2 pack runs/mine parcel cache=~/.cache/cudal2"
    )
    text = "lay out a packed run, its part of the cache included"
    add_verb(verbs, "unpack", _unpack, text, places=("PARCEL", "RUN"), keys="cudal2 unpack parcel runs/mine")


class _Cache(msgspec.Struct, frozen=True):
    cache: str = "~/.cache/cudal2"


def _train(arguments: argparse.Namespace) -> None:
    config = training_config(arguments.overrides)
    config.policy.check_here()
    stay_offline(config.policy.path)
    if arguments.prompt:
        from cudal2.config import problems
        from cudal2.train.judge import preview

        text, length = preview(config, problems.named(arguments.prompt, config.shapes))
        print(text)
        print(length, file=sys.stderr)
        return
    from cudal2.train import grpo

    grpo.run(config)


def training_config(overrides: list[str]) -> Any:
    """The TrainConfig of `cudal2 train OVERRIDES`.

    If `run=FOLDER` holds a run, the overrides change its configuration, unless they name an experiment.
    """
    from cudal2.config import TrainConfig, load, words
    from cudal2.train.folder import stored

    given = {words.key(word): word.partition("=")[2] for word in overrides}
    if "experiment" in given or "debug" in given or "run" not in given:
        return load("train", overrides, TrainConfig)
    named = load("train", [word for word in overrides if words.key(word) == "run"], TrainConfig).run
    return load("train", overrides, TrainConfig, stored(Path(named), TrainConfig) if named else None)


def _sft(arguments: argparse.Namespace) -> None:
    config = configured(arguments)
    config.policy.check_here()
    stay_offline(config.policy.path)
    from cudal2.train.sft.run import run

    run(config)


def _pack(arguments: argparse.Namespace) -> None:
    from cudal2 import parcel

    run, out = arguments.paths
    count = parcel.pack(Path(run), Path(out), Path(options(arguments, _Cache).cache).expanduser())
    print(f"{out}: {count} files; on the other machine: cudal2 unpack {out} {run}")


def _unpack(arguments: argparse.Namespace) -> None:
    from cudal2 import parcel

    packed, run = arguments.paths
    parcel.unpack(Path(packed), Path(run), Path(options(arguments, _Cache).cache).expanduser())
    print(f"{run}: the command that it came from goes on with it, run={run}")
