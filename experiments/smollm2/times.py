"""How long one pass of sampling takes, by the texts of the batch and the tokens that each has; on a GPU.

    python experiments/smollm2/times.py

A model with SmolLM2's shape and random weights: in bfloat16, as evaluations and GRPO with (merged) adapters sample;
with adapters of rank 32 beside the weights; and in float32 under autocast, as GRPO of all weights does. The prompt has
1,000 tokens.
"""

import random
import time
from contextlib import nullcontext
from functools import partial

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from cudal2.policy.decoding.batch import AHEAD
from cudal2.policy.decoding.step import Step

PROMPT, MOST, TIMES = 1000, 7000, 10
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def main() -> None:
    cast = partial(torch.autocast, "cuda", torch.bfloat16)
    kinds = {
        "bfloat16": (made().bfloat16(), nullcontext),
        "adapters": (adapted(made().bfloat16()), cast),
        "float32": (made(), cast),
    }
    print("ms a pass of " + f"{AHEAD} tokens of each text | " + " | ".join(kinds))
    for rows in (128, 64, 16, 4):
        for written in (1000, 5000):
            found = [milliseconds(model, context, rows, written) for model, context in kinds.values()]
            print(f"{rows} texts of {written} tokens | " + " | ".join(f"{one:.1f}" for one in found), flush=True)


def made() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).cuda().eval()


def adapted(model: LlamaForCausalLM) -> LlamaForCausalLM:
    wrapped = get_peft_model(model, LoraConfig(r=32, lora_alpha=32, target_modules="all-linear"))
    return wrapped.eval().get_base_model()


@torch.no_grad()
def milliseconds(model: LlamaForCausalLM, context, rows: int, written: int) -> float:
    with context():
        ids = torch.randint(0, SHAPE["vocab_size"], (rows, PROMPT), device="cuda")
        read = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        step = Step(model, read.past_key_values, torch.ones_like(ids), PROMPT + MOST, AHEAD)
        asked = [[random.randrange(SHAPE["vocab_size"]) for _ in range(AHEAD)] for _ in range(rows)]
        run = partial(step, list(range(rows)), asked, [written] * rows)
        run()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(TIMES):
            run()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        step.close()
    return 1e3 * seconds / TIMES


if __name__ == "__main__":
    main()
