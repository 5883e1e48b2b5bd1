"""Counters: what ncu says is read for what it is, one call alone is counted, and whatever is missing is told."""

import ctypes
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from launcher import fake, launched, many_rows, multiplier

from cudal2 import bench, operators
from cudal2.config import BenchConfig, WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, to_json
from cudal2.target import find, targets
from cudal2.worker import inputs
from cudal2.worker.backend import Portable, Uncounted
from cudal2.worker.cuda import counted, counters, recipe
from cudal2.worker.worker import Worker

PROBLEM, HOPPER = Problem(24, 40, 16), find("sm_90a")
NAMES = counters.metrics(HOPPER)
TENSOR, CONFLICTS, BARRIER = (
    next(name for name, ours in NAMES.items() if ours == one)
    for one in ("tensor_pct", "bank_conflicts", "stall_barrier")
)
TIME = "gpu__time_duration.sum"
HEAD = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size"),
    *("Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)


def table(*kernels: dict[str, str]) -> str:
    """As ncu 2025 prints it: every field in quotation marks, a row for each metric of each kernel."""
    rows = [HEAD]
    for number, values in enumerate(kernels):
        what = ("multiply(const __half *, Pair<1, 2>)", "1", "7", "(128, 1, 1)", "(64, 2, 1)", "0", "9.0")
        before = (str(number), "19963", "python3.12", "127.0.0.1", *what, "Command line profiler metrics")
        rows += [(*before, name, "", value) for name, value in values.items()]
    return "".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows)


def test_a_call_of_several_kernels_is_read_as_one() -> None:
    first = {TIME: "3,000", TENSOR: "40.5", CONFLICTS: "1,234,567", BARRIER: "2", "sm__unknown.sum": "9"}
    second = {TIME: "1,000", TENSOR: "0", CONFLICTS: "3", BARRIER: "n/a"}
    said = f'==PROF== Connected to process 19963\n==PROF== Profiling "multiply": 0%..100%\n{table(first, second)}'
    found = counters.read(said.splitlines(), NAMES)
    assert found == pytest.approx({"time_us": 4.0, "tensor_pct": 40.5 * 0.75, "bank_conflicts": 1234570.0})
    alone = counters.read(table(first).splitlines(), NAMES)
    assert alone == {"time_us": 3.0, "tensor_pct": 40.5, "bank_conflicts": 1234567.0, "stall_barrier": 2.0}


@pytest.mark.parametrize(
    "said",
    ["", "==PROF== No kernels were profiled.", table(), table({TENSOR: "1"}), table({TIME: "n/a"}), '"half a', "\0\xff"]
    + [table({TIME: value}) for value in ("0", "nan", "inf", "")],
)
def test_what_is_no_figure_is_none(said: str) -> None:
    assert counters.read(said.splitlines(), NAMES) == {}


def test_every_gpu_is_asked_what_it_counts() -> None:
    """Waiting for wgmma is Hopper's alone; for constants nobody waits after it."""
    asked = {target.name: set(counters.metrics(target).values()) for target in targets().values()}
    assert {name for name, ours in asked.items() if "stall_gmma" in ours} == {"sm_90a"}
    assert {name for name, ours in asked.items() if "stall_imc_miss" in ours} == {"sm_80", "sm_86", "sm_89", "sm_90a"}
    assert all({"tensor_pct", "dram_pct", "stall_long_scoreboard"} <= ours for ours in asked.values())


@pytest.fixture
def library(tmp_path) -> Path:
    path = tmp_path / "fake.so"
    path.write_bytes(fake())
    return path


WORDS = {"A": 0, "B": 8, "C": 16, "bias": 56}
"""Where the host's kernel is told an operand's address, in bytes of its parameter."""


@pytest.mark.parametrize("rows", [1, 7, 24])
@pytest.mark.parametrize("epilogue", ["none", "bias"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_one_call_is_counted_after_others_on_normals(library, tmp_path, dtype, epilogue, rows) -> None:
    """Whatever the type and the operands; of a recipe for several numbers of rows that of the problem."""
    problem = msgspec.structs.replace(PROBLEM, m=rows, dtype=dtype, epilogue=epilogue)
    cubin, packed = many_rows(problem, 1, 24)
    given = operators.operands(problem)
    files = {"recipe": recipe.seal(packed, cubin, "kernel.cubin"), "cubin": cubin}
    for name, content in (files | {"normals": counters._normals(problem)}).items():
        (tmp_path / name).write_bytes(content)
    sizes = [str(2 * operand.elements) for operand in given]
    driver = ctypes.CDLL(str(library))
    try:
        words = (library, library, tmp_path / "recipe", tmp_path / "cubin", tmp_path / "normals", rows, *sizes)
        counted.main(*map(str, words))
    finally:
        driver.in_context(ctypes.c_long(0))
    calls = [node for node in launched(driver) if getattr(node, "name", "") == "on_the_host"]
    assert driver.profiled() == 1 and len(calls) == counted.BEFORE + 1 and len(set(calls)) == 1
    told = bytes.fromhex(calls[0].parameters[0])
    tensors = []
    for operand in given:
        address = int.from_bytes(told[WORDS[operand.name] :][:8], "little")
        memory = (ctypes.c_char * (2 * operand.elements)).from_address(address)
        tensors.append(torch.frombuffer(memory, dtype=inputs.element(problem)).view(operand.shape).double())
    a, b, *more, c = tensors
    assert abs(b.std() - 1) < 0.2
    expected = operators.find(epilogue).finish(a @ b.T, more)
    assert (c - expected).abs().max() <= 4 * problem.type.unit * expected.abs().max()


def test_a_matrix_longer_than_what_is_drawn_is_full(library) -> None:
    drawn = np.random.default_rng(0).standard_normal(32).astype(np.float16)
    at = counted._filled(ctypes.CDLL(str(library)), 150, drawn.tobytes())
    values = np.frombuffer((ctypes.c_char * 150).from_address(at), np.float16)
    assert (values[:32] == drawn).all() and (values[32:64] == drawn).all() and (values[64:] == drawn[:11]).all()


def test_operands_are_filled_with_normals_of_their_type() -> None:
    for dtype in ("fp16", "bf16"):
        problem = Problem(4096, 8, 4096, dtype=dtype)
        drawn = torch.frombuffer(bytearray(counters._normals(problem)), dtype=inputs.element(problem)).float()
        assert len(drawn) == counters.DRAWN and abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1) < 0.01


RUN = 'while [ "$1" != --metrics ]; do shift; done; shift 2; "$@" || { echo "==ERROR== It ended with 1"; exit 1; }\n'


def profiler(folder: Path, does: str) -> Path:
    """An `ncu` that does what the shell is told; RUN: what it is given."""
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def here(library, monkeypatch):
    """A GPU that the host plays, and the kernel that is counted on it."""
    monkeypatch.setattr(counters.launcher, "library", fake)
    monkeypatch.setattr(counters.device, "find", lambda: SimpleNamespace(driver_library=str(library)))
    return Portable(*multiplier(PROBLEM))


def test_a_kernel_runs_under_the_profiler_by_its_recipe(here, tmp_path) -> None:
    (tmp_path / "said").write_text(table({TIME: "2,500", TENSOR: "7.5"}))
    ncu = profiler(tmp_path, f"{RUN}cat {tmp_path / 'said'}")
    assert counters.take(here, PROBLEM, HOPPER, ncu) == {"time_us": 2.5, "tensor_pct": 7.5}


REFUSED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
TROUBLE = {
    f"echo '{REFUSED}'; exit 1": "NVreg_RestrictProfilingToAdminUsers",
    "echo '==ERROR== Failed to find metric x' >&2; exit 1": "Failed to find metric",
    "exit 0": "counted nothing",
    "sleep 60": "longer than",
}


@pytest.mark.parametrize(("does", "reason"), TROUBLE.items())
def test_a_profiler_that_does_not_count_says_why(here, tmp_path, monkeypatch, does: str, reason: str) -> None:
    if reason == "longer than":
        monkeypatch.setattr(counters, "SECONDS", 0.05)
    with pytest.raises(Uncounted, match=reason):
        counters.take(here, PROBLEM, HOPPER, profiler(tmp_path, does))


def test_a_kernel_that_fails_and_a_missing_profiler_are_told(here, tmp_path, monkeypatch) -> None:
    with pytest.raises(Uncounted, match=r"on_the_host.*It ended with 1|an error.*It ended with 1"):
        counters.take(Portable(*multiplier(PROBLEM, fails=1)), PROBLEM, HOPPER, profiler(tmp_path, RUN))
    monkeypatch.setattr(counters, "find", lambda: None)
    with pytest.raises(Uncounted, match="not installed"):
        counters.take(here, PROBLEM, HOPPER)


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    pytest.importorskip("nvmath", reason="nvmath-python is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    if counters.find() is None:
        pytest.skip("no ncu")
    from cudal2.target import for_capability

    target = for_capability(*torch.cuda.get_device_capability()).name
    config = WorkerConfig(cache=str(tmp_path_factory.mktemp("cache")), protocols=(), counters=True)
    with Worker(config, target) as worker:
        yield worker


def on(worker: Worker, name: str, problem: Problem) -> dict[str, float]:
    source = (Path(__file__).parent / "kernels" / name).read_text()
    verdict = worker.evaluate(Candidate(source, problem, worker.target.name))
    assert verdict.ok, verdict.reason
    return verdict.counters


@pytest.mark.gpu
def test_on_a_gpu_counters_tell_what_bounds_a_kernel(on_gpu) -> None:
    stores, products = on(on_gpu, "mma.cu", Problem(16384, 16384, 16)), on(on_gpu, "mma.cu", Problem(1024, 1024, 1024))
    wanted = set(counters.metrics(on_gpu.target).values())
    assert stores.keys() == products.keys() == wanted, "some metric is unknown to this ncu"
    assert stores["dram_pct"] > 2 * stores["tensor_pct"] and products["tensor_pct"] > products["dram_pct"]
    for found in (stores, products):
        assert all(0 <= value <= 101 for name, value in found.items() if name.endswith("_pct")), found
        assert found["time_us"] > 1 and sum(value for name, value in found.items() if name.startswith("stall_")) > 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["split_k_memset.cu", "split_k_semaphores.cu", "tma_wgmma.cu"])
def test_on_a_gpu_any_launch_is_counted(on_gpu, name: str) -> None:
    """Two kernels behind a memset; semaphores; tensor maps."""
    if name == "tma_wgmma.cu" and on_gpu.target.name != "sm_90a":
        pytest.skip("compiles for sm_90a")
    found = on(on_gpu, name, Problem(512, 384, 256))
    assert found["time_us"] > 1 and (found["tensor_pct"] > 1) == (name == "tma_wgmma.cu")


@pytest.mark.gpu
def test_on_a_gpu_a_bias_in_bf16_is_counted(on_gpu) -> None:
    found = on(on_gpu, "bias_bf16.cu", Problem(17, 512, 256, dtype="bf16", epilogue="bias"))
    assert found["time_us"] > 1 and found["tensor_pct"] < 1


@pytest.mark.gpu
def test_on_a_gpu_an_edit_is_counted_beside_its_parent(on_gpu, tmp_path) -> None:
    from cudal2.worker.cuda.compile import cubin

    problem, file = Problem(512, 512, 512), Path(__file__).parent / "kernels" / "mma.cu"
    made = on_gpu.backend._build(Candidate(file.read_text(), problem, on_gpu.target.name), None)
    (tmp_path / "edit.json").write_text(to_json(cubin.made_for(made.cubin, made.resources[0].kernel)))
    config = BenchConfig(target=on_gpu.target.name, worker=msgspec.structs.replace(on_gpu.config, cache=str(tmp_path)))
    row = bench.kernel(file, problem, config, edit_file=tmp_path / "edit.json")
    assert row["counters"].keys() == row["unedited"].keys()
    assert row["counters"]["tensor_pct"] == pytest.approx(row["unedited"]["tensor_pct"], rel=0.2)
    assert "unedited" in bench.describe_kernel(row) and json.dumps(row)
