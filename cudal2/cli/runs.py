"""The verbs that fill a run: they train, find, measure and export. They import what they need when they run."""

import argparse
import sys
from pathlib import Path
from typing import Any

from cudal2.cli.arguments import add_verb, configured, stay_offline


def add(verbs: Any) -> None:
    """Add `train`, `sft`, `eval`, `search`, `campaign` and `export` to the command's verbs."""
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
    add_verb(
        verbs,
        "eval",
        _eval,
        "measure the best kernels of a run once more, shape by shape, or those of a source; resumable",
        places=("RUN",),
        entry="eval",
        schema="EvalConfig",
        sweeps=True,
        keys="cudal2 eval runs/demo shapes=grid,layers limit=100 source=policy samples=8 against=CSV",
    )
    add_verb(
        verbs,
        "search",
        _search,
        "the fastest of so many candidates of any proposer; resumable",
        entry="search",
        schema="SearchConfig",
        sweeps=True,
        keys="cudal2 search shapes=64_64_64,llama-3-8b.up target=sm_90a search.kernels=64 search.method=random",
    )
    add_verb(
        verbs,
        "campaign",
        _campaign,
        "search all shapes by several methods, evaluate, report and export, within a budget of time; resumable",
        entry="campaign",
        schema="CampaignConfig",
        sweeps=True,
        keys="cudal2 campaign shapes=grid,layers target=sm_90a minutes=9 kernels=16 methods=evolution,policy",
    )
    add_verb(
        verbs,
        "export",
        _export,
        "the evaluated kernels as a library that falls back to torch.matmul",
        places=("RUN",),
        entry="eval",
        schema="EvalConfig",
        keys="cudal2 export runs/demo target=sm_90a",
    )


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


def _eval(arguments: argparse.Namespace) -> None:
    from cudal2 import judging
    from cudal2.evaluation import published, terminal
    from cudal2.evaluation import run as evaluate

    config = configured(arguments)
    config.shapes.problems()  # finds typing errors before anything is opened
    against = published.read(Path(config.against)) if config.against else None
    stay_offline(config.policy.path)
    config = _everywhere(config, arguments)
    workers = evaluate.selection_worker(config.worker), evaluate.reporting_worker(config.worker)
    create = bool(config.source)
    sampler = evaluate.sampler(config) if config.samples else None  # what is refused leaves no archive
    with judging.opened(config.run, config.target, *workers, create=create) as (archive, [select, report]):
        rows = evaluate.run(config, archive, select, report, sampler=sampler)
    terminal.show(rows)
    _paid(config)
    if against:
        print(f"\n{published.text(rows, against)}")


def _search(arguments: argparse.Namespace) -> None:
    from cudal2 import judging, search

    config = configured(arguments)
    stay_offline(config.policy.path)
    search.check(config)  # what is refused leaves no archive
    with judging.opened(config.run, config.target, config.worker) as (archive, [pool]):
        search.run(config, pool, archive)
    _paid(config)


def _campaign(arguments: argparse.Namespace) -> None:
    config = configured(arguments)
    config.shapes.problems()  # finds typing errors before anything is opened
    stay_offline(config.policy.path)
    from cudal2 import campaign

    campaign.run(_everywhere(config, arguments))


def _paid(config: Any) -> None:
    """Says what the answers in this run came to, where they were asked of an endpoint."""
    if config.policy.sampler == "endpoint":
        from cudal2.policy import endpoint

        print(endpoint.told(endpoint.spent(Path(config.run))))


def _everywhere(config: Any, arguments: argparse.Namespace) -> Any:
    """The configuration with all visible GPUs, unless the arguments name some."""
    import msgspec

    from cudal2.worker.pool.pool import on_all

    if any(word.startswith("worker.devices=") for word in arguments.overrides):
        return config
    return msgspec.structs.replace(config, worker=on_all(config.worker, config.target))


def _export(arguments: argparse.Namespace) -> None:
    from contextlib import ExitStack

    from cudal2 import export, judging
    from cudal2.evaluation.run import reporting_worker
    from cudal2.worker.worker import Worker

    config = configured(arguments)
    folder = Path(config.run)
    if config.export.layout == "kernels":
        from cudal2 import hub

        variants = hub.write(folder / "export", folder / "kernels")
        print(f"{folder / 'kernels'}: for `kernels`, {' and '.join(variants)}")
        return
    with ExitStack() as stack:
        archive, _ = stack.enter_context(judging.opened(folder, config.target, create=False))
        worker = stack.enter_context(Worker(config.worker, config.target))
        judge = None
        if config.worker.protocols:
            judge = stack.enter_context(Worker(reporting_worker(config.worker), config.target)).evaluate
        build = export.builder(worker.portable, config.export.rows)
        manifest = export.run(folder, archive, build, worker.environment, target=config.target, judge=judge)
    faster = sum(kernel.dispatch for kernel in manifest.kernels)
    print(f"{folder / 'export'}: kernels for {len(manifest.kernels)} shapes, {faster} of them dispatched")
    if others := export.left_to_torch(manifest):
        print(f"torch serves the others: {', '.join(f'{count} {why}' for why, count in others.most_common())}")
    print(f"use them in any environment with torch: pip install {folder / 'export'}, then import cudal2_kernels")
    for one in manifest.refused:
        print(f"left out: {one.problem.name}: {one.reason}")
