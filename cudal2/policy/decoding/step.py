"""One pass of a model over the next few tokens of each text, as a CUDA graph."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

STRIDE = 512
"""On a processor a multiple of so many places of the cache is read, those that may be filled by then."""
NAME = "cudal2_grouped"
WIDTHS, MOST, BYTES = (16, 32, 64, 128), 8, 2048
"""Widths of a head, query heads to a key head, and bytes of a token's in them that the attention on a GPU is for: its
programs need up to 100 KB of shared memory then, which any GPU has (sm_80 to sm_120, by Triton's compiler)."""


class Step:
    """The model on `ahead` tokens of each text, whose keys and values go to places that each text has of its own.

    All inputs lie in tensors of its own, so that a CUDA graph can be replayed. Until it is closed the model's attention
    is `_flash` on a GPU and `_masked` on a processor.
    """

    def __init__(self, model: Any, cache: Any, given: Tensor, longest: int, ahead: int) -> None:
        self._model, self._before = model, model.config._attn_implementation
        rows, self._length = given.shape
        device = given.device
        self._graphs = device.type == "cuda"
        longest = longest + ahead if self._graphs else _up(longest + ahead)
        self._rows, self._scores = list(range(rows)), torch.empty(0)
        self._graph: Any = None
        self._kept = _Kept(cache, self._length, longest)
        self._heads = model.config.num_attention_heads // model.config.num_key_value_heads
        self._ahead = torch.arange(ahead, device=device)
        self._tokens = torch.zeros(rows, ahead, dtype=torch.long, device=device)
        self._place = torch.full((rows, 1), self._length, device=device)
        self._padding = self._length - given.sum(-1, keepdim=True).long()
        AttentionInterface.register(NAME, _flash if self._graphs else _masked)
        model.config._attn_implementation = NAME

    def __call__(self, rows: list[int], tokens: list[list[int]], written: list[int]) -> Tensor:
        """The scores (rows, ahead, vocabulary) after each of `tokens`, the texts' last ones and drafts of at most
        `ahead` - 1 more. `written` says how long each completion is. The next call overwrites them.

        Each call's rows are among those of the call before.
        """
        if 2 * len(rows) <= len(self._rows):
            self._keep(rows)
            self._graph = None
        number = {row: place for place, row in enumerate(self._rows)}
        here = torch.tensor([number[row] for row in rows], device=self._tokens.device)
        padded = [[*these, *[0] * (len(self._ahead) - len(these))] for these in tokens]
        self._tokens.index_copy_(0, here, torch.tensor(padded, device=here.device))
        places = torch.tensor(written, device=here.device)[:, None] + self._length - 1
        self._place.index_copy_(0, here, places)
        if self._graphs:
            if self._graph is None:
                self._capture()
            self._graph.replay()
        else:
            self._kept.size = _up(self._length + max(written) - 1 + len(self._ahead))
            self._scores = self._run()
        return self._scores if len(rows) == len(self._rows) else self._scores[here]

    def _keep(self, rows: list[int]) -> None:
        """Leaves out all other rows."""
        if rows != self._rows:
            left = torch.tensor([self._rows.index(row) for row in rows], device=self._tokens.device)
            self._rows, self._tokens, self._place = list(rows), self._tokens[left], self._place[left]
            self._padding = self._padding[left]
            self._kept.keep(left)

    def _run(self) -> Tensor:
        kept = self._kept
        kept.places = self._place + self._ahead
        inputs = {"input_ids": self._tokens, "position_ids": kept.places - self._padding, "past_key_values": kept}
        sees = {"attention_mask": None if self._graphs else self._mask(), "first": self._padding, "last": self._place}
        # The weights that autocast casts must not be kept: a later graph would find them gone.
        enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return self._model(**inputs, **sees, use_cache=True).logits.float()
        finally:
            torch.set_autocast_cache_enabled(enabled)

    def _mask(self) -> Tensor:
        kept, places = self._kept, torch.arange(self._kept.size)
        seen = (places >= self._padding[:, :, None]) & (places <= kept.places[:, :, None])
        mask = torch.zeros(seen.shape, dtype=kept.precision).masked_fill_(~seen, -torch.inf)
        return mask.repeat(1, self._heads, 1)[:, None]

    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run()  # libraries take their memory; it writes what the replay writes again
        torch.cuda.current_stream().wait_stream(stream)
        self._scores = torch.empty(0)  # its memory is the old graph's
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
    places are read; what is added goes to `places` (rows, ahead)."""

    def __init__(self, cache: Any, length: int, longest: int) -> None:
        self.size, self.places = longest, torch.empty(0)
        values = cache.layers[0].values
        # Under autocast, which casts both for the attention, transformers keeps them in float32.
        # Not named `dtype`: accelerate casts whatever a forward returns and has one of 16 bits.
        cast = torch.is_autocast_enabled(values.device.type)
        self.precision = torch.get_autocast_dtype(values.device.type) if cast else values.dtype
        self._pairs = []
        for layer in cache.layers:
            pair = []
            for filled in (layer.keys, layer.values):
                whole = filled.new_zeros((*filled.shape[:2], longest, filled.shape[3]), dtype=self.precision)
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
        """Adds the tokens' own and returns all that are read."""
        places = self.places[:, None, :, None].expand(keys.shape)
        for whole, new in zip(self._pairs[layer], (keys, values)):
            whole.scatter_(2, places, new.to(self.precision))
        return tuple(whole[:, :, : self.size] for whole in self._pairs[layer])


def fits(width: int, heads: int, itemsize: int) -> bool:
    """Whether attention on a GPU can be `_flash`, for heads of this width, so many to a key head, in so many bytes."""
    return width in WIDTHS and heads <= MOST and width * heads * itemsize <= BYTES


def _masked(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """The query heads that share a key head take the role of more tokens, so that keys and values are read once and
    never repeated."""
    rows, heads, ahead, width = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, width).to(key.dtype)
    found = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return found.reshape(rows, heads, ahead, width).transpose(1, 2), None


def _flash(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **where: Any
) -> tuple[Tensor, None]:
    from cudal2.policy.decoding.attention import attend  # Triton comes with torch where there is a GPU

    found = attend(query.to(key.dtype), key, value, where["first"], where["last"], scaling)
    return found.transpose(1, 2), None


def _up(places: int) -> int:
    return -(-places // STRIDE) * STRIDE
