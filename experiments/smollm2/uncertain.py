"""Where a trained policy is unsure: what each token of a kernel costs it, in nats.

    python experiments/smollm2/uncertain.py POLICY [samples=12] [KEY=VALUE of `cudal2 sft recipe=smollm2`]

The kernels are new draws of what the recipe teaches. Nothing decides what a plan is, and all of the code follows from
it. So of each kernel the loss of the plan and of the code are printed, and the tokens of the code that cost most: what
stands before each, and in brackets what the policy found likeliest.
"""

import sys

import torch
from msgspec.structs import replace

from cudal2 import corpus
from cudal2.config import SftConfig, load
from cudal2.policy import model as policy
from cudal2.train.sft.examples import draw, encode

UNSURE = 0.5
"""A token that costs so many nats is unsure."""
SHOWN, BEFORE = 6, 14
"""How many tokens are shown of each kernel, and how many before each."""


@torch.inference_mode()
def main() -> None:
    path, *overrides = sys.argv[1:]
    whole = ["plan_loss=1", "code_loss=1"]
    config = load("sft", ["recipe=smollm2", "samples=12", "seed=77", *overrides, *whole], SftConfig)
    model, tokenizer = policy.load(replace(config.policy, path=path, dtype="float32"))
    examples = draw(config, config.samples)
    plans, codes = [], []
    rows, without_plan = (encode(tokenizer, examples, replace(config, plan_loss=share)) for share in (1.0, 0.0))
    for example, row, code in zip(examples, rows, without_plan):
        ids = torch.tensor(row.ids, dtype=torch.long, device=model.device)
        hidden = model.model(ids[None]).last_hidden_state[0, row.given - 1 : -1]
        answer, costs, likeliest = ids[row.given :], [], []
        for part, tokens in zip(hidden.split(512), answer.split(512)):
            scores = model.lm_head(part).log_softmax(-1)
            costs += (-scores.gather(-1, tokens[:, None])[:, 0]).tolist()
            likeliest += scores.argmax(-1).tolist()
        words = [tokenizer.decode([token]) for token in answer.tolist()]
        start = code.given - row.given
        plans.append(sum(costs[:start]))
        codes.append(sum(costs[start:]))
        unsure = sum(cost > UNSURE for cost in costs[start:])
        family = example.source.split("\n")[0].removeprefix(corpus.PLAN)
        print(f"{family}, {len(words)} tokens: plan {plans[-1]:.1f}, code {codes[-1]:.1f}, {unsure} tokens unsure")
        for place in sorted(sorted(range(start, len(words)), key=lambda n: -costs[n])[:SHOWN]):
            behind = "".join(words[place - BEFORE : place])
            print(f"    {costs[place]:.2f} {behind!r} {words[place]!r} ({tokenizer.decode([likeliest[place]])!r})")
    print(f"mean: plan {sum(plans) / len(plans):.1f}, code {sum(codes) / len(codes):.1f}")


if __name__ == "__main__":
    main()
