"""What exported kernels are worth in a transformers model: time to the first token, time a token, logits.

    python experiments/model/generate.py shapes llama-3.2-1b                  # its problems, as `shapes=` takes them
    python experiments/model/generate.py measure llama-3.2-1b --export RUN/export -o llama-3.2-1b.json

The model (sizes.py) has real sizes and random weights in bf16. `measure` alternates torch's own layers with patched
ones, round by round: a step of decoding for each batch, then a prompt of one sequence (time to the first token). On a
GPU each is replayed from a CUDA graph (graph), compiled by torch.compile and then replayed from a CUDA graph
(compiled), and run by Python (eager), in that order, until the time is up. Ratios are medians over rounds of plain to
patched, with the quartiles; beside them stands plain to plain by the same protocol. Above the first line of a step
stands what the kernels of an eager one take by torch's profiler, and how much of that is in linear layers that an
exported kernel serves, and in the others. With --merged q, k and v are one product, and gate and up, on all sides.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from sizes import BLOCKS, build, linear, problems
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import PreTrainedModel, StaticCache

from cudal2.runtime import Library, patch, unpatch

WARM = 3
WAYS = "graph", "compiled", "eager"
LABELS = SERVED, OTHER, WHOLE = "served layers", "other layers", "a step"
"""What the profiler is told: linear layers that a kernel of the library is for, the others, and all of a pass."""

Pass = Callable[[], torch.Tensor]
"""A forward pass on inputs of its own; its logits."""
Step = Callable[[Callable[..., Any]], torch.Tensor]
"""The same by a given function, the model or what torch.compile makes of it."""


def prefill(model: PreTrainedModel, tokens: int) -> Step:
    ids = torch.randint(model.config.vocab_size, (1, tokens), device=model.device)
    return lambda forward: forward(ids, use_cache=False, logits_to_keep=1).logits


def decode(model: PreTrainedModel, batch: int, past: int) -> Step:
    """One token more for each sequence, behind `past` that the cache holds: always the same one, at the same place."""
    cache = StaticCache(config=model.config, max_cache_len=past + 8)
    ids = torch.randint(model.config.vocab_size, (batch, past), device=model.device)
    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    one = torch.randint(model.config.vocab_size, (batch, 1), device=model.device)
    place = torch.full((batch, 1), past, device=model.device)

    def step(forward: Callable[..., Any]) -> torch.Tensor:
        for layer in cache.layers:
            layer.cumulative_length.fill_(past)
        return forward(one, past_key_values=cache, position_ids=place, use_cache=True).logits

    return step


def replayed(run: Pass) -> Pass:
    """The same pass from a CUDA graph. What is compiled, tried or loaded at a first call is so before the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()

    def again() -> torch.Tensor:
        graph.replay()
        return out

    return again


def seconds(run: Pass, repeats: int) -> float:
    """Of one pass, the median of several; the host waits for each, as who reads the token would."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return median(taken)


def switch(model: PreTrainedModel, library: Library, side: str) -> list[str]:
    """Patches the model for that side, or makes it plain again; the names of the patched layers."""
    return patch(model, library) if side == "patched" else unpatch(model) or []


def compared(model: PreTrainedModel, library: Library, step: Step, way: str, rounds: int, repeats: int) -> Any:
    """Times of the three sides in random order, round by round, and how far patched logits are from plain ones.

    torch.compile keeps what it made for either side apart, by the class of the layers."""
    forward: Callable[..., Any] = model
    if way == "compiled":
        torch._dynamo.reset()  # no step counts against the limit of what is compiled for the next
        forward = torch.compile(model, dynamic=False)
    made: dict[str, Pass] = {}
    logits, routed, calls = {}, [], library.calls
    for side in ("plain", "again", "patched"):
        routed = switch(model, library, side)
        made[side] = lambda: step(forward)
        if way != "eager" and model.device.type == "cuda":
            made[side] = replayed(made[side])
        for _ in range(WARM):
            logits[side] = made[side]().float().clone()
    times: dict[str, list[float]] = {side: [] for side in made}
    for _ in range(rounds):
        for side in random.sample(sorted(made), len(made)):
            switch(model, library, side)
            made[side]()  # the first one behind a change of layers
            times[side].append(seconds(made[side], repeats))
    unpatch(model)
    apart = (logits["patched"] - logits["plain"]).abs()
    return {
        "ms": {side: 1e3 * median(taken) for side, taken in times.items()},
        "speedup": ratio(times["plain"], times["patched"]),
        "floor": ratio(times["plain"], times["again"]),
        "layers": len(routed),
        "calls": dict(library.calls - calls),
        "logits_apart": {"most": apart.max().item(), "mean": apart.mean().item(), "std": logits["plain"].std().item()},
        "same_token": (logits["patched"].argmax(-1) == logits["plain"].argmax(-1)).float().mean().item(),
    }


def ratio(plain: list[float], other: list[float]) -> list[float]:
    """The median and the quartiles of the rounds' ratios."""
    low, middle, high = quantiles([a / b for a, b in zip(plain, other)], n=4)
    return [middle, low, high]


@contextmanager
def labelled(model: PreTrainedModel, library: Library) -> Iterator[None]:
    """Has the profiler know calls of linear layers, and whether a kernel is for them."""
    ranges: list[record_function] = []

    def begin(layer: torch.nn.Linear, given: tuple[torch.Tensor, ...]) -> None:
        served = given[0].numel() // layer.in_features in library.rows(layer)
        ranges.append(record_function(SERVED if served else OTHER))
        ranges[-1].__enter__()

    def end(*_: object) -> None:
        ranges.pop().__exit__(None, None, None)

    hooks = [one.register_forward_pre_hook(begin) for one in linear(model).values()]
    hooks += [one.register_forward_hook(end) for one in linear(model).values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def shares(model: PreTrainedModel, library: Library, step: Step) -> dict[str, dict[str, float]]:
    """Microseconds of the kernels of an eager pass (of the calls, on a processor), by side: in layers that are served,
    in other linear layers, and in all of the step."""
    on_gpu = model.device.type == "cuda"
    found = {}
    for side in ("plain", "patched"):
        switch(model, library, side)
        with labelled(model, library):
            step(model)
            with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as profiled:
                for _ in range(WARM):
                    with record_function(WHOLE):
                        step(model)
                if on_gpu:
                    torch.cuda.synchronize()
        events = [one for one in profiled.events() if one.device_type == DeviceType.CPU and one.name in LABELS]
        taken = dict.fromkeys(LABELS, 0.0)
        for one in events:
            taken[one.name] += (kernels_in(one) if on_gpu else one.cpu_time_total) / WARM
        found[side] = taken
    unpatch(model)
    return found


def kernels_in(event: Any) -> float:
    """Microseconds of all kernels that a call of the host began. A range of our own may itself be listed as one."""
    own = sum(kernel.duration for kernel in event.kernels if kernel.name not in LABELS)
    return own + sum(map(kernels_in, event.cpu_children))


@torch.no_grad()
def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each step and way, as it comes. No other one is begun after so many seconds."""
    started, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    model, library = build(arguments.model, device, arguments.merged), Library(arguments.export, every=arguments.every)
    if library.reason:
        raise SystemExit(f"{arguments.export}: {library.reason}; there is nothing to compare")
    print(f"{arguments.model} on {torch.cuda.get_device_name() if device == 'cuda' else 'a processor'}", flush=True)
    what = [("a token", batch, lambda batch=batch: decode(model, batch, arguments.past)) for batch in arguments.batches]
    what += [(f"first of {arguments.prompt}", 1, lambda: prefill(model, arguments.prompt))]
    told = dict[int, dict]()
    for way in [way for way in arguments.ways if device == "cuda" or way != "graph"]:
        for number, (name, batch, make) in enumerate(what):
            if time.monotonic() - started > arguments.seconds:
                print(f"{name} of batch {batch}, {way}: no time is left")
                continue
            step, row = make(), {"model": arguments.model, "what": name, "batch": batch, "way": way}
            if number not in told:
                told[number] = shares(model, library, step)
                print(explained(told[number]))
            try:
                row |= compared(model, library, step, way, arguments.rounds, arguments.repeats)
            except RuntimeError as error:  # one way that fails must not cost the others
                print(f"{name} of batch {batch}, {way}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                unpatch(model)
                continue
            print(described(row), flush=True)
            yield {**row, "us": told[number], "seconds": time.monotonic() - started}
    print(dict(library.calls))


def explained(taken: dict[str, dict[str, float]]) -> str:
    """What a step's kernels take, and how much of it is in the layers."""

    def of(side: str) -> str:
        whole = taken[side][WHOLE] or 1.0
        parts = {name: taken[side][name] for name in (SERVED, OTHER)}
        return f"{side} {whole:.0f} µs, " + ", ".join(f"{one / whole:.0%} in {name}" for name, one in parts.items())

    served = taken["plain"][SERVED] / (taken["patched"][SERVED] or 1.0)
    whole = taken["plain"][WHOLE] / (taken["patched"][WHOLE] or 1.0)
    return f"    kernels: {of('plain')}; {of('patched')}; {SERVED} × {served:.3f}, a step's kernels × {whole:.3f}"


def described(row: dict[str, Any]) -> str:
    (middle, low, high), floor, ms, apart = row["speedup"], row["floor"], row["ms"], row["logits_apart"]
    return (
        f"{row['what']:<13} batch {row['batch']:>3} {row['way']:<8}  {ms['plain']:8.3f} ms → {ms['patched']:8.3f} ms "
        f"({1e3 * row['batch'] / ms['patched']:.0f} tokens/s)  "
        f"{middle:.3f} [{low:.3f}, {high:.3f}]  floor {floor[0]:.3f}  {row['layers']} layers  "
        f"logits ±{apart['most']:.2g} of {apart['std']:.2g}, same token {row['same_token']:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("shapes", "measure"))
    parser.add_argument("model", choices=sorted(BLOCKS))
    parser.add_argument("--export", type=Path, help="a folder that cudal2 export wrote")
    parser.add_argument("--every", action="store_true", help="also kernels that were not surely faster than torch")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of the sequence that a first token is for")
    parser.add_argument("--batches", type=lambda text: [*map(int, text.split(","))], default=[1, 4, 8, 16, 64])
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS, help="of graph, compiled, eager")
    parser.add_argument("--head", action="store_true", help="shapes: those of the head, too")
    parser.add_argument("--merged", action="store_true", help="q, k and v as one product, and gate and up, as in vLLM")
    parser.add_argument("--past", type=int, default=256, help="tokens of each sequence before the one decoded")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=10, help="passes of a side in a round")
    parser.add_argument("--seconds", type=float, default=270, help="after which nothing more is begun")
    parser.add_argument("-o", dest="out", type=Path, help="a file for the figures, written after each step")
    arguments = parser.parse_args()
    if arguments.verb == "shapes":
        asked = problems(arguments.model, [*arguments.batches, arguments.prompt], arguments.head, arguments.merged)
        print(",".join(problem.name for problem in asked))
        return
    if arguments.export is None or set(arguments.ways) - set(WAYS):
        parser.error(f"measure wants --export FOLDER, and --ways out of {', '.join(WAYS)}")
    rows = []
    for row in measure(arguments):
        rows.append(row)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
