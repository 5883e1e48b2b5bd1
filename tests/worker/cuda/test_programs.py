"""The planner, the runner and the launcher are sound C++ against this toolkit's own driver interface."""

import subprocess
from pathlib import Path

import pytest

from cudal2.contract import CUDA_CONTRACT
from cudal2.records import HarnessFault
from cudal2.worker.cuda import launcher, session
from cudal2.worker.cuda.compile import toolchain

SOURCES = Path(session.__file__).parent


@pytest.mark.parametrize("name", ["planner", "runner", pytest.param("hgemm", marks=pytest.mark.slow)])
def test_compiles_without_a_warning(name: str, tmp_path: Path) -> None:
    try:
        include = toolchain.find().root / "include"
    except HarnessFault as fault:
        pytest.skip(str(fault))
    launcher.lay_out(tmp_path)
    headers = [f"-I{path}" for path in (tmp_path / "include", tmp_path / "src", include)]
    warnings = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
    command = ["g++", "-std=c++17", *warnings, *headers, *CUDA_CONTRACT.defines(), "-fsyntax-only"]
    source = next(SOURCES.rglob(f"{name}.cpp"))
    done = subprocess.run([*command, str(source)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_our_own_kernels_assemble(tmp_path: Path) -> None:
    """What runner and replay give to the driver's compiler, given to ptxas."""
    try:
        root = toolchain.find().root
    except HarnessFault as fault:
        pytest.skip(str(fault))
    text = (SOURCES / "programs" / "history.h").read_text()
    source = tmp_path / "spin.ptx"
    source.write_text(text.split('R"(', 1)[1].split(')"', 1)[0])
    done = subprocess.run(
        [root / "bin" / "ptxas", "-arch=sm_90a", source, "-o", tmp_path / "spin.cubin"], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
