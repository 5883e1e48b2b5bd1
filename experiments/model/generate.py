"""What exported kernels are worth in a transformers model: time to the first token, time a token, logits.

    python experiments/model/generate.py shapes llama-1b                  # M_N_K of its layers, to search and export
    cudal2 bench call RUN/export neighbours=true settle=true               # a single row, too, by a kernel of eight
    python experiments/model/generate.py measure llama-1b --export RUN/export -o llama-1b.json

The model has real sizes and random weights. `measure` alternates torch's own layers with patched ones, round by round:
a prompt of one sequence (time to the first token), and a step of decoding for each batch, eagerly and, on a GPU,
replayed from a CUDA graph. Ratios are medians over rounds of plain to patched, with the quartiles; beside them stands
plain to plain by the same protocol.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from cudal2.runtime import Library, load, patch, unpatch

SIZES = {
    "tiny": (256, 512, 2, 4, 4, 1_000),
    "llama-1b": (2048, 8192, 16, 32, 8, 32_000),
    "llama-3b": (3072, 8192, 28, 24, 8, 32_000),
    "llama-8b": (4096, 14336, 32, 32, 8, 32_000),
}
"""Hidden, intermediate, layers, heads, heads of keys and values, vocabulary: Llama 3's, but for the vocabulary."""
WARM = 3

Step = Callable[[], torch.Tensor]
"""A forward pass on inputs of its own; its logits."""


def build(name: str, device: str) -> LlamaForCausalLM:
    hidden, intermediate, layers, heads, groups, vocabulary = SIZES[name]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        dtype="float16",
    )
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(config).half().eval()


def shapes(name: str, rows: list[int]) -> list[str]:
    """M_N_K of every linear layer, at so many rows; what is no multiple of 8 rows is served by the next kernel's."""
    with torch.device("meta"):
        model = build(name, "meta")
    layers = {one.weight.shape for one in model.modules() if isinstance(one, torch.nn.Linear)}
    return [f"{m}_{n}_{k}" for m in sorted({-(-count // 8) * 8 for count in rows}) for n, k in sorted(layers)]


def prefill(model: LlamaForCausalLM, tokens: int) -> Step:
    ids = torch.randint(model.config.vocab_size, (1, tokens), device=model.device)
    return lambda: model(ids, use_cache=False, logits_to_keep=1).logits


def decode(model: LlamaForCausalLM, batch: int, past: int) -> Step:
    """One token more for each sequence, behind `past` that the cache holds: always the same one, at the same place."""
    cache = StaticCache(config=model.config, max_cache_len=past + 8)
    ids = torch.randint(model.config.vocab_size, (batch, past), device=model.device)
    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    one = torch.randint(model.config.vocab_size, (batch, 1), device=model.device)
    place = torch.full((batch, 1), past, device=model.device)

    def step() -> torch.Tensor:
        for layer in cache.layers:
            layer.cumulative_length.fill_(past)
        return model(one, past_key_values=cache, position_ids=place, use_cache=True).logits

    return step


def replayed(step: Step) -> Step:
    """The same pass from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()

    def run() -> torch.Tensor:
        graph.replay()
        return out

    return run


def seconds(step: Step, repeats: int) -> float:
    """Of one pass, the median of several; the host waits for each, as who reads the token would."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return median(taken)


def compared(model: LlamaForCausalLM, library: Library, step: Step, graphs: bool, rounds: int, repeats: int) -> Any:
    """Times of the three sides in random order, round by round, and how far patched logits are from plain ones."""
    made: dict[str, Step] = {}
    logits = {}
    for side in ("plain", "again", "patched"):
        routed = patch(model, library) if side == "patched" else unpatch(model) or []
        made[side] = replayed(step) if graphs else step
        for _ in range(WARM):
            logits[side] = made[side]().float().clone()
    times: dict[str, list[float]] = {side: [] for side in made}
    for _ in range(rounds):
        for side in random.sample(sorted(made), len(made)):
            patch(model, library) if side == "patched" else unpatch(model)
            made[side]()  # the first one behind a change of layers
            times[side].append(seconds(made[side], repeats))
    unpatch(model)
    apart = (logits["patched"] - logits["plain"]).abs()
    return {
        "ms": {side: 1e3 * median(taken) for side, taken in times.items()},
        "speedup": ratio(times["plain"], times["patched"]),
        "floor": ratio(times["plain"], times["again"]),
        "layers": len(routed),
        "logits_apart": {"most": apart.max().item(), "mean": apart.mean().item(), "std": logits["plain"].std().item()},
        "same_token": (logits["patched"].argmax(-1) == logits["plain"].argmax(-1)).float().mean().item(),
    }


def ratio(plain: list[float], other: list[float]) -> list[float]:
    """The median and the quartiles of the rounds' ratios."""
    low, middle, high = quantiles([a / b for a, b in zip(plain, other)], n=4)
    return [middle, low, high]


@torch.inference_mode()
def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, library = build(arguments.model, device), load(arguments.export)
    rows = []
    what = [("first token", 1, lambda: prefill(model, arguments.prompt))]
    what += [
        ("a token", batch, lambda batch=batch: decode(model, batch, arguments.past)) for batch in arguments.batches
    ]
    for name, batch, make in what:
        step = make()
        for graphs in (False, True) if device == "cuda" else (False,):
            found = compared(model, library, step, graphs, arguments.rounds, arguments.repeats)
            rows.append({"model": arguments.model, "what": name, "batch": batch, "graphs": graphs, **found})
            print(described(rows[-1]), flush=True)
    print(dict(library.calls))
    return rows


def described(row: dict[str, Any]) -> str:
    (middle, low, high), floor, ms, apart = row["speedup"], row["floor"], row["ms"], row["logits_apart"]
    return (
        f"{row['what']:<12} batch {row['batch']:>3} {'graph' if row['graphs'] else 'eager'}  {ms['plain']:8.3f} ms → "
        f"{ms['patched']:8.3f} ms  {middle:.3f} [{low:.3f}, {high:.3f}]  floor {floor[0]:.3f}  {row['layers']} layers  "
        f"logits ±{apart['most']:.2g} of {apart['std']:.2g}, same token {row['same_token']:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("shapes", "measure"))
    parser.add_argument("model", choices=sorted(SIZES))
    parser.add_argument("--export", type=Path, help="a folder that cudal2 export wrote")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of the sequence that a first token is for")
    parser.add_argument("--batches", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8, 64])
    parser.add_argument("--past", type=int, default=256, help="tokens of each sequence before the one decoded")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=10, help="passes of a side in a round")
    parser.add_argument("-o", dest="out", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "shapes":
        print(",".join(shapes(arguments.model, [*arguments.batches, arguments.prompt])))
        return
    rows = measure(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
