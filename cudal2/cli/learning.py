"""The verbs that train a policy and pack a run. They import what they need when they run."""

import argparse
import sys
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_overrides, add_verb, stay_offline


def add(verbs: Any) -> None:
    """Add `train`, `sft`, `pack` and `unpack` to the command's verbs."""
    verb = add_verb(verbs, "train", _train, "GRPO: sample kernels, judge them, update the policy; continues a run")
    add_overrides(verb, "Hydra overrides, e.g. experiment=demo trainer.steps=10; run=FOLDER continues a run")
    text = "print what the policy would be asked next for this problem, and train nothing"
    verb.add_argument("--prompt", metavar="M_N_K", help=text)
    verb.set_defaults(again="the same command, or `cudal2 train run=FOLDER`, takes the step under way again")
    verb = add_verb(verbs, "sft", _sft, "teach a model kernels: the kernel LM from nothing, or the one in policy.path")
    verb.set_defaults(again="the same command goes on: from a checkpoint with policy.path, else from the start")
    add_overrides(verb, "Hydra overrides, e.g. run=runs/sft samples=2000")

    verb = add_verb(verbs, "pack", _pack, "a run or a campaign as files of at most 16 MB, to go on with it elsewhere")
    verb.add_argument("run", help="folder of the run")
    verb.add_argument("out", help="new folder for the files")
    verb.add_argument("--cache", default="~/.cache/cudal2", help="the worker's cache")
    verb = add_verb(verbs, "unpack", _unpack, "lay out a packed run, its part of the cache included")
    verb.add_argument("parcel", help="folder with the files")
    verb.add_argument("run", help="new folder of the run")
    verb.add_argument("--cache", default="~/.cache/cudal2", help="the worker's cache")


def _train(arguments: argparse.Namespace) -> None:
    config = training_config(arguments.overrides)
    stay_offline(config.policy.path)
    if arguments.prompt:
        from cudal2.problem import parse
        from cudal2.train.preview import preview

        text, length = preview(config, parse(arguments.prompt, config.shapes.layout, config.shapes.accumulate))
        print(text)
        print(length, file=sys.stderr)
        return
    from cudal2.train import grpo

    grpo.run(config)


def training_config(overrides: list[str]) -> Any:
    """The TrainConfig of `cudal2 train OVERRIDES`.

    If `run=FOLDER` holds a run, the overrides change its configuration, unless they name an experiment.
    """
    from cudal2.config import TrainConfig, load
    from cudal2.train.folder import stored

    given = dict(word.split("=", 1) for word in overrides if "=" in word)
    whole = "experiment" in given or "debug" in given or "run" not in given
    return load("train", overrides, TrainConfig, None if whole else stored(Path(given["run"]), TrainConfig))


def _sft(arguments: argparse.Namespace) -> None:
    from cudal2.config import SftConfig, load

    config = load("sft", arguments.overrides, SftConfig)
    stay_offline(config.policy.path)
    from cudal2.train.sft.run import run

    run(config)


def _pack(arguments: argparse.Namespace) -> None:
    from cudal2 import parcel

    count = parcel.pack(Path(arguments.run), Path(arguments.out), Path(arguments.cache).expanduser())
    print(f"{arguments.out}: {count} files; on the other machine: cudal2 unpack {arguments.out} {arguments.run}")


def _unpack(arguments: argparse.Namespace) -> None:
    from cudal2 import parcel

    parcel.unpack(Path(arguments.parcel), Path(arguments.run), Path(arguments.cache).expanduser())
    print(f"{arguments.run}: the command that it came from goes on with it, run={arguments.run}")
