"""How far is one step of Adam at a learning rate? What the first step of GRPO costs a policy that can write kernels.

    python experiments/smollm2/rates.py shipped:smollm2_cpu recipe=smollm2_cpu > rates.txt   # some minutes of a core

Adam's first step moves each weight by the rate, whatever its gradient. Here the gradient is that of four kernels which
the policy would write itself, two with the advantage +1 and two with -1: there is nothing to be learnt. Printed is what
the code of four others then costs, in nats, for all weights and for new adapters of rank 32, which begin with B = 0.
"""

import math
import sys

import torch
from msgspec.structs import replace

from cudal2.config import SftConfig, load
from cudal2.policy import model as policy
from cudal2.train.sft.examples import draw, encode

ADVANTAGES = (1, 1, -1, -1)
FULL, ADAPTERS = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4), (1e-5, 1e-4, 3e-4, 1e-3)
RANK = 32


def main() -> None:
    path, *overrides = sys.argv[1:]
    config = load("sft", [*overrides, "samples=64", "seed=77", "plan_loss=0", "code_loss=1"], SftConfig)
    model, tokenizer = policy.load(replace(config.policy, path=path, dtype="float32"))
    rows = encode(tokenizer, draw(config, config.samples), config)[:8]

    def cost(row) -> torch.Tensor:
        ids = torch.tensor(row.ids, dtype=torch.long)
        hidden = model.model(ids[None]).last_hidden_state[0, row.given - 1 : -1]
        return torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[row.given :], reduction="sum")

    @torch.no_grad()
    def show(what: str) -> None:
        costs = [float(cost(row)) for row in rows[4:]]
        print(f"{what:<16} {' '.join(f'{one:>6.1f}' for one in costs)}  mean {sum(costs) / len(costs):.1f}", flush=True)

    show("as it is")
    model.requires_grad_(True)
    for advantage, row in zip(ADVANTAGES, rows):
        (advantage * cost(row) / len(row.ids)).backward()
    before = {name: (one, one.detach().clone(), one.grad) for name, one in model.named_parameters()}
    with torch.no_grad():
        for rate in FULL:
            for weight, was, gradient in before.values():
                weight.copy_(was - rate * gradient.sign())
            show(f"all, {rate:g}")
        for rate in ADAPTERS:
            torch.manual_seed(0)
            for name, (weight, was, gradient) in before.items():
                weight.copy_(was)
                if weight.dim() == 2 and "proj" in name:
                    bound = 1 / math.sqrt(weight.shape[1])  # as PEFT begins
                    a = torch.empty(RANK, weight.shape[1]).uniform_(-bound, bound)
                    weight -= rate * (gradient @ a.T).sign() @ a
            show(f"adapters, {rate:g}")


if __name__ == "__main__":
    main()
