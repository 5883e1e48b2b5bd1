"""The doctor says what is missing and how to get it, and fails only for what the CPU loop needs."""

import json
from collections import namedtuple

import torch

from cudal2 import cli, doctor
from cudal2.policy import vllm_engine
from cudal2.worker import build
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.sandbox import jail

CACHED = (build.compiler, build.compiler_name, toolchain.find, toolchain.nvdisasm)
CHECKS = [
    doctor.Check("compiler", True, "g++ 12", needed=True),
    doctor.Check("GPU", False, "none", "buy one"),
]


def test_only_what_is_needed_makes_it_unhealthy():
    assert doctor.healthy(CHECKS)
    assert not doctor.healthy([*CHECKS, doctor.Check("jail", False, "", "install one", needed=True)])
    text = doctor.describe(CHECKS)
    assert "buy one" in text and "can run" in text


def test_every_missing_thing_comes_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(jail, "works", lambda kind: False)
    monkeypatch.setattr(build.shutil, "which", lambda *_, **__: None)
    for module in (doctor, toolchain, vllm_engine):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1 << 20))
    for cached in CACHED:
        cached.cache_clear()
    checks = {check.name: check for check in doctor.run(str(tmp_path / "not" / "yet"))}
    assert not doctor.healthy(list(checks.values()))
    for name in ("g++", "jail", "torch", "pyseccomp", "cache", "vllm", "wandb", "nvcc", "nvdisasm", "CUTLASS headers"):
        assert not checks[name].ok and checks[name].remedy, name
    for cached in CACHED:
        cached.cache_clear()


def test_a_gpu_comes_with_its_target_or_with_what_it_lacks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    found = {}
    for capability in ((9, 0), (7, 5)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        found[capability] = doctor._gpu()
    assert found[9, 0].ok and "target=sm_90a" in found[9, 0].detail
    assert not found[7, 5].ok and "a card" in found[7, 5].detail and "arch.py" in found[7, 5].remedy


def test_command_prints_json_and_exits_by_health(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run", lambda cache: CHECKS)
    assert cli.main(["doctor", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["healthy"] and [check["name"] for check in printed["checks"]] == ["compiler", "GPU"]
    monkeypatch.setattr(doctor, "run", lambda cache: [doctor.Check("jail", False, "", "fix it", needed=True)])
    assert cli.main(["doctor"]) == 1
    assert "fix it" in capsys.readouterr().out
