"""A vLLM server of its own process: it gets every update's weights, and a run outlives its death."""

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests
import torch
from fakes import FakePool
from test_vllm_sampler import RUN, Pool
from with_vllm import MARKS, SMALL  # noqa: F401

from cudal2.archive import Archive
from cudal2.config import TrainConfig, load
from cudal2.files import asset
from cudal2.policy import vllm_engine
from cudal2.policy.locate import latest_checkpoint, step_of
from cudal2.records import HarnessFault
from cudal2.train import grpo
from cudal2.train.draws import Client, Sampler, ServerGone

pytestmark = MARKS


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of `trl vllm-serve` with the kernel LM, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("server") / "log").open("w+")
    command = [Path(sys.executable).parent / "trl", "vllm-serve", "--model", asset("data", "policy", "cpu")]
    command += ["--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--enforce_eager", "true"]
    command += ["--gpu_memory_utilization", "0.05", "--worker-extension-cls", vllm_engine.EXTENSION]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.Popen(
        list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        kill(process)
        log.seek(0)
        print(log.read()[-4000:])


def kill(process: subprocess.Popen) -> None:
    """With the processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def config(folder: Path, url: str, *more: str) -> TrainConfig:
    where = ["policy.vllm.mode=server", f"policy.vllm.url={url}", "policy.vllm.patience=300"]
    return load("train", [f"run={folder}", "shapes.names=[64_64_64,128_128_128]", *RUN, *where, *more], TrainConfig)


def test_it_writes_what_the_updated_weights_write_and_its_death_costs_nothing_judged(tmp_path, monkeypatch, server):
    url, process = server
    said, sampled = [], Sampler.generate

    def generate(self, prompts, *arguments, **options):
        if len(said) == 2:
            kill(process)
            self.vllm_client.session.mount("http://", requests.adapters.HTTPAdapter())  # without a minute of tries
        found = sampled(self, prompts, *arguments, **options)
        answer = self.vllm_client.generate([prompts[0]], temperature=0.0, max_tokens=40)
        with torch.no_grad():
            ids = torch.tensor([prompts[0]])
            logits = self.model(ids).logits
            whole = self.model.generate(input_ids=ids, do_sample=False, max_new_tokens=40)
        said.append((answer["completion_ids"][0], whole[0, len(prompts[0]) :].tolist(), logits))
        return found

    monkeypatch.setattr(Sampler, "generate", generate)
    monkeypatch.setattr(grpo, "Pool", Pool)
    with pytest.raises(HarnessFault, match=rf"the vLLM server at {url} no longer answers\. Start it again"):
        grpo.run(config(tmp_path / "run", url))
    assert len(said) == 2 and all(with_vllm == without for with_vllm, without, _ in said)
    assert not torch.equal(said[0][2], said[1][2])
    assert step_of(latest_checkpoint(tmp_path / "run")) == 2
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert {sample.origin.step for sample in archive.samples("train", "run")} == {1, 2}


def test_a_server_that_is_not_there_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(grpo, "Pool", FakePool)
    with pytest.raises(ServerGone, match=r"no vLLM server answers at http://127\.0\.0\.1:9\. .*trl vllm-serve") as said:
        grpo.run(config(tmp_path, "http://127.0.0.1:9", "policy.vllm.patience=0"))
    assert "\n" not in str(said.value)


def test_a_server_of_another_kind_is_none():
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(ServerGone):
            Client(f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
