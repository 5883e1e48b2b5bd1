"""vLLM, beside the wheel of an export: it says the same, and our operator is what multiplies."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest
import tiny_chat
from exported import TN, wheel, write
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


def said(model, folder, *path):
    """What vLLM says in a process of its own, whatever it keeps in `folder`."""
    more = {"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(folder / "cache"), "PYTHONPATH": ":".join(map(str, path))}
    command = [sys.executable, "-P", str(BESIDE), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT | more, cwd="/")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def installed(folder, device, *problems):
    """The unpacked wheel of an export of these, for any number of threads, and up to 16 rows."""
    here = msgspec.structs.replace(HERE, device=device, threads=0)
    kernels = {one: (TN, 1.5) for one in problems}
    write(folder / "export", kernels, rows=dict.fromkeys(problems, (1, 16)), environment=here)
    with zipfile.ZipFile(wheel(folder / "export", folder)) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_it_says_the_same_and_kernels_multiply(model, tmp_path):
    """One kernel is missing; that layer is vLLM's own."""
    problems = [Problem(8, *map(int, one.split("_")), "tn") for one in LAYERS[:3]]
    (plain, _), (ours, _) = (
        said(model, tmp_path),
        said(model, tmp_path, installed(tmp_path, processor.name(), *problems)),
    )
    assert "calls" not in plain and ours["said"] == plain["said"]
    assert ours["layers"] == LAYERS[:3]
    assert ours["calls"]["kernel"] >= 3 * 11, "three layers, at each word"
    assert set(ours["calls"]) <= {"kernel", "no faster kernel for this shape"}, "a profiling run has many rows"


def test_an_export_for_another_device_leaves_vllm_alone(model, tmp_path):
    path = installed(tmp_path, "another processor", Problem(8, 32, 32, "tn"))
    found, _ = said(model, tmp_path, path)
    assert found["layers"] == [] and found["calls"] == {}
