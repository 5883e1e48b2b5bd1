"""What vLLM's worker on a processor lacks to be given new weights: an extension, by vLLM's `worker_extension_cls`.

There vLLM multiplies with packed copies of the weights and lets go of the weights themselves, so that TRL has nothing
to load new ones into. vLLM's own `reload_weights` packs again what it reads, but no output layer that shares its
weights with the embedding: that one would go on with its old copy.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor


class Renewing:
    """Methods that a worker gets; vLLM calls them by name (`collective_rpc`)."""

    model_runner: Any
    reload_weights: Any

    def renew(self, weights: Iterable[tuple[str, Tensor]] | None = None, folder: str | None = None) -> None:
        """Takes these weights, named as in the model's checkpoint, or those of the safetensors files in a folder."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.reload_weights(weights_iterator=weights, weights_path=folder)
        for layer in self.model_runner.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)
