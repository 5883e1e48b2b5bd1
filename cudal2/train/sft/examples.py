"""The examples that a policy is trained on: prompts, sources that families render, and the answers with these in them,
where `completion.extract` finds the kernel again. Drawn on all cores."""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.archive.records import Entry
from cudal2.archive.selection import Comparable
from cudal2.completion import fenced
from cudal2.config import CorpusConfig, PromptConfig, SftConfig
from cudal2.corpus import Family
from cudal2.dtype import find as find_dtype
from cudal2.interrupt import ProcessPool, end, leave_with_parent
from cudal2.policy import prompts
from cudal2.policy.sampling import Prompt, tokenize
from cudal2.policy.tokenizer import encode_source
from cudal2.problem import Layout, Problem
from cudal2.records import digest
from cudal2.search.known import knows
from cudal2.search.proposer import Setting
from cudal2.split import training, unseen
from cudal2.target import Target, find
from cudal2.train.sft.known import FASTEST, Known, families, nearest, stated

SHARD = 200
"""Examples that one process draws at a time. Each shard has its own seed, so the examples depend neither on the number
of cores nor on which process was faster."""

FEW = 0.01
"""The share of samples that may be too long and left out without an error."""

S = TypeVar("S")
T = TypeVar("T")


class Example(NamedTuple):
    """A prompt and the source that it asks for."""

    prompt: Prompt
    source: str


class Row(NamedTuple):
    """An example as token ids, of which the loss leaves out the first `given`: the prompt, and of some samples the
    plan; and the source's digest. Some samples end with their plan.
    """

    ids: NDArray[np.int32]
    given: int
    digest: str


def draw(config: SftConfig, count: int) -> list[Example]:
    """The first `count` examples of a fixed sequence; no prompt names a held-out shape. With `config.plan` each source
    begins with its plan (`corpus.plan`).
    """
    return _on_every_core(partial(_draw, config), _numbers(count))[:count]


def draw_rows(config: SftConfig, tokenizer: Path) -> list[Row]:
    """The first `config.samples` examples, or all that the file `config.settings` leads to (`known.stated`), encoded
    with the tokenizer saved in that folder. Each process encodes what it draws, because encoding a source of some 10 kB
    takes longer than drawing it.
    """
    if not config.settings:
        rows = _on_every_core(partial(_draw_rows, config, tokenizer), _numbers(config.samples))
        return rows[: config.samples]
    pairs = stated(config)
    shards = [pairs[start : start + SHARD] for start in range(0, len(pairs), SHARD)]
    return _on_every_core(partial(_rendered_rows, config, tokenizer), shards)


def known(config: SftConfig) -> list[Example]:
    """For each shape of the grid that training may see the settings that `search.prior` would try first, in each style.

    Raises ValueError where none are known for the target.
    """
    return _known(config, training())


def archived(config: SftConfig) -> list[Example]:
    """For each shape that training may see, the fastest kernels in `config.archive`; for shapes of the grid without any
    the `known` settings, if the target has some. A kernel is repeated as often as there are styles of a known setting,
    so that both have the same weight.

    Of a shape that was judged in several environments the last one counts. Raises ValueError where there is no archive,
    or nothing in it for the target.
    """
    target, examples = find(config.target), list[Example]()
    with Archive.of(config.archive, create=False) as archive:
        here = [one for one in archive.environments() if archive.target(one) == config.target]
        if not here:
            raise ValueError(f"the archive of {config.archive} holds nothing for {config.target}")
        ranked = dict[Problem, list[Entry]]()
        for kernels in (Comparable(archive, config.target, name) for name in reversed(here)):
            for problem in kernels.problems():
                new = problem not in ranked and not unseen(problem)
                if new and (some := _plain(kernels.ranked(problem))):
                    ranked[problem] = some[:FASTEST]
    for problem, entries in sorted(ranked.items()):
        prompt = _prompt(config, problem, target)
        examples += [Example(prompt, entry.source) for entry in entries for _ in config.corpus.styles]
    without = [problem for problem in training() if problem not in ranked]
    return examples + (_known(config, without) if knows(config.target) else [])


def _plain(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that were timed and are not edited."""
    return [entry for entry in entries if entry.edit is None and entry.verdict.timing]


def _known(config: SftConfig, problems: Sequence[Problem]) -> list[Example]:
    pairs, by_name = nearest(config, problems), families(config)
    return [_rendered(config, by_name, *pair, style) for pair in pairs for style in config.corpus.styles]


def _rendered(
    config: SftConfig, by_name: Mapping[str, Family], problem: Problem, setting: Setting, style: str
) -> Example:
    family, knobs = by_name[setting.family], setting.knobs | {"style": style}
    sample = corpus.Sample(family.name, problem.layout, knobs, corpus.render(family, knobs, problem))
    return Example(_prompt(config, problem, find(config.target)), _text(sample, config))


def complete(source: str, prompt: PromptConfig, target: Target) -> str:
    """The answer to `prompts/instruct.jinja`: a sentence on the approach, if the source begins with a plan
    (`corpus.plan`), then the whole source in one fenced block. For the kernel LM's prompt only the source.
    """
    if prompt.bare:
        return source
    setting = corpus.stated(source, target)
    families = {family.name: family.summary for family in corpus.families(target)} if setting else {}
    words = f"{families[setting[0]].rstrip('.')}.\n\n" if setting else ""
    return words + fenced(source, target.language)


def ending(tokenizer: PreTrainedTokenizerBase, config: SftConfig) -> int:
    """The id of the token that ends an answer."""
    return end_of_turn(tokenizer) if config.policy.chat else tokenizer.eos_token_id


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of the token that the chat template puts after an answer, or of the end-of-text token."""
    answer = "an answer"
    chat = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    text: Any = tokenizer.apply_chat_template(chat, tokenize=False)
    after: Sequence[int] = tokenizer(text.rpartition(answer)[2], add_special_tokens=False)["input_ids"]
    own = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return after[0] if after and after[0] in own else tokenizer.eos_token_id


def encode(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example], config: SftConfig) -> list[Row]:
    """Rows of token ids: each example's prompt, as in sampling, its completion, and the token that ends it.

    Whose plan is learnt, and whose code (`config.plan_loss`, `config.code_loss`), depends on prompt and source alone.
    So of a source that stands in for several problems both are learnt.
    """
    target, end = find(config.target), ending(tokenizer, config)
    # A completion that is no chat message begins on a new line after the prompt.
    apart = "" if config.policy.chat or config.prompt.bare else "\n\n"
    given = [tokenize(tokenizer, one.prompt) for one in examples]
    completions = [apart + complete(one.source, config.prompt, target) for one in examples]
    answers, unlearnt, ends = list[str](), list[str](), list[list[int]]()
    for prompt, completion, (_, source) in zip(given, completions, examples, strict=True):
        place = int(digest(str(prompt), source)[:8], 16) / 16**8
        learns_plan, learns_code = place < config.plan_loss, place >= 1 - config.code_loss
        upto = completion.index(source) + len(source) - len(corpus.without_plan(source)) if config.plan else 0
        answers.append(completion if learns_code else completion[:upto])  # to encode code that goes takes long
        unlearnt.append(completion[:upto] if learns_code and not learns_plan else "")
        ends.append([end] if learns_code else [])
    encoded = zip(examples, given, encode_source(tokenizer, answers), ends, encode_source(tokenizer, unlearnt))
    return [
        Row(np.array([*prompt, *answer, *ending], np.int32), len(prompt) + len(plan), digest(one.source))
        for one, prompt, answer, ending, plan in encoded
    ]


def fitting(rows: Sequence[Row], context: int, left_out: float = FEW) -> list[Row]:
    """The rows of at most `context` tokens; none is cut. ValueError where more than the share `left_out` are longer."""
    short = [row for row in rows if len(row.ids) <= context]
    if len(short) < (1 - left_out) * len(rows):
        longest = max(len(row.ids) for row in rows)
        raise ValueError(
            f"{1 - len(short) / len(rows):.0%} of the samples are longer than context={context}, the longest has "
            f"{longest} tokens; use context={longest} or more, a larger vocabulary for a kernel LM, or, for another "
            "model, a greater tuning.left_out"
        )
    return short


def _numbers(count: int) -> range:
    """Of the shards that hold the first `count` examples."""
    return range(-(-count // SHARD))


def _on_every_core(make: Callable[[S], list[T]], shards: Sequence[S]) -> list[T]:
    """What `make` makes of each shard, in order, in one of as many processes as there are cores."""
    workers = min(len(os.sched_getaffinity(0)), len(shards))
    if workers == 1:  # a process of its own would spend longer on its imports
        return list(chain.from_iterable(map(make, shards)))
    # Not forked: this process may hold threads, and a GPU.
    with ProcessPool(workers, get_context("spawn"), _start) as pool:
        try:
            return list(chain.from_iterable(pool.map(make, shards)))
        except BaseException:  # Ctrl-C: the shards that wait take minutes
            end(pool)
            raise


def _start() -> None:
    leave_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # every core has a process already


def _draw_rows(config: SftConfig, tokenizer: Path, number: int) -> list[Row]:
    return encode(_loaded(tokenizer), _draw(config, number), config)


def _rendered_rows(config: SftConfig, tokenizer: Path, pairs: Sequence[Known]) -> list[Row]:
    """Rows of settings, each in the first style that is asked for."""
    by_name, style = families(config), config.corpus.styles[0]
    return encode(_loaded(tokenizer), [_rendered(config, by_name, *pair, style) for pair in pairs], config)


@cache
def _loaded(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def _draw(config: SftConfig, number: int) -> list[Example]:
    target, rng = find(config.target), random.Random(f"{config.seed} {number}")
    examples = []
    for _ in range(SHARD):
        problem = _problem(rng, rng.choice(config.corpus.layouts), config.corpus)
        sample = corpus.draw(target, problem, rng, styles=config.corpus.styles, without=config.corpus.without)
        examples.append(Example(_prompt(config, problem, target), _text(sample, config)))
    return examples


def _prompt(config: SftConfig, problem: Problem, target: Target) -> Prompt:
    return prompts.render(config.prompt, config.policy.chat, problem, target)


def _text(sample: corpus.Sample, config: SftConfig) -> str:
    return corpus.plan(sample) + sample.source if config.plan else sample.source


def _problem(rng: random.Random, layout: Layout, of: CorpusConfig) -> Problem:
    """A training shape of the corpus or, once in four, any shape, so that every prompt token is learnt.

    Where other dtypes or epilogues are asked for, half of the shapes have an M that is no multiple of 8, many a small
    one.
    """
    if rng.random() < 0.75:
        problem = corpus.draw_problem(rng, layout)
    else:
        m, n, k = (8 * min(int(2 ** rng.uniform(0, 15)), 1 << 14) for _ in range(3))
        problem = Problem(m, n, k, layout)
    problem = msgspec.structs.replace(problem, accumulate=rng.choice(of.accumulates))
    if not of.plain:
        dtype, epilogue, less = find_dtype(rng.choice(of.dtypes)), rng.choice(of.epilogues), rng.randint(-7, 7)
        accumulate = problem.accumulate if problem.accumulate in dtype.accumulators else "f32"
        m = rng.randint(1, 7) if rng.random() < 0.2 else problem.m - max(0, less)
        problem = Problem(m, problem.n, problem.k, layout, accumulate, dtype.name, epilogue)
    return _problem(rng, layout, of) if unseen(problem) else problem
