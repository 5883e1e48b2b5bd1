"""Several processes train as one does: they ask for the same kernels, whatever DeepSpeed shares out among them.

The policy has twenty thousand weights and what it writes stands for kernels (`interrupted.py`); the processes, the
worker, DeepSpeed and the files are real. All runs share one cache of verdicts, so equal kernels have equal rewards.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import fakes
import interrupted
import pytest
import torch
from hasty import HASTY
from processes import below, wait_for
from safetensors.torch import load_file
from thorough import some

from cudal2 import cli
from cudal2.archive import Archive
from cudal2.config import PolicyConfig
from cudal2.policy.locate import latest_checkpoint
from cudal2.policy.model import load as load_policy
from cudal2.tracking import read_metrics

pytestmark = pytest.mark.parts

STEPS = ["trainer.steps=3", "trainer.save_steps=2", "shapes.names=[64_64_64,64_72_80]"]
LAUNCHED = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
DEEPSPEED = some(("zero3", "zero2"), 2)
SHORT = ["policy.max_new_tokens=8", *HASTY, "neighbours=0"]


class Place:
    """A folder with a policy, a cache of verdicts, and the runs of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = fakes.save_policy(folder / "policy")
        self.cache = f"worker.cache={folder / 'cache'}"

    def command(self, name: str, *more: str, launched: bool = True) -> list[str]:
        tiny = [word for word in fakes.tiny(self.folder / name, self.policy) if "deepspeed" not in word]
        words = [*tiny, *STEPS, *HASTY, self.cache, *more]
        return [sys.executable, *(LAUNCHED if launched else []), interrupted.__file__, "train", *words]

    def train(self, name: str, *more: str, launched: bool = True) -> Path:
        run(self.command(name, *more, launched=launched))
        return self.folder / name


def run(words: list[str]) -> str:
    """What the command said; it and all below it are gone afterwards."""
    with subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said = process.communicate(timeout=300)[0]
        except BaseException:
            kill(process)
            raise
    assert process.returncode == 0, said
    return said


def kill(process: subprocess.Popen) -> None:
    """At once: the launcher would end the processes that it started in order."""
    for pid in [*below(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("processes"))


class Runs(dict[str, Path]):
    """Runs by name, each trained when it is first asked for: `one` process, `two`, and two under `zero2` and `zero3`,
    with `-adapters` of adapters."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __missing__(self, name: str) -> Path:
        kind, _, adapters = name.partition("-")
        more = ["policy.lora.rank=4"] if adapters else []
        if kind in DEEPSPEED:
            more.append(f"trainer.deepspeed={kind}")
        self[name] = self.place.train(name, *more, launched=kind != "one")
        return self[name]


@pytest.fixture(scope="module")
def runs(place) -> Runs:
    return Runs(place)


def asked(folder: Path) -> list[list[tuple]]:
    """What each step asked the worker for, and what came of it: kernel, status and reward of every sample."""
    with Archive.of(folder, create=False) as archive:
        samples = list(archive.samples("train", folder.name))
    steps = sorted({sample.origin.step for sample in samples})
    told = [(sample.origin.step, (sample.source_hash, sample.status, sample.origin.reward)) for sample in samples]
    return [[what for step, what in told if step == number] for number in steps]


@pytest.mark.parametrize("name", ["two", *DEEPSPEED])
def test_the_same_kernels_are_asked_for_and_earn_the_same(runs, name):
    expected, found = asked(runs["one"]), asked(runs[name])
    assert [len(step) for step in found] == [16, 16, 16]
    assert found == expected
    rows = [read_metrics(runs[which] / "metrics.jsonl") for which in ("one", name)]
    for one, other in zip(*rows, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("name", ["two", *DEEPSPEED])
def test_the_policy_that_comes_out_is_whole_on_one_process(runs, name):
    """And has learnt the same. Adam's steps are as long where a gradient is next to nothing, and there the order of a
    sum decides their direction: so single weights may differ, but not the whole of what was learnt."""
    expected, found = (load_file(latest_checkpoint(runs[which]) / "model.safetensors") for which in ("one", name))
    start = load_file(runs.place.policy / "model.safetensors")
    assert found.keys() == expected.keys() == start.keys()
    for key in expected:
        apart, learnt = (torch.linalg.vector_norm(one[key] - expected[key]) for one in (found, start))
        assert apart < 0.02 * learnt, key


@pytest.mark.parametrize("name", DEEPSPEED)
def test_killed_in_the_middle_it_goes_on_as_if_it_had_not_been(place, runs, name):
    killed = place.command("killed" + name, f"trainer.deepspeed={name}")
    folder = place.folder / ("killed" + name)
    process = subprocess.Popen(killed, env=ENVIRONMENT | {"HANG_AT": "40"}, start_new_session=True)
    try:
        assert wait_for(lambda: len(read_metrics(folder / "metrics.jsonl")) == 2, 300)
        assert wait_for(lambda: latest_checkpoint(folder), 60)
    finally:
        kill(process)
        process.wait()
    assert latest_checkpoint(folder).name == "checkpoint-2"
    place.train("killed" + name, f"trainer.deepspeed={name}")
    assert asked(folder) == asked(runs[name])
    weights = [load_file(latest_checkpoint(path) / "model.safetensors") for path in (folder, runs[name])]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_what_zero3_made_is_evaluated_on_one_process(place, runs):
    assert evaluated(place, runs["zero3"]) == 4


def test_another_number_of_processes_cannot_take_the_shares(place, runs):
    assert latest_checkpoint(runs["zero3"])
    words = place.command("zero3", "trainer.deepspeed=zero3", "trainer.steps=4")
    words[words.index("--nproc_per_node=2")] = "--nproc_per_node=1"
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode and "saved by 2 processes" in done.stderr


def test_adapters_shared_out_ask_for_the_same(runs):
    assert asked(runs["zero3-adapters"]) == asked(runs["one-adapters"])


@pytest.mark.parametrize("name", ["one-adapters", "zero3-adapters"])
def test_adapters_are_saved_merged_evaluated_and_exported(place, runs, name):
    folder = runs[name]
    checkpoint = latest_checkpoint(folder)
    assert (checkpoint / "adapter_model.safetensors").is_file() and not (checkpoint / "model.safetensors").exists()
    saved = load_file(checkpoint / "adapter_model.safetensors")
    assert all(weight.ndim == 2 and weight.numel() for weight in saved.values())
    merged, _ = load_policy(PolicyConfig(path=str(folder)))
    before, _ = load_policy(PolicyConfig(path=str(place.policy)))
    moved = [not torch.equal(a, b) for a, b in zip(merged.parameters(), before.parameters(), strict=True)]
    assert any(moved)
    assert evaluated(place, folder) == 4
    told("eval", str(folder), "shapes=64_64_64", *SHORT, place.cache)
    told("export", str(folder), "worker.threads=1")
    assert (folder / "export/manifest.json").is_file()


def told(*words: str) -> None:
    """A verb in this process, which has imported all that it needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cudal2.policy.writer.read", interrupted.kernel)
        assert cli.main(words) == 0


def evaluated(place: Place, folder: Path) -> int:
    """How many kernels `cudal2 eval` had the policy of that run write."""
    out = place.folder / f"eval-{folder.name}"
    words = ["source=policy", "samples=4", "shapes=64_64_64", f"policy.path={folder}"]
    told("eval", str(out), *words, *SHORT, place.cache)
    assert (out / "eval/results.csv").is_file()
    with Archive.of(out) as archive:
        return len(list(archive.samples("eval")))
