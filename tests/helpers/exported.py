"""A folder of exported kernels, built with the plain compiler, for tests of the dispatcher."""

import hashlib
import subprocess
from pathlib import Path

import msgspec
import torch
from specimens import HERE, timing

from cudal2 import processor
from cudal2.problem import Problem
from cudal2.runtime import manifest as manifests

NAIVE = """
#include <cstddef>
extern "C" size_t hgemm_workspace(int M, int N, int K) { return 4 * size_t(N); }
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    float* row = static_cast<float*>(workspace);
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j) row[j] = 0;
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < N; ++j) row[j] += float(A[i * K + k]) * float(B[INDEX]);
        for (int j = 0; j < N; ++j) C[i * N + j] = row[j];
    }
    return 0;
}
"""
TN, NN = NAIVE.replace("INDEX", "j * K + k"), NAIVE.replace("INDEX", "k * N + j")
REFUSES = 'extern "C" int hgemm(const void*, const void*, void*, int, int, int, void*) { return 1; }\n'


def write(folder: Path, kernels: dict[Problem, tuple[str, float]], **changes) -> Path:
    """An export of problem → (source, speedup), as if measured on this machine with torch's present threads."""
    (folder / "libraries").mkdir(parents=True)
    entries = []
    for problem, (source, speedup) in kernels.items():
        path = folder / "libraries" / f"{hashlib.sha256(source.encode()).hexdigest()[:8]}.so"
        if not path.exists():
            command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
            subprocess.run(command, input=source.encode(), check=True)
        measured = timing(speedup)
        entries.append(
            manifests.Kernel(
                problem=problem,
                source="",
                library=f"libraries/{path.name}",
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                timing=measured,
                dispatch=measured.low > 1,
            )
        )
    here = msgspec.structs.replace(HERE, device=processor.name(), threads=torch.get_num_threads())
    fields = {
        "target": "cpu",
        "environment": here,
        "instructions": tuple(processor.instructions()),
        "kernels": tuple(entries),
        **changes,
    }
    (folder / manifests.FILE).write_bytes(msgspec.json.encode(manifests.Manifest(**fields)))
    return folder
