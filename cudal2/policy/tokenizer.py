"""The kernel LM's tokenizer, whose tokens are runs of whole source lines, so that a kernel has only some dozens of
tokens.

A byte-pair encoding made for prose needs thousands of tokens for one kernel, most of which are determined by the
tokens before them. Here a token is a run of lines that always follow one another. It ends where the next line is
a choice, so the model decides, token by token, what an author of kernels decides. Text that no run covers is
spelled with pieces of lines and, in the end, with bytes: every text is encoded and decoded without loss.

The likeliest segmentation is found as in Kudo, "Subword Regularization" (arXiv:1804.10959); pieces of lines
are byte-pair merges (Sennrich et al., arXiv:1508.07909) in the byte-level alphabet of GPT-2.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cudal2 import operators
from cudal2.dtype import DTYPES
from cudal2.policy.prompts import Message
from cudal2.policy.prompts.verdicts import TOKENS as VERDICTS
from cudal2.policy.prompts.worked import LEVELS
from cudal2.target import targets

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SIZES = tuple(8 << i for i in range(15))
"""The powers of two that sizes are written in: 8 to 131072. The largest vocabularies need more (BEYOND)."""

PROMPT_TOKENS = (
    *(f"<|{target}|>" for target in targets()),
    *("<|nn|>", "<|tn|>", "<|f32|>", "<|f16|>"),
    *(f"<|{name}={size}|>" for name in "mnk" for size in SIZES),
    *(f"<|+{size}|>" for size in SIZES[:-2]),
)
"""Special tokens that state a problem; `prompts.powers` says how sizes are written."""
FURTHER_TOKENS = (
    *(f"<|{name}|>" for name in (*DTYPES, *operators.names()) if name not in ("fp16", "none")),
    *(f"<|{start}{power}|>" for start in ("m=", "+") for power in (4, 2, 1)),
)
"""Those of other dtypes and epilogues, and of an M that is no multiple of 8. A policy has them if it learnt such."""
WORKED = "<|worked|>"
NUMBERS = (WORKED, *(f"<|{number}|>" for number in range(LEVELS)))
"""Those of what is worked out of a shape (`prompts/worked.py`), for a policy whose prompts state it."""
BEYOND = (*(f"<|n={size}|>" for size in (1 << 18, 1 << 19)), "<|+65536|>", "<|+131072|>", "<|+262144|>")
"""An N of 196608 or more, which a few vocabularies are: only a policy that has NUMBERS has words for it."""

PIECES = 768
"""Vocabulary kept for bytes and pieces of lines."""
LINES_PER_TOKEN = 12
"""Longest run of lines that becomes one token, so that no single token is most of a kernel."""
SETTLED = 0.99
"""Two lines are joined where the second follows the first at least this often: there is no choice between them."""


def train(
    sources: Sequence[str], vocabulary: int, further: bool = False, worked: bool = False
) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocabulary` tokens, special tokens included, for texts like `sources`.

    `further` says whether it has FURTHER_TOKENS, `worked` whether NUMBERS and BEYOND. Deterministic in its arguments.
    Raises ValueError where `vocabulary` leaves no room for lines.
    """
    special = (
        PAD,
        BOS,
        EOS,
        *PROMPT_TOKENS,
        *(FURTHER_TOKENS if further else ()),
        *((*BEYOND, *NUMBERS) if worked else ()),
    )
    room = vocabulary - PIECES - len(special)
    if room < 64:
        raise ValueError(f"vocabulary={vocabulary} is too small; use at least {vocabulary - room + 64}")
    split = [lines_of(source) for source in sources]
    runs = _runs_of_lines(split, room)
    pieces = _pieces_of_lines({line for lines in split for line in lines})
    total = sum(runs.values()) or 1
    # Every piece scores below every run: lines are spelled out only where no run fits.
    vocab = {_bytes_as_characters(run): math.log(count / total) for run, count in runs.items()}
    vocab |= {piece: math.log(0.5 / total) for piece in pieces if piece not in vocab}
    tokenizer = Tokenizer(models.Unigram(list(vocab.items()), None, False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def check_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
    """ValueError where a prompt of a kernel LM states what its tokenizer has no words for, or not what it learnt."""
    if not prompt.startswith(BOS) or not is_kernel_lm(tokenizer):
        return
    known = tokenizer.get_added_vocab()
    if (WORKED in prompt) != (WORKED in known):
        template = "kernel_lm" if WORKED in prompt else "kernel_lm_worked"
        raise ValueError(f"this policy learnt another form of prompt: say prompt={template}")
    if lacking := {token for token in (*FURTHER_TOKENS, *BEYOND) if token in prompt} - known.keys():
        raise ValueError(
            f"this policy has no words for {', '.join(sorted(lacking))}: it learnt only fp16, the product alone, "
            "multiples of 8 and N below 196608; train one with corpus.dtypes and corpus.epilogues, or search without a "
            "policy"
        )


def is_kernel_lm(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the policy has words of its own for problems, and its answer is the bare source."""
    return BOS in tokenizer.get_added_vocab()


def encode_source(tokenizer: PreTrainedTokenizerBase, sources: Sequence[str]) -> list[list[int]]:
    """Token ids of each source as plain text: a literal `<|eos|>` in a source is text, not the token."""
    return tokenizer(list(sources), add_special_tokens=False, split_special_tokens=True)["input_ids"]


def check_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    """ValueError where a kernel LM has no words for verdicts."""
    if VERDICTS[0] not in tokenizer.get_added_vocab():
        raise ValueError(
            "this policy learnt to write one kernel, not to write again after a verdict: say turns.count=1, teach a "
            "kernel LM with `cudal2 sft recipe=kernel_lm_turns`, or take a model that chats with policy.chat=true"
        )


def is_conversation(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> bool:
    """Whether these are a kernel LM's prompt and its turns so far. A model with a chat template is none."""
    return tokenizer.chat_template is None and messages[0]["content"].startswith(BOS)


def encode_conversation(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Token ids of a kernel LM's prompt and its turns so far: each kernel as plain text, with its end, and then the
    verdict. Raises ValueError as `check_prompt` and `check_turns` do."""
    check_turns(tokenizer)
    check_prompt(tokenizer, messages[0]["content"])
    ids = list[int]()
    for message in messages:
        if message["role"] == "assistant":
            [source] = encode_source(tokenizer, [message["content"]])
            ids += [*source, tokenizer.eos_token_id]
        else:
            ids += tokenizer(message["content"])["input_ids"]
    return ids


def _runs_of_lines(split: list[list[str]], room: int) -> dict[str, int]:
    """The `room` most frequent runs of lines, with their frequencies.

    Single lines that only occur inside runs fill the rest of `room`, as if seen once, so that a policy
    that leaves the corpus can still write them whole.
    """
    counts = Counter(run for runs in join_lines(split) for run in runs)
    runs = {run: n for run, n in counts.most_common(room) if n > 1}
    for line, n in Counter(line for lines in split for line in lines).most_common():
        if len(runs) < room and n > 1:
            runs.setdefault(line, 1)
    return runs


def join_lines(split: list[list[str]]) -> list[list[str]]:
    """The same sources, with lines joined wherever a line determines the next one."""
    before = Counter(line for lines in split for line in lines[:-1])
    pairs = Counter(pair for lines in split for pair in pairwise(lines))
    settled = {pair for pair, n in pairs.items() if n >= SETTLED * before[pair[0]]}
    joined = []
    for lines in split:
        runs = lines[:1]
        for pair in pairwise(lines):
            if pair in settled and runs[-1].count("\n") < LINES_PER_TOKEN:
                runs[-1] += pair[1]
            else:
                runs.append(pair[1])
        joined.append(runs)
    return joined


def _pieces_of_lines(lines: Iterable[str]) -> list[str]:
    """The 256 bytes and the most frequent words of the distinct lines, in byte-level characters."""
    speller = Tokenizer(models.BPE())
    speller.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=alphabet, show_progress=False)
    speller.train_from_iterator(sorted(lines), trainer)
    return sorted(speller.get_vocab(), key=speller.get_vocab().__getitem__)


def lines_of(source: str) -> list[str]:
    """The lines with their line feeds; Unicode's other line separators are ordinary text."""
    return re.findall(r"[^\n]*\n|[^\n]+", source)


def _bytes_as_characters(text: str) -> str:
    """The text in the byte-level alphabet of GPT-2, one printable character per byte."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in whole)
