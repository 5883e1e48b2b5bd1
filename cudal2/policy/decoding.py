"""Long completions on a GPU, by transformers' own model: each token is one CUDA graph.

transformers' `generate` copies the whole cache for every token, copies keys and values again for every query head, and
launches a thousand kernels from Python: some 30 ms a token for a model of 135 million parameters. Here keys and values
stay where they are written, and the query heads that share a key head are one product with it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

LONG = 2048
"""Completions of at least so many tokens are worth the graphs. Shorter ones are left to `generate`."""
STRIDE = 512
"""A graph reads a multiple of so many places of the cache, those that may be filled by then. With a new graph the texts
that have ended leave the batch."""
LOOK = 16
"""Tokens between two looks at whether all texts have ended; each look waits for the GPU."""
NAME = "cudal2_grouped"

Draw = Callable[[Tensor, Tensor], Tensor]
"""Takes the ids so far and the scores (rows, vocabulary) and gives each row's next token."""
Finished = Callable[[int, list[int]], None]
"""Takes a row's number and the tokens of its completion."""


def suits(model: Any, tokens: int) -> bool:
    """Whether `complete` is for this model and completions of so many tokens: a Llama on a GPU."""
    return model.device.type == "cuda" and tokens >= LONG and model.config.model_type == "llama"


@torch.no_grad()
def complete(
    model: Any,
    ids: Tensor,
    given: Tensor,
    most: int,
    draw: Draw,
    finished: Finished = lambda row, completion: None,
) -> Tensor:
    """The prompts `ids` (rows, length), padded on the left where the mask `given` is 0, with at most `most` tokens
    each after them, padded on the right, as `generate` returns them.

    `finished` is called once for each row, soon after it has ended, while others are still being written.
    The first draws come from scores that `generate` would compute, too; later ones differ by rounding.
    """
    ends = torch.tensor(model.generation_config.eos_token_id, device=ids.device).view(-1)
    pad, length = model.generation_config.pad_token_id, ids.shape[1]
    written = torch.cat([ids, ids.new_full((len(ids), most), pad)], 1)
    read = model(input_ids=ids, attention_mask=given, position_ids=_positions(given), use_cache=True, logits_to_keep=1)
    step = _Step(model, read.past_key_values, given, length + most)
    scores = read.logits[:, -1].float()
    del read
    ended, told = torch.zeros(len(ids), dtype=torch.bool, device=ids.device), set[int]()
    try:
        for place in range(length, length + most):
            if place % STRIDE == 0:
                step.drop(ended)
            token = torch.where(ended, pad, draw(written[:, :place], scores))
            written[:, place] = token
            ended |= torch.isin(token, ends)
            last = place + 1 == length + most
            if last or (place - length) % LOOK == LOOK - 1:
                over = set(range(len(ids)) if last else ended.nonzero().view(-1).tolist())
                for row in sorted(over - told):
                    finished(row, _until(written[row, length : place + 1], ends))
                told |= over
                if len(told) == len(ids):
                    return written[:, : place + 1]
            scores = step(token, place)
    finally:
        step.close()
    return written


def _until(completion: Tensor, ends: Tensor) -> list[int]:
    """The tokens up to the first that ends a text, with it."""
    places = torch.isin(completion, ends).nonzero().view(-1).tolist()
    return completion[: places[0] + 1 if places else None].tolist()


def _positions(given: Tensor) -> Tensor:
    return (given.long().cumsum(-1) - 1).clamp_(min=0)


class _Step:
    """The model on one more token of each row, whose keys and values go to a `place` that is the same for all rows.

    All inputs lie in tensors of its own, so that a CUDA graph can be replayed. Until it is closed the model's attention
    is `_attend`.
    """

    def __init__(self, model: Any, cache: Any, given: Tensor, longest: int) -> None:
        self._model, self._before = model, model.config._attn_implementation
        rows, length = given.shape
        longest = -(-longest // STRIDE) * STRIDE
        self._kept = _Kept(cache, length, longest)
        device = given.device
        self._token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._position = given.sum(-1, keepdim=True).long()
        # What a row may see: added to its scores. A text's own places are opened as they are written.
        self._mask = torch.full((rows, 1, 1, longest), -torch.inf, dtype=self._kept.dtype, device=device)
        self._mask[:, 0, 0, :length].masked_fill_(given.bool(), 0)
        self._rows = torch.arange(rows, device=device)
        self._all = torch.zeros(rows, model.config.vocab_size, device=device)
        self._graph: Any = None
        self._scores = torch.empty(0)
        AttentionInterface.register(NAME, _attend)
        model.config._attn_implementation = NAME

    def drop(self, ended: Tensor) -> None:
        """Leaves out the rows that have ended; their scores stay as they are. Rows that are left keep their numbers."""
        left = (~ended[self._rows]).nonzero().view(-1)
        if 0 < len(left) < len(self._rows):
            self._rows, self._token, self._graph = self._rows[left], self._token[left], None
            self._position, self._mask = self._position[left], self._mask[left]
            self._kept.keep(left)

    def __call__(self, token: Tensor, place: int) -> Tensor:
        """The scores (rows, vocabulary) after these tokens, one for each row. The next call overwrites them."""
        self._token.copy_(token[self._rows, None])
        self._kept.place.fill_(place)
        size = place // STRIDE * STRIDE + STRIDE
        if size != self._kept.size:
            self._kept.size, self._graph = size, None
        if self._token.device.type == "cuda":
            if self._graph is None:
                self._capture()
            self._graph.replay()
        else:
            self._scores = self._run()
        self._position += 1
        return self._all.index_copy_(0, self._rows, self._scores)

    def _run(self) -> Tensor:
        size = self._kept.size
        self._mask.index_fill_(3, self._kept.place, 0)
        inputs = {"input_ids": self._token, "position_ids": self._position, "past_key_values": self._kept}
        # The weights that autocast casts must not be kept: a later graph would find them gone.
        enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return self._model(**inputs, attention_mask=self._mask[..., :size], use_cache=True).logits[:, -1].float()
        finally:
            torch.set_autocast_cache_enabled(enabled)

    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run()  # libraries take their memory; it writes what the replay writes again
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._scores = self._run()

    def close(self) -> None:
        """Gives the model its attention back, and frees the graph and the cache."""
        self._model.config._attn_implementation = self._before
        self._graph, self._scores = None, torch.empty(0)
        del self._kept


class _Kept:
    """Keys and values in tensors of their final size, in the role of transformers' cache. Of each the first `size`
    places are read; what is added goes to `place`."""

    def __init__(self, cache: Any, length: int, longest: int) -> None:
        self.size, self.place = longest, torch.zeros(1, dtype=torch.long, device=cache.layers[0].keys.device)
        # Under autocast, which casts both for the attention, keys come in float32: the rotation made them so.
        self.dtype = cache.layers[0].values.dtype
        self._pairs = []
        for layer in cache.layers:
            pair = []
            for filled in (layer.keys, layer.values):
                whole = filled.new_zeros((*filled.shape[:2], longest, filled.shape[3]), dtype=self.dtype)
                whole[:, :, :length] = filled
                pair.append(whole)
            layer.keys = layer.values = None  # freed as it is copied
            self._pairs.append(pair)

    def keep(self, rows: Tensor) -> None:
        """Leaves out all other rows, one tensor after the other, so that little more memory is needed."""
        for pair in self._pairs:
            for number, whole in enumerate(pair):
                pair[number] = whole[rows]
                del whole

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, ...]:
        """Adds one place and returns all that are read."""
        for whole, new in zip(self._pairs[layer], (keys, values)):
            whole.index_copy_(2, self.place, new.to(self.dtype))
        return tuple(whole[:, :, : self.size] for whole in self._pairs[layer])


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention of one token: the query heads that share a key head take the role of several tokens, so that the keys
    and values are read once and never repeated."""
    rows, heads, _one, width = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, width).to(key.dtype)
    mask = attention_mask.expand(-1, -1, grouped.shape[2], -1)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # others take no such mask, or plan each size
        found = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(rows, 1, heads, width), None
