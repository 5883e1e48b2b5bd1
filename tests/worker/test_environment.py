"""The caller's shell neither slows the rival nor changes what is built; what does pass through is keyed."""

import subprocess
from pathlib import Path

import pytest
import torch
from disks import disk

from cudal2.records import HarnessFault
from cudal2.worker import build
from cudal2.worker.cpu import baselines
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

SHELL = {
    "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_VERBOSE": "0", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0", "MALLOC_TOP_PAD_": "1",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "ATEN_CPU_CAPABILITY": "default", "TORCH_LOGS": "",
    "LD_BIND_NOW": "1",
}  # fmt: skip


@pytest.fixture
def shell(monkeypatch):
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)


def test_the_baselines_see_nothing_of_the_callers_shell(shell) -> None:
    host = baselines.Baselines(2)
    try:
        data = Path(f"/proc/{host.side._process.inside}/environ").read_bytes()
    finally:
        host.close()
    seen = dict(entry.decode().split("=", 1) for entry in data.split(b"\0") if entry)
    assert not seen.keys() & SHELL.keys() - {"OMP_NUM_THREADS"} and seen["OMP_NUM_THREADS"] == "2"
    assert seen.keys() <= {*jail.ENVIRONMENT, "OMP_NUM_THREADS", "OMP_DYNAMIC", "PYTHONPATH", "LD_LIBRARY_PATH"}


def test_what_passes_through_is_part_of_the_environment(hasty, monkeypatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert baselines.libraries() == f"torch {torch.__version__}"
    plain = Worker(hasty).environment
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/other")
    assert baselines.environment(1)["LD_LIBRARY_PATH"] == "/opt/other"
    assert Worker(hasty).environment.fingerprint != plain.fingerprint


def test_the_callers_include_path_is_not_the_toolchains(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "callers.h").touch()
    source = tmp_path / "source.cpp"
    source.write_text("#if __has_include(<callers.h>)\n#error seen\n#endif\n")
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert subprocess.run([build.compiler(), "-fsyntax-only", source], capture_output=True).returncode
    build.trusted([build.compiler(), "-fsyntax-only", str(source)])


def test_no_room_for_a_job_is_told_as_such(tmp_path: Path, monkeypatch) -> None:
    """In one line, and not as a compiler that has to be installed again."""
    with disk(tmp_path / "disk", 64) as full:
        place = full.path / "scratch"
        place.mkdir()
        monkeypatch.setattr(jail, "scratch", lambda: place)
        full.fill()
        for attempt in (jail.job_folder, lambda: build.trusted([build.compiler(), "-fsyntax-only", "gone.cpp"])):
            with pytest.raises(HarnessFault, match=r"[Nn]o space left.*TMPDIR") as told:
                attempt()
            assert "\n" not in str(told.value)
    monkeypatch.undo()
    with pytest.raises(HarnessFault, match=r"gone\.cpp.*apt-get") as told:
        build.trusted([build.compiler(), "-fsyntax-only", "gone.cpp"])
    assert "\n" not in str(told.value)
