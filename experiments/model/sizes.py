"""The models that `generate.py` measures: transformers' own classes, the sizes of data/shapes/llm.toml, random weights.

gpt-oss 20B is a dense stand-in. Its attention's projections are the real ones, biases included; in place of 32 experts
and their router, of which a token passes four experts, each block has one expert that all tokens pass, as three linear
layers with biases; attention has no sinks and no window. transformers computes experts by one batched product, which is
no nn.Linear, so no exported kernel could serve them.
"""

import torch
from merged import merge
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from cudal2 import llm
from cudal2.problem import Problem

BLOCKS = {"llama-3.2-1b": 16, "llama-3.2-3b": 28, "qwen2.5-7b": 28, "gpt-oss-20b": 24, "tiny": 2, "tiny-biased": 2}
"""How many blocks a model has, which the lists of layers do not say."""
TIED = ("llama-3.2-1b", "llama-3.2-3b", "tiny")
"""Models whose head is the embedding's weight."""
SMALL = llm.Model("tiny", "", hidden=256, vocab=1000, heads=4, kv_heads=2, head_dim=64, intermediate=512)
TINY = {
    "tiny": SMALL,
    "tiny-biased": llm.Model(
        *("tiny", "", 256, 1000, 4, 2, 64), expert=512, biases=("qkv", "out", "expert_gate_up", "expert_down")
    ),
}
"""Models for a processor, to try the script."""
DTYPE = torch.bfloat16


def build(name: str, device: str, merged: bool = False) -> PreTrainedModel:
    """The model in bf16 with weights and biases drawn at random, and its layers `merged` as in merged.py."""
    of = TINY.get(name) or llm.models()[name]
    sizes = {
        "hidden_size": of.hidden,
        "intermediate_size": of.intermediate or of.expert,
        "num_hidden_layers": BLOCKS[name],
        "num_attention_heads": of.heads,
        "num_key_value_heads": of.kv_heads,
        "vocab_size": of.vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": name in TIED,
    }
    torch.manual_seed(0)
    with torch.device(device):
        if of.biases == ("qkv",):  # what a Qwen2 has, and a Llama cannot
            model = Qwen2ForCausalLM._from_config(Qwen2Config(**sizes), dtype=DTYPE)
        else:
            sizes |= {"head_dim": of.head_dim, "attention_bias": "out" in of.biases}
            config = LlamaConfig(**sizes, mlp_bias="expert_down" in of.biases)
            model = LlamaForCausalLM._from_config(config, dtype=DTYPE)
    for module in linear(model).values():
        if module.bias is not None and device != "meta":  # transformers begins with zeros
            torch.nn.init.normal_(module.bias, std=0.02)
    return (merge(model) if merged else model).eval()


def linear(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """Its linear layers by name, the head among them."""
    return {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}


def problems(name: str, rows: list[int], head: bool = False, merged: bool = False) -> list[Problem]:
    """What its linear layers multiply at so many rows, each once, fewest rows first. The head is left to torch unless
    asked for; it is never asked for a prompt's rows, since only the last token's logits are computed."""
    layers = {
        (*one.weight.shape, "none" if one.bias is None else "bias")
        for layer, one in linear(build(name, "meta", merged)).items()
        if head or layer != "lm_head"
    }
    of = TINY.get(name) or llm.models()[name]
    return [
        Problem(m, n, k, "tn", "f32", "bf16", epilogue)
        for m in sorted(set(rows))
        for n, k, epilogue in sorted(layers)
        if n != of.vocab or m <= llm.HEAD_ROWS
    ]
