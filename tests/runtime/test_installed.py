"""The package in an exported folder: without this repository, and with whatever may have become of the folder."""

import ast
import base64
import csv
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from copy import deepcopy

import pytest
import torch
from callings import K, M, N, half
from disks import disk
from exported import TN, imported, wheel, write

from cudal2.exported.held import DIGEST
from cudal2.problem import Problem
from cudal2.runtime.op import LIBRARY, PACKAGE

CALL = """
import sys, warnings
class Alone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cudal2", "msgspec", "numpy", "cupy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Alone())
sys.path.insert(0, sys.argv[1])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import torch
    before = len(told)
    import cudal2_kernels
x, w = torch.randn(24, 32).half(), torch.randn(40, 32).half()
found = cudal2_kernels.linear(x, w)
assert torch.allclose(found, torch.nn.functional.linear(x, w), rtol=2e-3, atol=2e-2)
model = torch.nn.Sequential(torch.nn.Linear(32, 40)).half().requires_grad_(False)
cudal2_kernels.patch(model)
model(x)
calls = dict(cudal2_kernels.library.calls) if cudal2_kernels.library else {}
assert torch.allclose(torch.ops.cudal2.linear(x, w), found, rtol=2e-3, atol=2e-2)
if sys.argv[2:]:
    after = cudal2_kernels.Library(cudal2_kernels.Path(sys.argv[2]))
    assert torch.allclose(torch.ops.cudal2.linear(x, w), after.linear(x, w)) and after.calls == {"kernel": 2}
print({"calls": calls, "told": [str(one.message) for one in told[before:]]})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("run") / "export", {Problem(M, N, K): (TN, 1.5)})


def changed(folder, place, **fields):
    copy = shutil.copytree(folder, place)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | fields))
    (copy / DIGEST).unlink()
    return copy


def test_the_package_serves_as_the_library_does(folder):
    module, told = imported(folder)
    x, w = half(M, K), half(N, K)
    assert told == [] and torch.allclose(module.linear(x, w), x @ w.t(), rtol=2e-3, atol=2e-2)
    module.matmul(x, w.t())
    model = torch.nn.Sequential(torch.nn.Linear(K, N)).half().requires_grad_(False)
    assert module.patch(model) == ["0"]
    model(x)
    assert module.library.calls == {"kernel": 3}
    module.unpatch(model)
    assert type(model[0]) is torch.nn.Linear


def cut(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-7])


def no_manifest(folder):
    (folder / "manifest.json").unlink()


def older(folder):
    (folder / "manifest.json").write_text('{"version": 2}')


def no_field(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"environment": None}))


def no_operator(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"op": None}))


DAMAGES = {
    "manifest cut": lambda folder: cut(folder, "manifest.json"),
    "kernel cut": lambda folder: cut(folder, next(folder.glob("libraries/*")).relative_to(folder)),
    "kernel gone": lambda folder: next(folder.glob("libraries/*")).unlink(),
    "no manifest": no_manifest,
    "older manifest": older,
    "manifest without a field": no_field,
    "no operator": no_operator,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_one_clear_line_and_torch_serves(folder, tmp_path, damage):
    copy = shutil.copytree(folder, tmp_path / "copy")
    damage(copy)
    module, (told,) = imported(copy)
    assert "\n" not in told and str(copy) in told and told.endswith("torch serves every call")
    x, w = half(M, K), half(N, K)
    assert torch.equal(module.linear(x, w), torch.nn.functional.linear(x, w))
    assert torch.equal(module.matmul(x, w.t()), torch.matmul(x, w.t()))
    assert module.library is None and module.patch(torch.nn.Sequential(torch.nn.Linear(K, N).half())) == []


def served_by_torch(copy, told_once=True):
    """Whatever the folder's manifest says now: nothing is raised, and results are right."""
    module, told = imported(copy)
    assert len(told) == 1 if told_once else len(told) < 2
    assert all("\n" not in line and line.endswith("torch serves every call") for line in told)
    x, w = half(M, K), half(N, K)
    assert torch.allclose(module.linear(x, w), torch.nn.functional.linear(x, w), rtol=2e-3, atol=2e-2)
    assert module.library is None or not told_once


@pytest.mark.parametrize("name", ["manifest.json", DIGEST])
def test_one_bit_of_a_manifest_that_is_another_is_told(folder, tmp_path, name):
    copy, rng = shutil.copytree(folder, tmp_path / "copy"), random.Random(7)
    whole = (copy / name).read_bytes()
    for place in rng.sample(range(min(len(whole), 4000 if name == "manifest.json" else 64)), 8):
        flipped = whole[place] ^ 1 << rng.randrange(8)
        (copy / name).write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        served_by_torch(copy)


def leaves(found, path=()):
    """The path of every value in it that holds no others."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(value, (*path, key))
    else:
        yield path


@pytest.mark.parametrize("share", [0.01, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_manifest_without_a_digest_may_hold_anything(folder, tmp_path, share):
    """Except the name of the function that tells how much scratch memory a kernel wants: that it has one, it says."""
    copy, rng = changed(folder, tmp_path / "copy"), random.Random(7)
    whole = json.loads((copy / "manifest.json").read_text())
    for path in leaves(whole):
        for value in (None, -1, 0, "x", "\ud800", [], {}, 1.5, True, 10**30):
            if path[-1] == "sizer" or rng.random() > share:
                continue
            found = deepcopy(whole)
            place = found
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            (copy / "manifest.json").write_text(json.dumps(found))
            served_by_torch(copy, told_once=False)


def test_a_folder_that_can_only_be_read_serves(folder, tmp_path):
    with disk(tmp_path / "disk", 8000) as held:
        copy = shutil.copytree(folder, held.path / "export")
        held.only_read()
        module, told = imported(copy)
        module.linear(half(M, K), half(N, K))
        assert told == [] and module.library.calls == {"kernel": 1}
        with pytest.raises(OSError, match="Read-only"):
            (copy / "x").touch()


def test_a_full_disk_is_one_clear_line_and_torch_serves(tmp_path, monkeypatch):
    """Of whatever a process may still have to write when it loads what it has not loaded before."""
    fresh = write(tmp_path / "export", {Problem(M, N, K): (TN + "// never loaded\nint unused;", 1.5)})
    with disk(tmp_path / "disk", 64) as full:
        full.fill()
        monkeypatch.setattr(tempfile, "tempdir", str(full.path))
        module, (told,) = imported(fresh)
    assert "\n" not in told and "Make room" in told and told.endswith("torch serves every call")
    x, w = half(M, K), half(N, K)
    assert torch.equal(module.linear(x, w), torch.nn.functional.linear(x, w))


def test_another_device_is_one_clear_line_and_torch_serves(folder, tmp_path):
    where = json.loads((folder / "manifest.json").read_text())["environment"]
    module, (told,) = imported(changed(folder, tmp_path / "x", environment=where | {"device": "another"}))
    assert "measured on another" in told and "\n" not in told
    x, w = half(M, K), half(N, K)
    assert torch.equal(module.linear(x, w), torch.nn.functional.linear(x, w))


def test_the_wheel_holds_the_folder_and_records_it(folder, tmp_path):
    with zipfile.ZipFile(wheel(folder, tmp_path)) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.endswith("RECORD"))
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert [row[0] for row in rows] == names
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={found}", len(data))
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                inside = str(path.relative_to(folder))
                where = inside if inside.startswith(PACKAGE) else f"{PACKAGE}/export/{inside}"
                assert archive.read(where) == path.read_bytes()


def test_the_package_imports_nothing_but_itself_torch_and_pythons_own(folder):
    allowed = sys.stdlib_module_names | {"torch"}
    for path in (folder / PACKAGE).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def alone(*arguments):
    """What a process says that has torch, but neither this repository nor a compiler."""
    environment = {"PATH": "", "OMP_NUM_THREADS": str(torch.get_num_threads()), "HOME": os.environ["HOME"]}
    command = [sys.executable, "-P", "-c", CALL, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


@pytest.mark.slow
def test_pip_installs_the_folder_and_needs_torch_alone(folder, tmp_path):
    """From a folder that is only read, without the network; then with what may become of it."""
    copy, out = shutil.copytree(folder, tmp_path / "only-read"), tmp_path / "installed"
    for path in [copy, *copy.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "-q", "--target", str(out), str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    assert alone(out) == {"calls": {"kernel": 2}, "told": []}
    assert alone(copy) == {"calls": {"kernel": 2}, "told": []}, "the folder as it is"
    held = out / PACKAGE / "export"
    for name in (LIBRARY, "manifest.json"):
        whole = (held / name).read_bytes()
        (held / name).write_bytes(whole[:-9])
        found = alone(out, copy)  # which can be loaded after it
        assert found["calls"] == {} and len(found["told"]) == 1 and name in found["told"][0]
        (held / name).write_bytes(whole)
