"""What it costs to learn plans that are drawn at random: small kernel LMs, alike but for `plan_loss`.

    python experiments/kernel_lm/plan_loss.py [samples=8000] [KEY=VALUE of `cudal2 sft`]

Of 300 new draws the loss of the plan is printed, and of the code given its plan, in nats a kernel. With certainty the
code would cost 0, and the plan as much as there is chance in the draws.
"""

import sys
import tempfile
from pathlib import Path

import torch

from cudal2.config import PolicyConfig, SftConfig, load
from cudal2.policy import model as policy
from cudal2.train.sft import run
from cudal2.train.sft.examples import draw, encode

SMALL = ["plan=true", "samples=8000", "epochs=1", "hidden=128", "layers=3", "heads=2", "verify=0"]
SHARES = 1.0, 0.1, 0.05, 0.02, 0.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for share in SHARES:
            config = load("sft", [f"run={folder}/{share}", *SMALL, f"plan_loss={share}", *sys.argv[1:]], SftConfig)
            run.run(config)
            code, whole = (loss(Path(config.run) / "policy", config, counted) for counted in (0, 1))
            print(f"plan_loss={share}: the plan costs {whole - code:.2f} nats, the code {code:.2f}", flush=True)


@torch.inference_mode()
def loss(folder: Path, config: SftConfig, counted: int) -> float:
    """Mean loss of what follows the plan, or with `counted` 1 of all that follows the prompt, in nats for a kernel."""
    model, tokenizer = policy.load(PolicyConfig(path=str(folder)), config.target)
    new = load(
        "sft", ["run=unused", *SMALL, *sys.argv[1:], f"plan_loss={counted}", "samples=300", "seed=99"], SftConfig
    )
    total = 0.0
    rows = encode(tokenizer, draw(new, 300), new)
    for row in rows:
        ids = torch.tensor(row.ids, dtype=torch.long)
        scores = model(ids[None]).logits[0, row.given - 1 : -1].float().log_softmax(-1)
        total -= scores.gather(-1, ids[row.given :, None]).sum().item()
    return total / len(rows)


if __name__ == "__main__":
    main()
