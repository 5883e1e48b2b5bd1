"""Supervised training of the kernel LM, on sources of the kernel families.

What the model learns from nothing is how kernels are written: knobs are drawn without looking at the shape. Which
kernel is fast for which shape is left for reinforcement learning to find out, or learnt from what searches found.
"""

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from cudal2 import corpus, judging
from cudal2.archive.records import Origin
from cudal2.config import PolicyConfig, SftConfig
from cudal2.policy import prompts, writer
from cudal2.policy.model import check as check_words
from cudal2.policy.model import create, load, load_to_train, locate
from cudal2.policy.tokenizer import train as train_tokenizer
from cudal2.problem import Layout
from cudal2.records import Candidate, HarnessFault, digest
from cudal2.target import Target, find
from cudal2.tracking import Metrics
from cudal2.train.devices import one_gpu
from cudal2.train.examples import Row, draw, draw_rows, encode, fitting, found, known
from cudal2.train.folder import changes, only_trainer_of, record, stored
from cudal2.worker.pool import check

TOKENIZER_SOURCES = 6000
"""Sources the tokenizer is made from; more do not change which lines stand together."""
ENUMERABLE = 1 << 20
"""Settings of all families of a target, refused ones included, that are looked through for a sampled source."""
LOG_STEPS = 10
RECORD = "sft.json"
"""The configuration that made a policy, in the policy's folder."""


def run(config: SftConfig) -> None:
    """Draw the corpus, train, save to `RUN/policy` (bfloat16), and judge samples on held-out shapes.

    `RUN` then also holds config.json, metrics.jsonl, archive.sqlite with every judged sample, and
    verify.json (see `verify`). A folder that holds the trained policy already is only verified.
    Raises ValueError where the configuration cannot work or the folder holds another run or policy,
    HarnessFault where nothing could be judged in the end.
    """
    if config.verify:
        try:
            check(config.worker, config.target)
        except HarnessFault as fault:
            raise HarnessFault(fault.problem, f"{fault.remedy}; verify=0 trains without judging") from fault
    folder = Path(config.run)
    folder.mkdir(parents=True, exist_ok=True)
    with only_trainer_of(folder):
        stored(folder, SftConfig)
        trained = _already_trained(folder / "policy", config)
        set_seed(config.seed)
        if trained:
            print(f"{folder}/policy is trained already", flush=True)
            shown = _rows(config, folder / "policy") if config.verify else []
        else:
            (folder / "verify.json").unlink(missing_ok=True)
            shown = _train(config)
        if config.verify:
            report = verify(config, {row.digest for row in shown})
            (folder / "verify.json").write_text(json.dumps(report, indent=2) + "\n")
            print(json.dumps(report), flush=True)


def _train(config: SftConfig) -> list[Row]:
    """Makes `RUN/policy`: it has that name once it is complete, the configuration that made it included.

    What it was trained on is returned.
    """
    folder = Path(config.run)
    fresh = folder / "policy.tmp"
    shutil.rmtree(fresh, ignore_errors=True)
    if config.start:
        locate(config.start, key="start")  # a mistyped name is told by the key that it was given as
        model, tokenizer = load_to_train(PolicyConfig(path=config.start), config.seed)
        check_words(tokenizer, config.target)
    else:
        some = draw(config, min(config.samples, TOKENIZER_SOURCES))
        tokenizer = train_tokenizer([one.source for one in some], config.vocabulary)
        model = create(config, tokenizer)
    tokenizer.save_pretrained(fresh)
    rows = _rows(config, fresh)
    print(
        f"{len(rows)} samples, {len({row.digest for row in rows})} distinct, "
        f"{sum(len(row.ids) for row in rows) / len(rows):.0f} tokens each; a vocabulary of {len(tokenizer)}",
        flush=True,
    )
    record(folder / "config.json", config)
    fit(model, tokenizer, rows, config)
    model.bfloat16().save_pretrained(fresh)
    record(fresh / RECORD, config)
    fresh.rename(folder / "policy")
    return rows


def _rows(config: SftConfig, tokenizer: Path) -> list[Row]:
    """What is learnt, encoded with the tokenizer saved in that folder."""
    if config.examples == "families":
        rows = draw_rows(config, tokenizer)
    else:
        examples = known(config) if config.examples == "known" else found(config)
        rows = encode(PreTrainedTokenizerFast.from_pretrained(tokenizer), examples)
    return fitting(rows, config.context)


def _already_trained(policy: Path, config: SftConfig) -> bool:
    """Whether the folder `policy` is what this configuration makes; how its samples are judged may differ.

    Raises ValueError where it is something else.
    """
    if not policy.exists():
        return False
    remedy = "choose another run=, or delete that folder to train anew"
    if not (policy / RECORD).is_file():
        raise ValueError(f"{policy} does not say which configuration made it; {remedy}")
    made_by = msgspec.json.decode((policy / RECORD).read_bytes(), type=SftConfig)
    if changed := changes(made_by, config):
        raise ValueError(f"{policy} was trained with another configuration ({changed}); {remedy}")
    return True


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Row],
    config: SftConfig,
) -> None:
    """Train every weight with AdamW and a cosine learning rate; a line of metrics every few steps."""
    folder, cuda = Path(config.run), torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        seed=config.seed,
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,
        weight_decay=0.01,
        adam_beta2=0.95,
        bf16=cuda,
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        remove_unused_columns=False,  # `_batch` uses `given`
        save_strategy="no",
        logging_steps=LOG_STEPS,
        logging_nan_inf_filter=False,  # a loss that is lost must show
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        one_gpu(arguments),
        train_dataset=[{"input_ids": row.ids, "given": row.given} for row in rows],
        data_collator=partial(_batch, pad=tokenizer.pad_token_id),
    )
    trainer.remove_callback(PrinterCallback)
    metrics = Metrics(folder, config.tracker, 0, msgspec.to_builtins(config))
    try:
        trainer.add_callback(_Report(metrics))
        trainer.train()
        model.config.use_cache = True  # the trainer turned off what makes sampling fast
    finally:
        metrics.close()


def _batch(rows: list[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Token ids and labels; only the source and its end are learnt, not the prompt.

    Padded on the right, where causal attention never looks, so that no mask is needed. (Padding on the left leaves
    rows of attention with nothing to attend to: on a GPU their gradient is NaN.)
    """
    ids = [torch.from_numpy(row["input_ids"]).long() for row in rows]
    labels = [one.clone() for one in ids]
    for one, row in zip(labels, rows):
        one[: row["given"]] = -100
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }


class _Report(TrainerCallback):
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            row = {key: float(logs[key]) for key in ("loss", "learning_rate", "grad_norm")}
            if not math.isfinite(row["loss"]):
                raise ValueError(f"the loss is {row['loss']} at step {state.global_step}; lower learning_rate")
            self.metrics.log({"step": state.global_step, **row})
            print(f"step {state.global_step:>5}/{state.max_steps}  loss {row['loss']:.4f}", flush=True)


def verify(config: SftConfig, trained_on: set[str]) -> dict[str, Any]:
    """Judge `config.verify` samples of the saved policy at temperature 1, on shapes it was not trained on.

    `ok` is the share of the judged samples that are correct; `statuses` counts what became of each;
    `in_training_set` and `in_families` are the shares of the samples that equal, letter for letter, a
    source it was trained on (`trained_on` holds their digests), or any source that the families can render. The second
    is null where they render to millions, as those of CUDA targets do, unless each source states its plan.
    """
    target, folder = find(config.target), Path(config.run)
    rng = random.Random(f"verify {config.seed}")
    problems = [corpus.draw_problem(rng, rng.choice(get_args(Layout)), held_out=True) for _ in range(config.verify)]
    chosen = PolicyConfig(path=str(folder / "policy"), max_new_tokens=config.context)
    asked = [prompts.render(config.prompt, False, problem, target) for problem in problems]
    written = writer.write(*load(chosen), asked, chosen, target, config.seed)
    run, policy = folder.resolve().name, chosen.path
    samples = [
        (
            Candidate(source, problem, target.name),
            Origin(kind="sft", run=run, step=0, index=index, policy=policy, prompt=writer.text(prompt)),
        )
        for index, (source, problem, prompt) in enumerate(zip(written, problems, asked))
    ]
    with judging.opened(folder, config.target, config.worker) as (archive, [pool]):
        verdicts = judging.judge(pool, archive, samples)
    judged = [verdict for verdict in verdicts if verdict is not None]
    return {
        "samples": len(samples),
        "judged": len(judged),
        "ok": sum(verdict.ok for verdict in judged) / max(len(judged), 1),
        "statuses": dict(Counter(verdict.status.value for verdict in judged).most_common()),
        "distinct": len(set(written)),
        "in_training_set": sum(digest(source) in trained_on for source in written) / len(written),
        "in_families": _share_of_families(written, config.plan, target),
    }


def _share_of_families(written: Sequence[str], plan: bool, target: Target) -> float | None:
    """Of the sources `written`, the share that a family renders to; None where there are too many to render."""
    if plan:
        return sum(corpus.keeps_its_plan(text, target) for text in written) / len(written)
    families = corpus.families(target)
    if sum(math.prod(map(len, family.knobs.values())) for family in families) > ENUMERABLE:
        return None
    wanted = set(written)
    renderings = (
        corpus.render(family, knobs, layout)
        for family in families
        for layout in family.layouts
        for knobs in corpus.settings(family, layout)
    )
    rendered = {text for text in renderings if text in wanted}
    return sum(text in rendered for text in written) / len(written)
