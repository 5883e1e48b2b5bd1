"""vLLM, beside the wheel of an export: it says the same, and our operator is what multiplies."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import tiny_chat
from beside_vllm import DRAWN, PROMPTS, SMALL
from exported import TN, plain, wheel, write
from processes import wait_for
from specimens import HERE
from with_vllm import ENVIRONMENT, MARKS

from cudal2.exported import processor
from cudal2.problem import Problem

pytestmark = MARKS
BESIDE = Path(__file__).parents[1] / "helpers/beside_vllm.py"
LAYERS = ["96_32", "32_32", "128_32", "32_64"]
"""N and K of the tiny model's layers as vLLM joins them: queries, keys and values; output; gate and up; down."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_chat.save(tmp_path_factory.mktemp("model"), ["What is a matrix? A table of numbers."] * 3)
    found = json.loads((folder / "config.json").read_text())
    one_head = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}  # vLLM knows none of 16 elements
    (folder / "config.json").write_text(json.dumps(found | one_head))
    return folder


@pytest.fixture(scope="module")
def alone(model):
    """What vLLM says without us, in each type of numbers."""
    found = said(model, "float16", "bfloat16")
    assert "calls" not in found
    return found["said"]


def environment(model, *path):
    """What vLLM keeps of a model is there for all, whether or not an export is on the path."""
    more = {"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": f"{model}-cache", "PYTHONPATH": ":".join(map(str, path))}
    return os.environ | ENVIRONMENT | more


def said(model, *types, path=()):
    """What vLLM says in a process of its own."""
    command = [sys.executable, "-P", str(BESIDE), str(model), *types]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(model, *path), cwd="/")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def serving(model, folder, dtype, *path):
    """`vllm serve`, in its own processes; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if value]
    words += ["--no-enable-prefix-caching", "--enforce-eager", "--host=127.0.0.1", f"--port={port}", f"--dtype={dtype}"]
    command = [Path(sys.executable).parent / "vllm", "serve", model, *words]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment(model, *path), cwd="/")
    try:
        assert wait_for(lambda: server.poll() is not None or answers(port), 240), "no answer"
        assert server.poll() is None, (folder / "log").read_text()[-4000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


def answers(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def installed(folder, device, kernels):
    """The unpacked wheel of an export of problem → source, for any number of threads, and up to 16 rows."""
    here = msgspec.structs.replace(HERE, device=device, threads=0)
    measured = {problem: (source, 1.5) for problem, source in kernels.items()}
    write(folder / "export", measured, rows=dict.fromkeys(kernels, (1, 16)), environment=here)
    with zipfile.ZipFile(wheel(folder / "export", folder)) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def problem(layer, dtype):
    return Problem(8, *map(int, layer.split("_")), "tn", dtype=dtype)


def test_it_says_the_same_and_kernels_multiply(model, alone, tmp_path):
    """One kernel is missing; that layer is vLLM's own."""
    path = installed(tmp_path, processor.name(), {problem(one, "fp16"): TN for one in LAYERS[:3]})
    ours = said(model, "float16", path=[path])
    assert ours["said"]["float16"] == alone["float16"]
    assert ours["layers"] == LAYERS[:3]
    assert ours["calls"]["kernel"] >= 3 * 11, "three layers, at each word"
    assert set(ours["calls"]) <= {"kernel", "no faster kernel for this shape"}, "a profiling run has many rows"


def test_its_server_says_the_same_in_bf16_and_kernels_multiply(model, alone, tmp_path):
    """Over HTTP; the kernels write down their calls, since they are made in a process of the server's own."""
    calls = tmp_path / "calls"
    calls.touch()
    counts = f'if (FILE* file = fopen("{calls}", "ab")) {{ fputc(33, file); fclose(file); }}\n    for (int i'
    kernels = {}
    for layer in LAYERS:
        one = problem(layer, "bf16")
        kernels[one] = f"#include <cstdio>\n{plain(one).replace('for (int i', counts, 1)}"
    path = installed(tmp_path, processor.name(), kernels)
    with serving(model, tmp_path, "bfloat16", path) as url:
        before = calls.stat().st_size
        body = json.dumps({"model": str(model), "prompt": PROMPTS, "return_token_ids": True} | DRAWN).encode()
        request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            choices = json.load(answer)["choices"]
    assert [one["token_ids"] for one in sorted(choices, key=lambda one: one["index"])] == alone["bfloat16"]
    assert calls.stat().st_size - before >= len(LAYERS) * 11, "four layers, at each word"


def test_an_export_for_another_device_leaves_vllm_alone(model, tmp_path):
    path = installed(tmp_path, "another processor", {Problem(8, 32, 32, "tn"): TN})
    found = said(model, "bfloat16", path=[path])
    assert found["layers"] == [] and found["calls"] == {}
