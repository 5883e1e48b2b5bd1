"""Supervised training on sources of the kernel families: of the kernel LM, or (see `tuning`) of a model that exists.

From random examples the model learns how kernels are written, but not which is fast: knobs are drawn without regard
to the shape. What is fast it learns later, by reinforcement learning or from what searches found.
"""

import json
import shutil
from pathlib import Path

import msgspec
from msgspec.structs import replace
from transformers import AutoTokenizer, set_seed

from cudal2 import corpus
from cudal2.config import PolicyConfig, SftConfig
from cudal2.policy import memory
from cudal2.policy.learnt import HEAT, KEY, settled
from cudal2.policy.locate import latest_checkpoint
from cudal2.policy.model import check as check_words
from cudal2.policy.model import create, load_to_train, locate
from cudal2.policy.new_words import prepare_lines, prepare_turns
from cudal2.policy.tokenizer import train as train_tokenizer
from cudal2.records import HarnessFault
from cudal2.target import find
from cudal2.train.folder import changes, only_trainer_of, record, stored
from cudal2.train.sft import conversations, kernel_lm, text
from cudal2.train.sft.examples import FEW, Row, archived, draw, draw_rows, encode, fitting, known
from cudal2.train.sft.verification import verify
from cudal2.worker.pool.pool import check

TOKENIZER_SOURCES, OF_ANY_LAYER = 6000, 24_000
"""Sources that the tokenizer is trained on; more do not change which lines it joins. With several types or epilogues
the rarest kernels, wide tiles summed in f16, occur too seldom among 6,000: a quarter of them had 350 to 590 tokens."""
RECORD = "sft.json"
"""The configuration that made a policy, in the policy's folder."""


def run(config: SftConfig) -> None:
    """Draw the corpus, train, save to `RUN/policy` (bfloat16), and judge samples on held-out shapes.

    `RUN` then also holds config.json, metrics.jsonl, archive.sqlite with every judged sample, and
    verify.json (see `verify`). If the policy is trained already, it is only verified. The training of an existing
    model (`policy.path`) continues from its last checkpoint.
    Raises ValueError where the configuration cannot work or the folder holds another run or policy,
    HarnessFault where nothing could be judged in the end.
    """
    config = settled(config, config.policy.path or config.start or None)
    corpus.check_without(find(config.target), config.corpus.without)
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


@memory.hint(memory.TUNED, memory.ADAPTERS)
def _train(config: SftConfig) -> list[Row]:
    """Makes `RUN/policy`, which gets this name when it is complete, and returns the rows that it was trained on."""
    folder = Path(config.run)
    fresh = folder / "policy.tmp"
    shutil.rmtree(fresh, ignore_errors=True)
    learn = kernel_lm.fit
    if config.policy.path:
        from cudal2.train.sft import tuning  # TRL takes seconds to import

        _check_continues(folder, config)
        model, tokenizer = tuning.load(config)
        learn = tuning.fit
    elif config.start:
        locate(config.start, key="start")  # so that an error names this key
        model, tokenizer = load_to_train(PolicyConfig(path=config.start), config.seed)
        check_words(tokenizer, config.target)
        if config.new_lines:
            sources = [one.source for one in draw(config, min(config.samples, OF_ANY_LAYER))]
            count = prepare_lines(model, tokenizer, sources, config.new_lines)
            print(f"{count} runs of lines are words now", flush=True)
        if config.corpus.turns.runs:
            prepare_turns(model, tokenizer, config.context)
    else:
        some = draw(config, min(config.samples, TOKENIZER_SOURCES if config.corpus.plain else OF_ANY_LAYER))
        words = not config.corpus.plain, config.prompt.worked
        tokenizer = train_tokenizer([one.source for one in some], config.vocabulary, *words)
        model = create(config, tokenizer)
    if config.examples != "text":  # which has no prompts
        tokenizer.init_kwargs[KEY] = config.prompt.template
    if config.sampling_temperature:
        tokenizer.init_kwargs[HEAT] = config.sampling_temperature
    tokenizer.save_pretrained(fresh)
    rows = _rows(config, fresh)
    print(
        f"{len(rows)} samples, {len({row.digest for row in rows})} distinct, "
        f"{sum(len(row.ids) for row in rows) / len(rows):.0f} tokens each; a vocabulary of {len(tokenizer)}",
        flush=True,
    )
    record(folder / "config.json", config)
    learn(model, tokenizer, rows, config)
    model.bfloat16().save_pretrained(fresh)
    record(fresh / RECORD, config)
    fresh.rename(folder / "policy")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # nothing is left to continue
    return rows


def _rows(config: SftConfig, tokenizer: Path) -> list[Row]:
    """The training rows, encoded with the tokenizer saved in that folder."""
    if not config.corpus.turns.runs:
        return _answers(config, tokenizer)

    def others(count: int) -> list[Row]:
        return _answers(replace(config, samples=min(config.samples, count)), tokenizer)

    return conversations.mixed(config, AutoTokenizer.from_pretrained(tokenizer), others)


def _answers(config: SftConfig, tokenizer: Path) -> list[Row]:
    """The rows that are no conversations: what `examples` names."""
    if config.examples == "text":
        return text.rows(config, AutoTokenizer.from_pretrained(tokenizer))
    if config.examples == "families" or config.settings:
        rows = draw_rows(config, tokenizer)
    else:
        examples = known(config) if config.examples == "known" else archived(config)
        rows = encode(AutoTokenizer.from_pretrained(tokenizer), examples, config)
    return fitting(rows, config.context, config.tuning.left_out if config.policy.path else FEW)


def _already_trained(policy: Path, config: SftConfig) -> bool:
    """Whether the folder `policy` was made by this configuration, but for keys of its verification.

    Raises ValueError where another configuration made it.
    """
    if not policy.exists():
        return False
    remedy = "choose another run=, or delete that folder to train anew"
    if not (policy / RECORD).is_file():
        raise ValueError(f"{policy} does not say which configuration made it; {remedy}")
    made_by = msgspec.json.decode((policy / RECORD).read_bytes(), type=SftConfig)
    if changed := changes(_lasting(made_by), _lasting(config)):
        raise ValueError(f"{policy} was trained with another configuration ({changed}); {remedy}")
    return True


def _check_continues(folder: Path, config: SftConfig) -> None:
    """Raises ValueError where the folder holds checkpoints of a training with another configuration."""
    before = stored(folder, SftConfig)
    if before and latest_checkpoint(folder) and (changed := changes(_lasting(before), _lasting(config))):
        raise ValueError(
            f"{folder} holds a training that has not ended, with another configuration ({changed}); choose another "
            "run=, or delete that folder to train anew"
        )


def _lasting(config: SftConfig) -> SftConfig:
    """The configuration without the keys that only say how the trained policy is sampled."""
    policy = config.policy
    trained = PolicyConfig(path=policy.path, dtype=policy.dtype, lora=policy.lora, chat=policy.chat)
    return replace(config, policy=trained)
