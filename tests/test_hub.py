"""A repository for `kernels`, made of an export: what is in it, and what the real package makes of it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from exported import TN, plain, write, write_launched
from launcher import fake
from specimens import HERE

from cudal2 import cli, hub
from cudal2.exported.held import DIGEST
from cudal2.problem import Problem
from cudal2.records import HarnessFault

PYTHON = Path(__file__).parents[1] / ".venv-kernels/bin/python"
BESIDE = Path(__file__).parent / "helpers/beside_kernels.py"
CPU_VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
REPLACED = {"fp16 with a bias": 1, "bf16": 1, "fp32": 0, "a subclass": 0, "no kernel": 0}
real = pytest.mark.skipif(not PYTHON.exists(), reason="`kernels` is not installed here: make parts")


def problem(dtype: str, epilogue: str = "none") -> Problem:
    return Problem(24, 40, 32, "tn", "f32", dtype, epilogue)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with an export, and its repository."""
    folder = tmp_path_factory.mktemp("run")
    others = {one: (plain(one), 1.5) for one in (problem("bf16"), problem("fp16", "bias"))}
    write(folder / "export", {problem("fp16"): (TN, 1.5), **others})
    assert cli.main(["export", str(folder), "export.layout=kernels"]) == 0
    return folder


def test_each_variant_holds_the_whole_export_and_says_what_it_is(run):
    (variant,) = (run / "kernels/build").iterdir()
    assert variant.name == CPU_VARIANT
    for path in run.glob("export/**/*"):
        inside = path.relative_to(run / "export")
        mine = inside.parts[0] == "cudal2_kernels"
        copy = variant / (inside.relative_to("cudal2_kernels") if mine else Path("export") / inside)
        assert path.is_dir() or path.suffix == ".pyc" or copy.read_bytes() == path.read_bytes()
    about = json.loads((variant / "metadata.json").read_text())
    assert about["backend"] == {"type": "cpu"} and about["python-depends"] == []
    assert about["id"].isidentifier() and about["id"].endswith((run / "export" / DIGEST).read_text()[:8])


def test_a_gpus_variants_are_for_each_cuda(tmp_path):
    fake()
    write_launched(tmp_path / "export", {}, HERE)
    variants = hub.write(tmp_path / "export", tmp_path / "kernels")
    assert variants == [f"torch-stable-abi211-{cuda}-x86_64-linux" for cuda in ("cu120", "cu130")]
    for variant in variants:
        about = json.loads((tmp_path / "kernels/build" / variant / "metadata.json").read_text())
        assert about["backend"] == {"type": "cuda", "archs": ["9.0a"]}


def test_without_an_export_it_says_what_to_do_and_a_damaged_one_leaves_the_former(run, tmp_path, capsys):
    assert cli.main(["export", str(tmp_path), "export.layout=kernels"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cudal2 export" in said
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "export/manifest.json").write_text("{")
    with pytest.raises(HarnessFault, match="Export again"):
        hub.write(copy / "export", copy / "kernels")
    assert (copy / "kernels/build" / CPU_VARIANT / "metadata.json").exists()


def beside(folder, *asked):
    """What the real package finds in that repository."""
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
    command = [PYTHON, "-P", BESIDE, folder, *asked]
    done = subprocess.run(command, capture_output=True, text=True, env=threads, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@real
@pytest.mark.parts
def test_kernels_replaces_linear_layers_in_half_precision_alone(run):
    found = beside(run / "kernels")
    assert found["told"] == [] and found["inference"] == REPLACED == found["compiled"]
    assert set(found["training"].values()) == {0}, "gradients are torch's"


def changed(run, place, file, old, new):
    copy = shutil.copytree(run, place)
    for path in copy.rglob(file):
        path.write_text(path.read_text().replace(old, new))
    for path in copy.rglob(DIGEST):
        path.unlink()
    return copy / "kernels"


@real
@pytest.mark.parts
def test_what_does_not_fit_is_told_with_the_remedy(run, tmp_path):
    assert "2.11) is too new for environment Torch version (2.10)" in beside(run / "kernels", "old torch")["error"]
    newer = changed(run, tmp_path / "newer", "metadata.json", hub.LEAST, "0.99.0")
    assert "requires kernels>=0.99.0" in (said := beside(newer)["error"]) and "pip install --upgrade kernels" in said
    moved = changed(run, tmp_path / "moved", "none", "", "")
    (moved / "build" / CPU_VARIANT).rename(moved / "build" / CPU_VARIANT.replace("x86_64", "aarch64"))
    assert "CPU (aarch64) does not match system CPU (x86_64)" in beside(moved)["error"]


@real
@pytest.mark.parts
@pytest.mark.parametrize(
    ("device", "said"), [("another processor", "measured on another processor"), ('"{', "manifest.json")]
)
def test_another_device_or_a_damaged_file_is_one_line_and_torch_serves(run, tmp_path, device, said):
    here = json.loads((run / "export/manifest.json").read_text())["environment"]["device"]
    other = changed(run, tmp_path / "other", "manifest.json", here, device)
    (told,) = beside(other)["told"]
    assert said in told and "\n" not in told and told.endswith("torch serves every call")
