import ctypes
import time

import msgspec
import pytest
import torch
from exported import TN, plain, write
from specimens import HERE

from cudal2.cli import main
from cudal2.config import BenchConfig, WorkerConfig
from cudal2.evaluation import results
from cudal2.overhead import clocks
from cudal2.problem import Problem
from cudal2.runtime import manifest
from cudal2.worker.cuda.vendor import hosttime

SYNCHRONISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
FINE = SYNCHRONISE(lambda stream: 0)
ADDRESS = ctypes.cast(FINE, ctypes.c_void_p).value
QUICK = WorkerConfig(min_pairs=3, max_pairs=7, timing_seconds=0.2, host_calls=4, server_qps=1e5, confidence=0.7)
SMALL, TALL = Problem(16, 16, 16), Problem(32, 16, 16)


@pytest.mark.parametrize("protocol", clocks.PROTOCOLS)
def test_sides_take_turns_on_the_same_inputs(protocol):
    seen = {name: [] for name in ("ours", "twice", "half")}

    def side(name, seconds):
        def call(number):
            seen[name].append(number)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass

        return call

    sides = {"ours": side("ours", 2e-3), "twice": side("twice", 4e-3), "half": side("half", 1e-3)}
    found = {one.baseline: one for one in clocks.paired(sides, 6, protocol, QUICK, ADDRESS)}
    assert found.keys() == {"twice", "half"}
    assert found["half"].speedup < 1 < found["twice"].speedup
    assert {(one.protocol, one.calls, one.paired) for one in found.values()} == {(protocol, 4, True)}
    assert seen["ours"] == seen["twice"] == seen["half"] and set(seen["ours"]) <= set(range(6))


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """A processor's kernels, called as a GPU's would be."""
    stream = type("Stream", (), {"cuda_stream": 0})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(hosttime, "stream_synchronise", lambda: ADDRESS)
    monkeypatch.setattr(clocks, "HOST", "none")


def exported(place, *kernels, **options):
    """An export of kernels with their sources."""
    folder = write(place, dict(kernels), **options)
    (folder / "tn.cpp").write_text(TN)
    found = manifest.read(folder)
    sources = tuple(msgspec.structs.replace(one, source="tn.cpp") for one in found.kernels)
    manifest.write(folder, msgspec.structs.replace(found, kernels=sources))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Two kernels that were measured on another processor, with as many threads."""
    elsewhere = msgspec.structs.replace(HERE, threads=torch.get_num_threads())
    return exported(tmp_path / "export", (TALL, (TN, 1.5)), (SMALL, (TN, 0.5)), environment=elsewhere)


def test_rows_are_added_to_an_evaluation_and_kept(tmp_path, folder, as_if_on_a_gpu):
    config = BenchConfig("cpu", QUICK)
    rows = clocks.run(folder, tmp_path / "run", config, most=1)
    assert len(rows) == 1
    rows = clocks.run(folder, tmp_path / "run", config)
    kept = results.load(tmp_path / "run").rows
    assert {row.problem for row in rows} == {row.problem for row in kept} == {SMALL, TALL}
    for row in rows:
        assert row.status == "ok" and row.kernel
        pairs = {(one.baseline, one.protocol) for one in row.timings}
        assert pairs == {(f"torch-{layout}", name) for layout in ("nn", "tn") for name in clocks.PROTOCOLS}
    assert clocks.run(folder, tmp_path / "run", config) == rows  # measured once


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_a_bias_and_another_type_are_called_as_they_are(tmp_path, as_if_on_a_gpu, layout):
    """On one row, where a kernel's operands are shorter than what they must be aligned to."""
    problem = Problem(1, 24, 40, layout, dtype="bf16", epilogue="bias")
    folder = exported(tmp_path / "export", (problem, (plain(problem), 1.5)))
    (row,) = clocks.run(folder, tmp_path / "run", BenchConfig("cpu", QUICK))
    assert (row.problem, row.status) == (problem, "ok"), row.reason
    assert {one.baseline for one in row.timings} == {"torch-nn", "torch-tn"}


def test_what_torch_served_or_a_judge_found_wrong_has_no_speed(tmp_path, folder, as_if_on_a_gpu, monkeypatch):
    config = BenchConfig("cpu", QUICK)
    with monkeypatch.context() as patched:
        nothing = {name: lambda number: None for name in (clocks.OURS, "torch-tn")}
        patched.setattr(clocks, "_sides", lambda *_: (nothing, 4))
        rows = clocks.run(folder, tmp_path / "run", config)
    assert {(row.status, row.timings) for row in rows} == {(clocks.NOT_SERVED, ())}
    found = results.load(tmp_path / "run")
    wrong = tuple(msgspec.structs.replace(row, status="wrong") for row in found.rows)
    results.save(tmp_path / "run", results.Results(found.environments, wrong))
    assert {(row.status, row.timings) for row in clocks.run(folder, tmp_path / "run", config)} == {("wrong", ())}
    other = tuple(msgspec.structs.replace(row, kernel="other") for row in found.rows)
    results.save(tmp_path / "run", results.Results(found.environments, other))
    with pytest.raises(ValueError, match="another kernel"):
        clocks.run(folder, tmp_path / "run", config)


def test_a_wrong_product_has_no_speed_whatever_its_folder_says(tmp_path, as_if_on_a_gpu):
    folder = exported(tmp_path / "export", (SMALL, (TN.replace("row[j];", "row[j] + 1;"), 1.5)))
    (row,) = clocks.run(folder, tmp_path / "run", BenchConfig("cpu", QUICK))
    assert (row.status, row.timings) == ("wrong", ()) and "elements are wrong" in row.reason


def test_what_would_be_ignored_is_refused(tmp_path, capsys):
    folder = str(write(tmp_path / "export", {SMALL: (TN, 1.5)}))
    for words in (["clocks=run", "settle=true"], ["clocks=run", "neighbours=true"], ["worker=sweep"]):
        assert main(["bench", "call", folder, *words]) == 2
        assert "clocks=" in capsys.readouterr().err


def test_a_processor_has_no_such_clocks(tmp_path):
    folder = write(tmp_path / "export", {SMALL: (TN, 1.5)})
    with pytest.raises(ValueError, match="clocks="):
        clocks.run(folder, tmp_path / "run", BenchConfig("cpu", QUICK))
