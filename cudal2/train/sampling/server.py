"""The client of a vLLM server (`trl vllm-serve`), which has GPUs or a processor of its own."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from typing import Any

import requests
import torch
from safetensors.torch import save_file
from torch import Tensor
from trl.generation.vllm_client import VLLMClient

from cudal2.records import HarnessFault

REMEDY = (
    "Start it again (`trl vllm-serve --model …`, see docs/scale.md), or name another: policy.vllm.url; then start again"
)


class ServerGone(HarnessFault):
    """A vLLM server does not answer."""


class Client(VLLMClient):
    """TRL's client, which can also send weights to a server without a GPU.

    TRL sends weights by NCCL, from GPU to GPU. On a processor they go through a file in the folder for temporary
    files, which the server must share.
    Raises ServerGone where the server does not answer (for a minute, once it has answered), HarnessFault where it
    refuses, and ValueError where it was started without an option that training needs.
    """

    def __init__(self, base_url: str, **arguments: Any) -> None:
        self._weights: Path | None = None
        super().__init__(base_url=base_url, **arguments)

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = 2.0) -> None:
        """Waits so many seconds for a healthy server; TRL's method would wait for ever for a server of another kind."""
        ends = time.monotonic() + total_timeout
        while True:
            with suppress(requests.RequestException):
                if requests.get(f"{self.base_url}/health", timeout=10).ok:
                    return
            if time.monotonic() >= ends:
                raise ServerGone(f"no vLLM server answers at {self.base_url}", REMEDY)
            time.sleep(retry_interval)

    def _ask(self, method: str, url: str, **options: Any) -> dict:
        try:
            answer = self.session.request(method, url, **options)
        except requests.RequestException as error:
            raise ServerGone(f"the vLLM server at {self.base_url} no longer answers", REMEDY) from error
        if answer.status_code != 200:
            said = " ".join(answer.text.split())[:400]
            raise HarnessFault(f"the vLLM server refuses {url}: {said}", "Its terminal says more; then start again")
        return answer.json() if answer.content else {}

    _get = partialmethod(_ask, "GET")
    _post = partialmethod(_ask, "POST")

    def init_communicator(self, device: Any = 0) -> None:
        try:
            if isinstance(device, int) or torch.device(device).type == "cuda":
                super().init_communicator(device)
            else:
                self.get_server_info()
                self._folder = tempfile.TemporaryDirectory(prefix="cudal2-weights-")
                self._weights = Path(self._folder.name)
        except HarnessFault:
            raise
        except RuntimeError as error:  # of TRL, with the option that the server lacks
            raise ValueError(str(error)) from error

    def update_named_params(
        self, metadata: list[tuple[str, str, list[int]]], named_params: Iterator[tuple[str, Tensor]]
    ) -> None:
        if self._weights is None:
            super().update_named_params(metadata, named_params)
            return
        save_file({name: tensor.contiguous() for name, tensor in named_params}, self._weights / "model.safetensors")
        told = {"method": "renew", "kwargs": {"folder": str(self._weights)}}
        self._post(f"{self.base_url}/collective_rpc", json=told)
