"""Whether drafts change what a policy writes, and how much time they save: the same two texts with and without them.

python experiments/smollm2/alike.py POLICY [TOKENS]
"""

import sys
import time

import torch
from msgspec.structs import replace

from cudal2.config import SftConfig, load
from cudal2.policy import decoding, prompts, sampling
from cudal2.policy import model as policy
from cudal2.policy.decoding import batch
from cudal2.problem import parse
from cudal2.target import find

SHAPES = "1024_512_256", "4096_4096_4096"


def main() -> None:
    path, most = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 600
    config = load("sft", ["recipe=smollm2"], SftConfig)
    sampled, target = replace(config.policy, path=path, dtype="float32"), find(config.target)
    model, tokenizer = policy.load(sampled)
    asked = [prompts.render(config.prompt, sampled.chat, parse(shape), target) for shape in SHAPES]
    ids = {"input_ids": [sampling.tokenize(tokenizer, prompt) for prompt in asked]}
    inputs = tokenizer.pad(ids, return_tensors="pt", padding_side="left").to(model.device)
    numbers = torch.rand(len(SHAPES), most, dtype=torch.float64).to(model.device)
    given = inputs["input_ids"], inputs["attention_mask"], numbers, sampling.choosing(sampled)
    found = []
    for ahead, drafts in (batch.AHEAD, decoding.expected(tokenizer, target)), (1, decoding.Drafts()):
        batch.AHEAD = ahead  # with 1 a pass reads no draft
        started = time.perf_counter()
        found.append(decoding.complete(model, *given, drafts.copy()))
        print(f"at most {ahead} tokens a pass: {time.perf_counter() - started:.0f} s", flush=True)
    print("the same texts" if found[0].equal(found[1]) else "other texts")


if __name__ == "__main__":
    main()
