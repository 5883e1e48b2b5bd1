"""Words that a kernel LM gets after it was trained: verdicts, and lines of families made since."""

from collections import Counter
from collections.abc import Sequence
from typing import cast

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.policy.prompts.verdicts import TOKENS as VERDICTS
from cudal2.policy.tokenizer import encode_source, join_lines, lines_of


def teach_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    """Adds the words of verdicts, where it has none."""
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in VERDICTS], special_tokens=True)


def prepare_turns(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, context: int) -> None:
    """A kernel LM that is to be taught turns gets words for verdicts, and reads at least `context` tokens at once."""
    teach_turns(tokenizer)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.max_position_embeddings = max(model.config.max_position_embeddings, context)


def prepare_lines(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], room: int) -> int:
    """A kernel LM gets words for lines of families made since (`learn_lines`), each at first the mean of what
    spelt it; how many."""
    words = learn_lines(tokenizer, sources, room)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    read, written = cast(nn.Embedding, model.get_input_embeddings()), cast(nn.Linear, model.get_output_embeddings())
    with torch.no_grad():
        for table in {read.weight, written.weight}:  # one, where they are tied
            for word, pieces in words.items():
                table[word] = table[pieces].mean(0)
    return len(words)


def learn_lines(tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], room: int) -> dict[int, list[int]]:
    """Makes words of lines that families brought after it was trained; of each new word's id the ids that spelt it.

    They are the runs of lines, at most `room`, that shorten most those of the sources that have more tokens than lines.
    All others keep their tokens: no run is taken that occurs in one of them.
    """
    long, others = list[list[str]](), set[str]()
    for source, ids in zip(sources, encode_source(tokenizer, sources), strict=True):
        lines = lines_of(source)
        if len(ids) > len(lines):
            long.append(lines)
        else:
            others.add(source)
    known = {line for other in others for line in lines_of(other)}

    def occurs(run: str) -> bool:
        first, *rest = lines_of(run)
        return known.issuperset(rest) and any(line.endswith(first) for line in known) and any(run in o for o in others)

    counts = Counter(run for runs in join_lines(long) for run in runs)
    runs = [run for run, count in counts.items() if count > 1 and run.endswith("\n")]
    spelt = dict(zip(runs, encode_source(tokenizer, runs), strict=True)) if runs else {}
    saved = {run: counts[run] * (len(ids) - 1) for run, ids in spelt.items() if len(ids) > 1 and not occurs(run)}
    chosen, first = sorted(saved, key=lambda run: (-saved[run], run))[:room], len(tokenizer)
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in chosen])
    return {number: spelt[run] for number, run in enumerate(chosen, first)}
