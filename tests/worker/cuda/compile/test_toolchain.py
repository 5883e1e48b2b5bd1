"""Where the toolkit is looked for, in which order, and what is said when it is absent or broken."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from cudal2.records import HarnessFault
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.sandbox import jail

SCRIPT = """#!/bin/sh
case "$1" in
    --version) echo "Cuda compilation tools, release {release}, V{release}.88" ;;
    --dryrun) echo "#$ _HERE_={here}" >&2 ;;
    *) {compile} ;;
esac
"""


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch, tmp_path):
    """No toolkit but those a test makes, and nothing remembered of the real one."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    real = shutil.which

    def which(name: str, path: str | None = None) -> str | None:
        own = path is None or path.startswith(str(tmp_path))
        return real(name, path=path) if own or name not in ("nvcc", "nvdisasm") else None

    monkeypatch.setattr(toolchain.shutil, "which", which)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    monkeypatch.setattr(jail, "scratch", lambda: scratch)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    for cached in (toolchain.find, toolchain.nvdisasm):
        cached.cache_clear()
    yield
    for cached in (toolchain.find, toolchain.nvdisasm):
        cached.cache_clear()


def install(root: Path, release: str = "13.0", compile: str = "true", programs=("nvcc", "nvdisasm")) -> Path:
    """A toolkit at `root` whose nvcc answers as the real one does."""
    (root / "bin").mkdir(parents=True)
    for name in programs:
        program = root / "bin" / name
        program.write_text(SCRIPT.format(release=release, here=root / "bin", compile=compile))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return root


def test_absent_is_a_fault_with_the_remedy():
    with pytest.raises(HarnessFault, match=r'nvcc.*pip install "cudal2\[toolchain\]"'):
        toolchain.find()
    assert toolchain.nvdisasm() is None and toolchain.cutlass() == ()


def test_the_environment_comes_before_the_path_and_the_packages(tmp_path, monkeypatch):
    first, second = install(tmp_path / "first", "13.1"), install(tmp_path / "second", "13.2")
    third = install(tmp_path / "site" / "cu13", "13.3")

    class Spec:
        submodule_search_locations = (str(third.parent),)

    monkeypatch.setattr(toolchain, "find_spec", lambda name: Spec if name == "nvidia" else None)
    for root, release in ((third, "13.3.88"), (second, "13.2.88"), (first, "13.1.88")):
        if root == second:
            monkeypatch.setenv("PATH", f"{second}/bin:/usr/bin:/bin")
        if root == first:
            monkeypatch.setenv("CUDA_HOME", str(first))
        toolchain.find.cache_clear()
        toolchain.nvdisasm.cache_clear()
        found = toolchain.find()
        assert found.version == release
        assert found.nvcc.read_text() == (root / "bin" / "nvcc").read_text()


def test_the_newest_disassembler_is_taken_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(install(tmp_path / "toolkit", "13.0")))
    newest = install(tmp_path / "newest", "13.10", programs=("nvdisasm",))
    monkeypatch.setenv("PATH", f"{newest}/bin:/usr/bin:/bin")
    install(tmp_path / "site" / "cu13", "13.9", programs=("nvdisasm",))
    monkeypatch.setenv("CUDA_PATH", str(install(tmp_path / "broken", programs=())))
    silent = tmp_path / "broken" / "bin" / "nvdisasm"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)

    class Spec:
        submodule_search_locations = (str(tmp_path / "site"),)

    monkeypatch.setattr(toolchain, "find_spec", lambda name: Spec if name == "nvidia" else None)
    found = toolchain.find()
    assert found.version == "13.0.88"
    assert found.nvdisasm and found.nvdisasm.read_text() == (newest / "bin" / "nvdisasm").read_text()


def test_a_script_in_the_path_leads_to_the_toolkit(tmp_path, monkeypatch):
    root = install(tmp_path / "toolkit")
    wrapper = tmp_path / "wrapper" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {root}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/usr/bin:/bin")
    found = toolchain.find()
    assert found.nvcc == found.root / "bin" / "nvcc"
    assert found.nvcc.read_text() == (root / "bin" / "nvcc").read_text()


def test_a_compiler_that_cannot_compile_is_no_kernels_fault(tmp_path, monkeypatch):
    install(tmp_path / "broken", compile="echo unsupported GNU version >&2; exit 1")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "broken"))
    with pytest.raises(HarnessFault, match="unsupported GNU version"):
        toolchain.find()


def test_what_the_jail_must_show_is_what_lies_outside_usr(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(install(tmp_path / "toolkit")))
    found = toolchain.find()
    assert found.readable == (found.root,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's jail runs as another user")
def test_a_toolkit_in_a_locked_home_is_copied(tmp_path, monkeypatch):
    home = tmp_path / "home"
    install(home / "toolkit")
    home.chmod(0o700)
    monkeypatch.setenv("CUDA_HOME", str(home / "toolkit"))
    found = toolchain.find()
    assert not found.root.is_relative_to(home)
    assert found.nvcc.read_text() == (home / "toolkit" / "bin" / "nvcc").read_text()
    assert not found.nvdisasm.is_relative_to(home)
