"""From a source and an edit of it to a verdict, with the GPU's parts replaced by those of test_bench; and on a GPU."""

import random
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from fake_gpu import PROBLEM
from toolkit import needs_toolkit

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, Shift, Status, to_json
from cudal2.target import find
from cudal2.worker.worker import Worker

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda import backend
from cudal2.worker.cuda.compile import cubin
from tests.worker.cuda.test_bench import RECORDING, Runner, judge  # noqa: F401

SOURCE = (Path(__file__).parent / "kernels" / "mma.cu").read_text()


@pytest.fixture
def worker(judge, monkeypatch, tmp_path):  # noqa: F811
    """A worker that builds and inspects in earnest; what a launcher would launch, and the GPU, are made up."""
    needs_toolkit()
    gpu = SimpleNamespace(target=find("sm_90a"), floor=lambda *_: 1e-7, name="a GPU", uuid="fake", multiprocessors=132)
    monkeypatch.setattr(backend.device, "find", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(backend, "CudaBench", lambda *_: judge)
    monkeypatch.setattr(type(judge.vendor), "versions", lambda self: "none", raising=False)
    libraries = []
    monkeypatch.setattr(
        backend.session, "record", lambda library, *_: libraries.append(library) or to_json(RECORDING).encode()
    )
    loaded, load = [], Runner.load
    monkeypatch.setattr(Runner, "load", lambda self, packed, *to: loaded.append(packed) or load(self, packed, *to))
    with Worker(WorkerConfig(cache=str(tmp_path / "cache")), "sm_90a") as worker:
        worker.loaded, worker.libraries = loaded, libraries  # type: ignore[attr-defined]
        yield worker


def of(worker: Worker, problem: Problem, *moves) -> Candidate:
    """SOURCE with an edit that makes these moves."""
    plain = Candidate(SOURCE, problem, worker.target.name)
    made = worker.backend._build(plain, None)
    edit = cubin.made_for(made.cubin, made.resources[0].kernel, *moves)
    return msgspec.structs.replace(plain, edit=edit)


def test_an_edit_without_moves_is_judged_as_its_source(worker) -> None:
    edited = of(worker, PROBLEM)
    source, same = worker.evaluate(msgspec.structs.replace(edited, edit=None)), worker.evaluate(edited)
    assert not same.cached and source.key != same.key
    assert worker.loaded[0] == worker.loaded[1] and worker.libraries[0] == worker.libraries[1]
    assert source.status is same.status is Status.OK, same.reason
    assert same.log == source.log and same.rho == pytest.approx(source.rho, rel=0.1)
    assert same.speedup == pytest.approx(source.speedup, rel=0.02)
    assert worker.evaluate(edited).cached


def test_what_runs_and_what_is_exported_is_the_edited_cubin(worker) -> None:
    edited = of(worker, PROBLEM, Shift(5, 6))
    plain = worker.build(msgspec.structs.replace(edited, edit=None)).launchable
    launchable = worker.build(edited).launchable
    assert launchable.cubin == cubin.apply(plain.cubin, edited.edit) != plain.cubin
    assert worker.evaluate(edited).ok
    assert launchable.cubin in worker.loaded[-1] and plain.cubin not in worker.loaded[-1]
    assert launchable.cubin in launchable.library and plain.cubin not in launchable.library
    assert worker.libraries[-1] == launchable.library


def test_an_edit_that_does_not_fit_is_rejected_before_anything_runs(worker) -> None:
    fitting = of(worker, PROBLEM)
    for edit, said in (
        (Edit(fitting.edit.kernel, "0" * 64), "another cubin"),
        (msgspec.structs.replace(fitting.edit, moves=(Shift(0, 10**6),)), "outside"),
        (Edit("nobody", fitting.edit.sha256), "nobody"),
    ):
        verdict = worker.evaluate(msgspec.structs.replace(fitting, edit=edit))
        assert (verdict.status, verdict.timings) == (Status.REJECTED, ()) and said in verdict.reason
        assert said in verdict.log
    assert not worker.loaded and not worker.libraries


def test_the_gate_is_asked_again_about_what_an_edit_made(worker, monkeypatch) -> None:
    inspected, edited = [], of(worker, PROBLEM, Shift(5, 6))
    honest = backend.gate.inspect

    def refuse(built, *rest):
        inspected.append(built.cubin)
        found = honest(built, *rest)
        return (backend.gate.Finding("clock_read", "as if the edit had made one"), *found)

    monkeypatch.setattr(backend.gate, "inspect", refuse)
    verdict = worker.evaluate(edited)
    assert verdict.status is Status.REJECTED and "clock_read" in verdict.reason
    assert inspected == [cubin.apply(worker.backend._build(edited, None).cubin, edited.edit)]


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from cudal2.target import for_capability

    target = for_capability(*torch.cuda.get_device_capability()).name
    config = WorkerConfig(cache=str(tmp_path_factory.mktemp("cache")), run_seconds=6)
    with Worker(config, target) as worker:
        yield worker


LARGE = Problem(512, 512, 512)


@pytest.mark.gpu
def test_on_a_gpu_an_edit_without_moves_is_as_fast_as_its_source(on_gpu) -> None:
    edited = of(on_gpu, LARGE)
    source, same = on_gpu.evaluate(msgspec.structs.replace(edited, edit=None)), on_gpu.evaluate(edited)
    assert source.ok and same.ok, same.reason
    assert same.speedup == pytest.approx(source.speedup, rel=0.03)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["flipped", "truncated", "empty", "zeros"])
def test_on_a_gpu_a_damaged_cubin_is_a_verdict_and_the_worker_goes_on(on_gpu, kind: str) -> None:
    candidate, rng = of(on_gpu, LARGE), random.Random(0)
    whole = on_gpu.build(candidate).launchable
    start, size = cubin.code_of(whole.cubin, candidate.edit.kernel)
    bad = {"truncated": whole.cubin[: start + size // 2], "empty": b"", "zeros": bytes(len(whole.cubin))}
    for number in range(6 if kind == "flipped" else 1):
        code = bytearray(whole.cubin)
        for _ in range(8 << number):
            code[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
        outcome = on_gpu.measure(msgspec.structs.replace(whole, cubin=bad.get(kind, bytes(code))), LARGE)
        assert outcome.status is not Status.OK or number < 2, "hundreds of flipped bits do not matter"
        assert bool(outcome.timings) == (outcome.status is Status.OK)
    assert on_gpu.measure(whole, LARGE).status is Status.OK
