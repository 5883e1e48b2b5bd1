"""What language models multiply: linear layers by name, such as `qwen2.5-7b.qkv@8` (eight tokens), and lists of them.

`data/shapes/llm.toml` holds the sizes that the models' configurations state. What servers compute as one product is
one layer: q, k and v (`qkv`), gate and up (`gate_up`). A head is asked for few rows, since logits are of each
sequence's last token alone, and an expert for fewer than all, since it gets some of the tokens.
"""

import random
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache

import msgspec

from cudal2.files import asset

ROWS = tuple(1 << power for power in range(14))
"""How many tokens the lists hold each layer for: 1, 2, 4, … 8192. A name may state any number."""
HEAD_ROWS, EXPERT_ROWS = 512, 1024
"""The most rows of a head and of an expert in the lists."""


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of DeepSeek's attention: ranks of what queries, and keys and values, are computed from; and of a head, the
    parts of its keys without and with a rotation, and its values."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's sizes, as its configuration (`source`) states them; 0 is what it has none of."""

    family: str
    source: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    intermediate: int = 0
    expert: int = 0
    gated: bool = True
    latent: Latent | None = None
    biases: tuple[str, ...] = ()


class Layer(msgspec.Struct, frozen=True):
    """A linear layer: `n` outputs of `k` inputs, whether a bias is added, and the most rows the lists ask it for."""

    n: int
    k: int
    bias: bool = False
    most: int = ROWS[-1]


@cache
def models() -> Mapping[str, Model]:
    """Every model by its name."""
    text = asset("data", "shapes", "llm.toml").read_text()
    return msgspec.convert(tomllib.loads(text), dict[str, Model])


@cache
def layers(model: str) -> Mapping[str, Layer]:
    """A model's layers by name; ValueError lists the models that are known."""
    if model not in models():
        raise ValueError(f"model {model!r} is not known; choose one of {', '.join(models())}")
    of = models()[model]
    found = {name: Layer(n, k, name in of.biases, most) for name, n, k, most in _sizes(of)}
    if unknown := set(of.biases) - found.keys():
        raise ValueError(f"{model} in data/shapes/llm.toml has no layer {', '.join(sorted(unknown))}")
    return found


def _sizes(of: Model) -> Iterator[tuple[str, int, int, int]]:
    """Name, outputs, inputs and most rows of each layer."""
    most, wide = ROWS[-1], 2 if of.gated else 1
    if one := of.latent:
        yield "q_a", one.q_rank, of.hidden, most
        yield "q_b", of.heads * (one.nope + one.rope), one.q_rank, most
        yield "kv_a", one.kv_rank + one.rope, of.hidden, most
        yield "kv_b", of.heads * (one.nope + one.value), one.kv_rank, most
        yield "out", of.hidden, of.heads * one.value, most
    else:
        yield "qkv", (of.heads + 2 * of.kv_heads) * of.head_dim, of.hidden, most
        yield "out", of.hidden, of.heads * of.head_dim, most
    for start, width, rows in ("", of.intermediate, most), ("expert_", of.expert, EXPERT_ROWS):
        if width:
            yield f"{start}{'gate_up' if of.gated else 'up'}", wide * width, of.hidden, rows
            yield f"{start}down", of.hidden, width, rows
    yield "head", of.vocab, of.hidden, HEAD_ROWS


def find(name: str) -> tuple[int, Layer]:
    """The rows and the layer of a name such as `qwen2.5-7b.qkv@8`.

    Raises ValueError, which lists what is known, for any other text.
    """
    model, _, rest = name.rpartition(".")
    layer, _, rows = rest.partition("@")
    if layer not in (known := layers(model)):
        raise ValueError(f"{model} has no layer {layer!r}; choose one of {', '.join(known)}")
    if not rows.isdecimal():
        raise ValueError(f"layer {name!r}: write how many rows behind it, such as {model}.{layer}@8")
    return int(rows), known[layer]


def names(families: Collection[str] | None = None) -> list[str]:
    """Every layer of every model (of these families), for each of ROWS that it is asked for."""
    return [
        f"{model}.{name}@{rows}"
        for model, of in models().items()
        if families is None or of.family in families
        for name, layer in layers(model).items()
        for rows in ROWS
        if rows <= layer.most
    ]


def families() -> tuple[str, ...]:
    """Every family, in the order of the file."""
    return tuple(dict.fromkeys(model.family for model in models().values()))


def sample(count: int, seed: int) -> list[str]:
    """`count` of all `names`, no product twice; every beginning has each model and each number of rows equally often.

    Where all of a model's products are drawn, the others go on. The same for a seed; a greater count adds to it.
    """
    left = [(name.rpartition(".")[0], find(name), name) for name in random.Random(seed).sample(names(), len(names()))]
    models_used, rows_used = Counter[str](), Counter[int]()
    drawn, chosen = set[tuple[int, int, int]](), list[str]()

    def share(entry: tuple[str, tuple[int, Layer], str]) -> int:
        model, (rows, _), _ = entry
        return models_used[model] * len(models()) + rows_used[rows] * len(ROWS)

    while left and len(chosen) < count:
        model, (rows, layer), name = best = min(left, key=share)
        left.remove(best)
        if (product := (rows, layer.n, layer.k)) not in drawn:
            drawn.add(product)
            chosen.append(name)
            models_used[model] += 1
            rows_used[rows] += 1
    return chosen
