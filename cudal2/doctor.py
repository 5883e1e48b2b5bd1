"""Checks what this machine can do: one line per check, with the remedy where something is missing."""

import os
import platform
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

from cudal2.records import HarnessFault

FREE_GIB = 2.0
"""Disk space that builds, checkpoints and the archive of a small run fit in."""


class Check(msgspec.Struct, frozen=True):
    """One check. `needed` marks what `target=cpu` cannot run without."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = False


def run(cache: str = "~/.cache/cudal2") -> list[Check]:
    """All checks, the needed ones first. Changes nothing except the cache of jail probes."""
    return [
        _python(),
        _module("torch", "pip install torch", needed=True),
        _module("trl", 'pip install "cudal2"', needed=True),
        _compiler(),
        _objdump(),
        *_jails(),
        _module("pyseccomp", "apt-get install libseccomp2, then pip install pyseccomp", needed=True),
        _disk(Path(cache).expanduser()),
        _policy(),
        _processor(),
        _gpu(),
        _driver(),
        *_cuda(),
        *(_distribution(name, 'pip install "cudal2[cuda]"') for name in ("cuda-bindings", "nvmath-python")),
        _vllm(),
        *(_module(name, f'pip install "cudal2[{name}]"') for name in ("deepspeed", "ray", "wandb")),
    ]


def healthy(checks: list[Check]) -> bool:
    """Whether everything needed for `target=cpu` is there."""
    return all(check.ok for check in checks if check.needed)


def describe(checks: list[Check]) -> str:
    """One aligned line per check."""
    lines = []
    for check in checks:
        mark = "ok     " if check.ok else "MISSING" if check.needed else "missing"
        remedy = "" if check.ok else f"  →  {check.remedy}"
        lines.append(f"{mark}  {check.name:<20} {check.detail}{remedy}")
    verdict = "the loop can run on this processor" if healthy(checks) else "the loop cannot run: see MISSING above"
    return "\n".join([*lines, verdict])


def to_json(checks: list[Check]) -> str:
    """One JSON object: `healthy` and the checks."""
    return msgspec.json.encode({"healthy": healthy(checks), "checks": checks}).decode()


def _python() -> Check:
    return Check("python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11", needed=True)


def _module(name: str, remedy: str, needed: bool = False) -> Check:
    from importlib.metadata import PackageNotFoundError, version

    if find_spec(name) is None:
        return Check(name, False, "not installed", remedy, needed)
    try:
        return Check(name, True, version(name), needed=needed)
    except PackageNotFoundError:
        return Check(name, True, "version unknown", needed=needed)


def _vllm() -> Check:
    from cudal2.policy import vllm_engine

    try:
        vllm_engine.check()
    except ValueError as error:
        return Check("vllm", False, vllm_engine.installed() or "not installed", str(error))
    return Check("vllm", True, vllm_engine.installed() or "version unknown")


def _distribution(name: str, remedy: str) -> Check:
    """The check of a package by its distribution, as its modules have other names."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Check(name, True, version(name))
    except PackageNotFoundError:
        return Check(name, False, "not installed", remedy)


def _compiler() -> Check:
    from cudal2.worker import build

    try:
        return Check("g++", True, build.compiler_name(), needed=True)
    except HarnessFault as fault:
        return Check("g++", False, fault.problem, fault.remedy, needed=True)


def _objdump() -> Check:
    path = shutil.which("objdump")
    return Check("objdump", path is not None, path or "not installed", "apt-get install binutils", needed=True)


def _jails() -> list[Check]:
    """Each kind of jail, and whether at least one of them works."""
    from cudal2.worker.sandbox import jail

    kinds: tuple[jail.Kind, ...] = ("bubblewrap", "landlock")
    checks = [Check(f"jail: {kind}", jail.works(kind), "", jail.remedy(kind)) for kind in kinds]
    best = next((check.name for check in checks if check.ok), "")
    remedy = "one of the two below must work; worker.jail=off runs untrusted code without one"
    return [Check("jail", bool(best), best.removeprefix("jail: "), remedy, needed=True), *checks]


def _disk(cache: Path) -> Check:
    place = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(place).free / 2**30
    writable = os.access(place, os.W_OK)
    detail = f"{free:.1f} GiB free in {place}" + ("" if writable else ", which is read-only")
    remedy = f"free {FREE_GIB:g} GiB, or point worker.cache at another disk"
    return Check("cache", writable and free >= FREE_GIB, detail, remedy, needed=True)


def _policy() -> Check:
    from cudal2.files import asset

    try:
        weights = asset("data", "policy", "cpu", "model.safetensors")
    except FileNotFoundError:
        remedy = "make it with `cudal2 sft`, or name a policy.path"
        return Check("shipped policy", False, "no weights in data/policy", remedy, needed=True)
    return Check("shipped policy", True, f"{weights.stat().st_size / 2**20:.1f} MiB", needed=True)


def _processor() -> Check:
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    wanted = ("avx2", "f16c", "avx512f", "avx512_fp16", "avx512_bf16", "amx_tile")
    flags = next((line.split() for line in known.splitlines() if line.startswith("flags")), [])
    present = [name for name in wanted if name in flags]
    detail = f"{len(os.sched_getaffinity(0))} cores, {' '.join(present) or platform.machine()}"
    return Check("processor", True, detail)


def _gpu() -> Check:
    import torch

    from cudal2.target import for_capability

    if not torch.cuda.is_available():
        return Check("GPU", False, "none that torch can use", "none is needed for target=cpu")
    name = torch.cuda.get_device_name()
    try:
        return Check("GPU", True, f"{name}, target={for_capability(*torch.cuda.get_device_capability()).name}")
    except ValueError as error:
        return Check("GPU", False, name, str(error))


def _driver() -> Check:
    """The driver's version, read from the kernel module, for which CUDA need not be installed."""
    place = Path("/proc/driver/nvidia/version")
    said = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", place.read_text()) if place.exists() else None
    detail = said.group(1) if said else "no NVIDIA driver"
    return Check("GPU driver", said is not None, detail, "install NVIDIA's driver 580 or later to judge CUDA kernels")


def _cuda() -> list[Check]:
    """The tools that build and read CUDA kernels; `target=cpu` needs none of them."""
    from cudal2.worker.cuda import counters
    from cudal2.worker.cuda.compile import toolchain

    remedy = 'pip install "cudal2[toolchain]"'
    try:
        tools = toolchain.find()
        compiler = Check("nvcc", True, f"{tools.version}, {tools.nvcc}")
    except HarnessFault as fault:
        compiler = Check("nvcc", False, fault.problem, fault.remedy)
    disassembler, headers, profiler = toolchain.nvdisasm(), toolchain.cutlass(), counters.find()
    reader = f"{toolchain.version(disassembler)}, {disassembler}" if disassembler else "not found"
    install = "install NVIDIA Nsight Compute, for worker.counters=true alone"
    return [
        compiler,
        Check("nvdisasm", disassembler is not None, reader, remedy),
        Check("CUTLASS headers", bool(headers), str(headers[0]) if headers else "not found", remedy),
        Check("pyelftools", find_spec("elftools") is not None, "", remedy),
        Check("ncu", profiler is not None, str(profiler or "not found"), install),
    ]
