"""The bench from a recording to a verdict's fields, with the GPU's parts replaced by ordinary memory and Python."""

import os
from types import SimpleNamespace

import msgspec
import pytest
import torch
from fake_gpu import PROBLEM, Candidate, FakeVendor
from msgspec.structs import replace

from cudal2.config import WorkerConfig
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Layout
from cudal2.records import HarnessFault, Status
from cudal2.target import find
from cudal2.worker.cuda import plan, session
from cudal2.worker.gpu import buffers
from cudal2.worker.outcome import CandidateFailed

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda import bench
from cudal2.worker.cuda.vendor.baselines import Tuning

SECONDS = {"torch-nn": 2.2e-6, "torch-tn": 2.4e-6, "cublas-nn": 2e-6, "cublas-tn": 2.1e-6, "cublaslt-auto-tn": 2.05e-6}
KERNEL = plan.KernelLaunch("k", (1, 1, 1), (1, 1, 1), (0, 0, 0), 0, False, 0, -1, ())


class RightAtFirst(Candidate):
    def call(self, number: int) -> None:
        self.write(number, self.multiply(number) * (1 if self.calls <= 6 else 2))


class Memory:
    def __init__(self, nbytes: int) -> None:
        self.tensor, self.closed = torch.zeros(nbytes // 2, dtype=torch.int16), False
        self.fd = os.memfd_create("buffers")

    def close(self) -> None:
        self.closed = True


class Vendor(FakeVendor):
    def prepare(self, problem, sets):
        for name in ("nn", "tn"):
            assert all(a.shape == (problem.m, problem.k) for a, _, _ in sets(name))
        return Tuning(
            {}, SECONDS, {name: [share * each for share in (0.99, 1.0, 1.01)] for name, each in SECONDS.items()}
        )


class Runner:
    """Loads whatever it is given and replays `kind` on the buffers of the bench's only context."""

    kind: type[Candidate] = Candidate

    def __init__(self, owner) -> None:
        self.owner, self.closed, self.seconds = owner, False, 0.0

    def load(self, packed: bytes, memory: int, nbytes: int) -> None:
        (context,) = self.owner._contexts.values()
        assert (memory, nbytes) == (context.memory.fd, context.arena.buffers.bytes)
        self.run = self.kind(context.arena)

    def host(self, sets, gap, touches=None):
        self.run(sets, touches)
        return [2e-5 if gap else 1e-5] * len(sets)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def judge(monkeypatch, tmp_path):
    monkeypatch.setattr(buffers, "CUDA_CONTRACT", replace(CUDA_CONTRACT, workspace_limit=64 << 10))
    monkeypatch.setattr(buffers, "GRANULE", 4096)
    monkeypatch.setattr(buffers, "MAX_SETS", 6)
    monkeypatch.setattr(bench, "SharedMemory", Memory)
    monkeypatch.setattr(bench, "Vendor", lambda *_: Vendor())
    device = SimpleNamespace(target=find("sm_90a"), floor=lambda *_: 1e-7)
    monkeypatch.setattr(bench.device, "find", lambda: device)
    runners: list[Runner] = []

    class Runners:
        def __init__(self, _kind) -> None:
            pass

        def take(self, base: int) -> Runner:
            runners.append(Runner(made))
            return runners[-1]

        def close(self) -> None:
            pass

    monkeypatch.setattr(bench, "Runners", Runners)
    made = bench.CudaBench(WorkerConfig(), "off", None)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "probe", lambda: None)
    made.taken = runners  # type: ignore[attr-defined]
    return made


RECORDING = plan.Recording(0, ((KERNEL,),) * 6)


def test_a_right_kernel_is_timed_against_every_baseline(judge) -> None:
    outcome = judge.judge(RECORDING, b"cubin", PROBLEM)
    assert outcome.status is Status.OK, outcome.reason
    first, *others = outcome.timings
    assert (first.baseline, first.paired) == ("cublas-nn", True)
    assert [timing.baseline for timing in others] == sorted(set(SECONDS) - {"cublas-nn"}, key=SECONDS.__getitem__)
    assert all(timing.speedup > first.speedup and not timing.paired for timing in others)
    assert all(timing.high / timing.low >= 0.999 * first.high / first.low for timing in others)
    assert {timing.confidence for timing in others} == {first.confidence}, "the rounds of both are known"
    assert {"baselines", "start", "load", "verify", "time"} <= outcome.seconds.keys()
    assert all(runner.closed for runner in judge.taken)


def test_host_protocols_pair_with_the_faster_layout_of_each_library(judge) -> None:
    judge.config = WorkerConfig(protocols=("device", "offline", "server"))
    timings = judge.judge(RECORDING, b"cubin", PROBLEM).timings
    for protocol in ("offline", "server"):
        names = [timing.baseline for timing in timings if timing.protocol == protocol]
        assert names == ["cublas-nn", "cublaslt-auto-tn"]
    assert judge.host_seconds(PROBLEM, "server").keys() == SECONDS.keys()


def test_an_operator_that_no_library_calls_from_c_is_timed_on_the_devices_clock_alone(judge, monkeypatch) -> None:
    """The host's protocols say so in one line, for a kernel and for A/A."""
    monkeypatch.setitem(globals(), "SECONDS", {name: SECONDS[name] for name in ("torch-nn", "torch-tn")})
    outcome = judge.judge(RECORDING, b"cubin", PROBLEM)
    assert [timing.baseline for timing in outcome.timings] == ["torch-nn", "torch-tn"]
    judge.config = WorkerConfig(protocols=("device", "offline"))
    told = r"^epilogue none has no baseline that is called from C.*protocols=\[device\]$"
    with pytest.raises(ValueError, match=told):
        judge.judge(RECORDING, b"cubin", PROBLEM)
    with pytest.raises(ValueError, match=told):
        judge.compare_baseline_with_itself(PROBLEM, "offline")


def test_without_a_protocol_nothing_is_tuned_or_timed(judge) -> None:
    judge.config, judge.vendor = WorkerConfig(protocols=()), None
    outcome = judge.judge(RECORDING, b"cubin", PROBLEM)
    assert (outcome.status, outcome.timings) == (Status.OK, ()) and outcome.rho is not None
    with pytest.raises(ValueError, match=r"protocols=\[\]"):
        judge.read_floor(PROBLEM)


def test_a_failing_kernel_is_data_and_its_runner_ends(judge, monkeypatch) -> None:
    monkeypatch.setattr(Runner, "kind", RightAtFirst)
    outcome = judge.judge(RECORDING, b"cubin", PROBLEM)
    assert (outcome.status, outcome.timings) == (Status.WRONG, ())
    assert judge.taken[-1].closed
    monkeypatch.setattr(Runner, "kind", Candidate)
    assert judge.judge(RECORDING, b"cubin", PROBLEM).status is Status.OK


@pytest.mark.parametrize("free", [1 << 30, 60 << 30])
def test_a_kernel_without_room_is_to_blame_only_if_there_was_some(judge, monkeypatch, free: int) -> None:
    class Greedy(Candidate):
        def call(self, number: int) -> None:
            raise CandidateFailed(Status.LAUNCH_ERROR, f"cuGraphLaunch: {session.NO_ROOM}")

    monkeypatch.setattr(Runner, "kind", Greedy)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 << 30))
    if free > bench.ROOM:
        assert judge.judge(RECORDING, b"cubin", PROBLEM).status is Status.LAUNCH_ERROR
    else:
        with pytest.raises(HarnessFault, match="no room") as raised:
            judge.judge(RECORDING, b"cubin", PROBLEM)
        assert raised.value.remedy == session.FULL
    assert judge.taken[-1].closed


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_gpu_that_fails_the_harness_is_told_with_a_remedy(judge, monkeypatch, error) -> None:
    class Fails(Candidate):
        def call(self, number: int) -> None:
            raise error("CUDA error")

    monkeypatch.setattr(Runner, "kind", Fails)
    with pytest.raises(HarnessFault, match="the GPU failed: CUDA error") as raised:
        judge.judge(RECORDING, b"cubin", PROBLEM)
    assert (raised.value.remedy == session.FULL) == (error is torch.OutOfMemoryError)


def test_what_is_faster_than_the_device_is_implausible(judge) -> None:
    judge.device.floor = lambda *_: 1.0
    assert judge.judge(RECORDING, b"cubin", PROBLEM).status is Status.IMPLAUSIBLE


@pytest.mark.parametrize("seconds", [5e-8, 4e-7])
def test_a_call_on_the_hosts_clock_takes_its_time(judge, monkeypatch, seconds: float) -> None:
    """Not less than the device's floor, nor than half of what the device's own clock says."""
    judge.config = WorkerConfig(protocols=("device", "offline"))
    monkeypatch.setattr(
        Runner,
        "host",
        lambda self, sets, gap, touches=None: self.run(sets, touches) and [seconds] * len(sets),
    )
    assert judge.judge(RECORDING, b"cubin", PROBLEM).status is Status.IMPLAUSIBLE


def test_a_busy_host_is_a_fault(judge, monkeypatch) -> None:
    """The baseline's calls take three times as long in the pairs as they did alone."""
    judge.config = WorkerConfig(protocols=("device", "offline"))
    honest, blocks = Vendor.host_seconds, []

    def disturbed(self, *arguments):
        blocks.append(0)
        return [seconds * (3 if len(blocks) > bench.HOST_BLOCKS else 1) for seconds in honest(self, *arguments)]

    monkeypatch.setattr(Vendor, "host_seconds", disturbed)
    with pytest.raises(HarnessFault, match="busy"):
        judge.judge(RECORDING, b"cubin", PROBLEM)


@pytest.mark.parametrize(
    ("protocol", "layout", "name"),
    [
        ("device", "tn", "cublaslt-auto-tn"),
        ("offline", "tn", "cublaslt-auto-tn"),
        ("server", "tn", "cublaslt-auto-tn"),
        ("device", "nn", "cublas-nn"),
    ],
)
def test_a_baseline_that_reads_what_a_candidate_does_is_as_fast_as_itself(
    judge, monkeypatch, protocol: str, layout: Layout, name: str
) -> None:
    problem = msgspec.structs.replace(PROBLEM, layout=layout)

    class Twin(Candidate):
        def __init__(self, name, memory, layout, cache):
            (context,) = judge._contexts.values()
            super().__init__(context.arena)
            self.run = self.replay
            self.seconds = 2e-6

        def host(self, history, gap):
            self.replay(history)
            return [1e-5 * len(history.order)]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(bench, "Mirror", Twin)
    found = judge.compare_baseline_with_itself(problem, protocol)
    assert (found.protocol, found.baseline) == (protocol, name)
    assert found.speedup == pytest.approx(1, rel=0.02)
    with pytest.raises(ValueError, match="offline or server"):
        judge.compare_baseline_with_itself(problem, "batch")


def test_the_read_floor_stands_beside_every_baseline_and_spoils_no_verdict(judge) -> None:
    found = judge.read_floor(PROBLEM)
    assert (found.launch, set(found.baselines)) == ("2x512x8", set(SECONDS))
    assert found.spread == pytest.approx((1e-6,) * 3)
    assert judge.judge(RECORDING, b"cubin", PROBLEM).status is Status.OK


def test_after_a_crash_the_gpu_is_asked(judge, monkeypatch) -> None:
    def crash(self, sets, touches=None):
        raise CandidateFailed(Status.LAUNCH_ERROR, "trapped")

    def dead():
        raise HarnessFault("the GPU does not answer", "look")

    monkeypatch.setattr(Candidate, "__call__", crash)
    assert judge.judge(RECORDING, b"cubin", PROBLEM).status is Status.LAUNCH_ERROR
    monkeypatch.setattr(judge, "probe", dead)
    with pytest.raises(HarnessFault):
        judge.judge(RECORDING, b"cubin", PROBLEM)


def test_few_problems_stay_in_memory(judge) -> None:
    memories = []
    for size in range(8, 8 * (bench.ARENAS + 3), 8):
        memories.append(judge.context(msgspec.structs.replace(PROBLEM, m=size)).memory)
    assert [memory.closed for memory in memories] == [True] * 2 + [False] * bench.ARENAS
