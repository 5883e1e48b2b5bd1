"""What the hardware counts while a kernel runs: what is busy, what its warps wait for. Read with ncu (Nsight Compute).

ncu starts the process that it looks at, and reads counters there; so a program of ours (counted.py) runs the kernel's
cubin and recipe, apart from every process that checks or times, and no figure is taken under ncu. Clocks are left alone
and ncu empties the caches before each of its passes over a launch, as buffers that rotate do in a timing.

    time_us              of the call's kernels, one after the other under a profiler: no timing
    tensor_pct           of cycles in which the tensor cores worked
    issue_pct            of cycles, on multiprocessors with work, in which a scheduler issued an instruction
    l1_pct l2_pct dram_pct   of what the first cache with shared memory, the second, and memory can do in that time
    occupancy_pct        warps resident, of those that a multiprocessor with work has room for
    bank_conflicts       of shared memory, a cycle each
    stall_REASON         warps of a scheduler that waited for that reason, for each instruction it issued

What REASON means: "Warp Stall Reasons" in https://docs.nvidia.com/nsight-compute/ProfilingGuide. Of a call with several
kernels time and conflicts are of all together, the rest is their mean by time.
"""

import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import CONFLICTS, OCCUPANCY, STALL
from cudal2.target import Target
from cudal2.worker import inputs
from cudal2.worker.backend import Portable, Uncountable, Uncounted
from cudal2.worker.cuda import counted, device, launcher, recipe
from cudal2.worker.sandbox import confine

TIME = "time_us"
METRICS = {
    "gpu__time_duration.sum": TIME,
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_pct",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": "l1_pct",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_pct",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active": OCCUPANCY,
    "l1tex__data_bank_conflicts_pipe_lsu.sum": CONFLICTS,
}
"""ncu's names, in base units, and ours."""
REASONS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected"),
    *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
)
DRAWN = 1 << 21
"""Normals: longer operands repeat them."""
SECONDS = 120.0
"""ncu takes some to start, and ten or so passes over a launch."""


def take(portable: Portable, problem: Problem, target: Target, ncu: Path | None = None) -> dict[str, float]:
    """The counters of one call, by name. Raises Uncountable where there is no ncu or it may not count, Uncounted
    where it fails."""
    ncu = ncu or find()
    if ncu is None:
        raise Uncountable("ncu is not installed (it comes with the CUDA toolkit, as nsight-compute)")
    names = metrics(target)
    with tempfile.TemporaryDirectory(prefix="cudal2-counters-") as place:
        folder = Path(place)
        files = {
            "libcudal2.so": launcher.library(),
            "kernel.recipe": recipe.seal(portable.recipe, portable.code, "kernel.cubin"),
            "kernel.cubin": portable.code,
            "normals": _normals(problem),
        }
        for name, content in files.items():
            (folder / name).write_bytes(content)
        program = [sys.executable, "-P", counted.__file__, device.find().driver_library]
        program += [str(folder / name) for name in files]
        program += [str(problem.m), *(str(2 * operand.elements) for operand in operators.operands(problem))]
        options = ["--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base"]
        said = _run([str(ncu), *options, "--metrics", ",".join(names), *program], folder)
    found = read(said.splitlines(), names)
    if not found:
        raise _why(said)
    return found


def _normals(problem: Problem) -> bytes:
    """Numbers of the problem's type; at most as many as its largest operand has."""
    count = min(DRAWN, max(operand.elements for operand in operators.operands(problem)))
    return torch.randn(count).to(inputs.element(problem)).view(torch.int16).numpy().tobytes()


def metrics(target: Target) -> dict[str, str]:
    """What is asked of ncu on a GPU of that target: its name → ours.

    Waiting for a warpgroup's matrix instructions is counted on Hopper alone, for constants no longer on its successors.
    """
    known = target.architecture.instructions if target.architecture else frozenset()
    reasons = [*REASONS, *(["gmma"] if "wgmma" in known else [])]
    if target.architecture and target.architecture.capability < (10, 0):
        reasons.append("imc_miss")
    stalls = {f"smsp__average_warps_issue_stalled_{one}_per_issue_active.ratio": STALL + one for one in reasons}
    return METRICS | stalls


def read(lines: Iterable[str], names: Mapping[str, str] = METRICS) -> dict[str, float]:
    """The counters in ncu's CSV, a row for each metric of each kernel, between whatever else it says; {} of none.

    What could not be counted ("n/a") is left out.
    """
    kernels: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        name, value = names.get(row.get("Metric Name") or ""), _number(row.get("Metric Value") or "")
        if name is not None and value is not None:
            kernels.setdefault(row.get("ID") or "", {})[name] = value / 1e3 if name == TIME else value
    return _together([kernels[one] for one in kernels if TIME in kernels[one]])


def find() -> Path | None:
    """ncu, in PATH or where a toolkit puts it."""
    alone = map(str, Path("/opt/nvidia/nsight-compute").glob("*"))
    found = shutil.which("ncu", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin", *alone]))
    return Path(found) if found else None


def _together(kernels: list[dict[str, float]]) -> dict[str, float]:
    """The counters of one call from those of its kernels."""
    total = sum(kernel[TIME] for kernel in kernels)
    names = [name for name in (kernels[0] if kernels else {}) if all(name in kernel for kernel in kernels)]
    if not total:
        return {}
    return {
        name: sum(kernel[name] * (1.0 if name in (TIME, CONFLICTS) else kernel[TIME] / total) for kernel in kernels)
        for name in names
    }


def _number(text: str) -> float | None:
    """Thousands are separated by commas. None where that is no number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _run(command: list[str], folder: Path) -> str:
    """What a command says, in both its voices. Raises Uncounted where it does not end."""
    process = subprocess.Popen(
        [*confine.ends_with_parent(), *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise Uncounted(f"ncu took longer than {SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # ncu and the program, whatever its kernel does
            process.communicate()


def _why(said: str) -> Uncounted:
    """Why ncu, which said that, counted nothing."""
    if "ERR_NVGPUCTRPERM" in said:
        return Uncountable(
            "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or have the driver's module loaded "
            "with NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = said.strip().splitlines()
    program = [line for line in lines if not line.startswith(("==", '"'))][-1:]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    return Uncounted(f"ncu counted nothing: {'; '.join(program + errors)[:300] or 'it saw no kernel'}")
