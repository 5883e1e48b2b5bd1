"""What changes how fast the vendor's libraries are is part of where a verdict was reached; what does not, is not."""

import subprocess
from pathlib import Path

import pytest

from cudal2.records import HarnessFault

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda.vendor import conditions

UUID = "0123456789abcdef0123456789abcdef"


def test_variables_that_libraries_read_are_told_in_order() -> None:
    shell = {
        "NVIDIA_TF32_OVERRIDE": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUBLASLT_LOG_LEVEL": "5",
        "CUDA_LAUNCH_BLOCKING": "1", "CUDA_FORCE_PTX_JIT": "1", "LD_PRELOAD": "/x.so",
    }  # fmt: skip
    assert conditions.speed_variables(shell) == sorted(f"{name}={value}" for name, value in shell.items())


def test_places_and_other_programs_variables_are_no_part_of_it() -> None:
    names = "PATH HOME CUDA_HOME CUDA_PATH CUDA_CACHE_PATH CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_VERSION"
    assert (
        conditions.speed_variables(dict.fromkeys([*names.split(), "NVIDIA_VISIBLE_DEVICES", "TORCH_HOME"], "x")) == []
    )
    assert conditions.speed_variables({"CUDA_LAUNCH_BLOCKING": ""}) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo '700.00 W, 1980 MHz'", "power limit 700.00 W, clock up to 1980 MHz"),
        ("echo '[N/A], 1980 MHz'", conditions.UNKNOWN),
        ("echo 'No devices were found'; exit 6", conditions.UNKNOWN),
        (
            "test $1 = --id=GPU-01234567-89ab-cdef-0123-456789abcdef && echo '1 W, 2 MHz'",
            "power limit 1 W, clock up to 2 MHz",
        ),
    ],
)
def test_the_power_limit_is_told_where_it_can_be_read(tmp_path: Path, monkeypatch, script, said) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert conditions.power_limit(UUID) == said


def test_without_nvidia_smi_it_is_unknown_and_one_that_hangs_is_a_fault(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert conditions.power_limit(UUID) == conditions.UNKNOWN
    monkeypatch.setattr(conditions.shutil, "which", lambda name: name)

    def hangs(*_, **options):
        raise subprocess.TimeoutExpired("nvidia-smi", options["timeout"])

    monkeypatch.setattr(conditions.subprocess, "run", hangs)
    with pytest.raises(HarnessFault, match="nvidia-smi"):
        conditions.power_limit(UUID)
