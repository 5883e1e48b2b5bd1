"""A random Llama that chats, in byte pairs of the texts it is shown: a pretrained model's parts in a few seconds."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tiny_gguf import TEMPLATE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def words(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that keeps every text as it is; `</s>` ends a turn as well as a text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<unk>", "<s>", "</s>"]
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, special_tokens=special)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save(folder: Path, texts: Sequence[str], context: int = 4096) -> Path:
    """The model and its `words`, learnt from these texts."""
    tokenizer = words(texts)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=context, tie_word_embeddings=True,
            bos_token_id=1, eos_token_id=2, pad_token_id=None,
        )
    ).save_pretrained(folder)  # fmt: skip
    tokenizer.save_pretrained(folder)
    return folder
