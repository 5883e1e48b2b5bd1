"""A folder exported on this machine's GPU by the whole way, for tests on a GPU: judged, exported by the command."""

from pathlib import Path

import msgspec
import pytest
import torch
from specimens import timing

from cudal2.archive import Archive
from cudal2.cli import main
from cudal2.config import WorkerConfig
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.results import save
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.runtime import manifest
from cudal2.target import for_capability
from cudal2.worker.worker import Worker

KERNELS = Path(__file__).parents[1] / "worker" / "cuda" / "kernels"
SEMAPHORES = Problem(256, 320, 512)
SOURCES = {
    SEMAPHORES: "split_k_semaphores.cu",
    Problem(264, 200, 328): "split_k_memset.cu",  # two kernels behind a memset
    Problem(128, 320, 512): "big_shared.cu",
    Problem(512, 384, 256): "tma_wgmma.cu",  # tensor maps
    Problem(256, 256, 512): "big_params.cu",
}


def exported(place: Path) -> Path:
    """The folder, elsewhere than it was exported to. Skips where there is no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    target = for_capability(*torch.cuda.get_device_capability()).name
    run, config = (
        place / "run",
        WorkerConfig(cache=str(place / "cache"), disturbed=1e3, timing_seconds=0.2, min_pairs=3),
    )
    # They are slow; what is under test is not whether they are dispatched but what happens then.
    fast = msgspec.structs.replace(timing(2.0), candidate_us=50.0, baseline_us=100.0)
    rows = []
    sources = {problem: (KERNELS / name).read_text() for problem, name in SOURCES.items()}
    entries = {
        problem: Candidate(source, problem, target)
        for problem, source in sources.items()
        if "// target: sm_90a" not in source or target == "sm_90a"
    }
    with Worker(config, target) as worker, Archive(run / "archive.sqlite") as archive:
        worker.build_ahead(list(entries.values()))
        for problem, entry in entries.items():
            judged = worker.evaluate(entry)
            assert judged.ok, f"{SOURCES[problem]}: {judged.reason}"
            archive.add(judged, entry, None)
            where = {"problem": problem, "fingerprint": worker.environment.fingerprint}
            rows.append(Row(**where, status="ok", kernel=entry.kernel_hash, timings=(fast,)))
    save(run, Results({}, tuple(rows)))
    assert main(["export", str(run), f"target={target}", f"worker.cache={place / 'cache'}"]) == 0
    copy = (run / "export").rename(place / "elsewhere")
    found = manifest.read(copy)
    assert not found.refused and len(found.kernels) == len(rows)
    return copy


def inputs(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A [M, K], B [N, K], and their product in double precision."""
    a, b = (torch.randn(size, problem.k, device="cuda").half() for size in (problem.m, problem.n))
    return a, b, a.double() @ b.double().t()


def right(found: torch.Tensor, exact: torch.Tensor) -> bool:
    return torch.allclose(found.double(), exact, rtol=2e-3, atol=2e-2)
