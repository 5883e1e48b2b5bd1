"""An extension (`worker_extension_cls`) that lets vLLM's worker on a processor take new weights.

There vLLM multiplies with packed copies and frees the weights themselves, so that TRL cannot load new ones. vLLM's own
`reload_weights` packs the weights that it reads, but not an output layer that shares its weights with the embedding:
this layer would keep its old copy.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor


class Renewing:
    """Methods added to vLLM's worker, which calls them by name (`collective_rpc`)."""

    model_runner: Any
    reload_weights: Any

    def renew(self, weights: Iterable[tuple[str, Tensor]] | None = None, folder: str | None = None) -> None:
        """Takes these weights, named as in the model's checkpoint, or those of the safetensors files in a folder."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.reload_weights(weights_iterator=weights, weights_path=folder)
        for layer in self.model_runner.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)
