"""Somebody else's cubin with its launch becomes what a planner records; whatever is wrong with it is one clear line."""

import json
from pathlib import Path

import pytest

from cudal2.problem import Problem
from cudal2.worker.cuda import foreign, recipe, unsealing
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.gpu.buffers import buffer_layout

PROBLEM = Problem(256, 512, 128, "nn", "f32")
GOOD = {
    "problem": PROBLEM.name,
    "function": "gemm",
    "grid": [4, 2, 1],
    "block": [128, 1, 1],
    "shared": 4096,
    "workspace": 65536,
    "parameters": [
        {"type": "pointer", "to": "C", "offset": 32},
        {"type": "pointer", "to": "workspace"},
        {"type": "bytes", "hex": "00010000"},
    ],
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    def code_of(code: bytes, kernel: str) -> tuple[int, int]:
        if kernel not in code.decode():
            raise cubin.EditRefused("the cubin holds 0 kernels called that")
        return 0, 16

    monkeypatch.setattr(foreign.cubin, "code_of", code_of)
    (tmp_path / foreign.CUBIN).write_bytes(b"gemm")
    (tmp_path / foreign.LAUNCH).write_text(json.dumps(GOOD))
    return tmp_path


def test_each_set_has_its_addresses(folder) -> None:
    problem, launchable = foreign.read(folder)
    buffers = buffer_layout(PROBLEM)
    assert problem == PROBLEM and launchable.cubin == b"gemm"
    assert len(launchable.recording.plans) == buffers.sets and launchable.recording.workspace == 65536
    base = launchable.recording.base
    for number, (kernel,) in enumerate(launchable.recording.plans[:3]):
        c, workspace, literal = (bytes.fromhex(one) for one in kernel.parameters)
        assert int.from_bytes(c, "little") == base + number * buffers.stride + buffers.offsets[-1] + 32
        assert int.from_bytes(workspace, "little") == base + buffers.workspace
        assert literal == bytes([0, 1, 0, 0])
        assert (kernel.grid, kernel.block, kernel.cluster, kernel.shared) == ((4, 2, 1), (128, 1, 1), (0, 0, 0), 4096)


def test_its_recipe_gives_what_is_launched_at_each_set(folder) -> None:
    problem, launchable = foreign.read(folder)
    made = foreign.portable(folder)
    known = unsealing.unsealed(recipe.seal(made.recipe, made.code, ""), launchable.cubin, problem)
    assert known.workspace == launchable.recording.workspace
    places = buffer_layout(problem).places(launchable.recording.base)
    for recorded, place in zip(launchable.recording.plans, places, strict=True):
        assert recipe.applied(known, place) == recorded


BAD = {
    "unknown key": {"functions": "gemm"},
    "no such kernel": {"function": "other"},
    "no name": {"function": ""},
    "no problem": {"problem": "256_512"},
    "other layout": {"problem": "256_512_128_tt_f32"},
    "a flat grid": {"grid": [4, 2]},
    "an empty grid": {"grid": [0, 1, 1]},
    "a grid in words": {"grid": "4"},
    "too many threads": {"block": [128, 16, 1]},
    "clusters that do not fit": {"cluster": [3, 1, 1]},
    "half a cluster": {"cluster": [2, 0, 0]},
    "negative shared memory": {"shared": -1},
    "enormous shared memory": {"shared": 1 << 40},
    "too much workspace": {"workspace": 1 << 40},
    "no parameter's type": {"parameters": [{"to": "A"}]},
    "a pointer to nothing": {"parameters": [{"type": "pointer", "to": "D"}]},
    "a pointer behind the matrix": {"parameters": [{"type": "pointer", "to": "A", "offset": 256 * 128 * 2}]},
    "a pointer before the matrix": {"parameters": [{"type": "pointer", "to": "A", "offset": -2}]},
    "a workspace not asked for": {"workspace": 0},
    "half a byte": {"parameters": [{"type": "bytes", "hex": "012"}]},
    "no hex": {"parameters": [{"type": "bytes", "hex": "xy"}]},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_said_in_one_line_with_a_remedy(folder, change) -> None:
    (folder / foreign.LAUNCH).write_text(json.dumps(GOOD | change))
    with pytest.raises(ValueError, match=r"; .*write") as said:
        foreign.read(folder)
    assert str(folder) in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", json.dumps({"problem": "256_256_256"})])
def test_a_launch_that_is_none(folder, text: str) -> None:
    (folder / foreign.LAUNCH).write_text(text)
    with pytest.raises(ValueError, match=r"launch\.json.*write"):
        foreign.read(folder)


@pytest.mark.parametrize("name", [foreign.CUBIN, foreign.LAUNCH])
def test_a_file_that_is_missing(folder, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"cannot read .*{name}.*; a folder"):
        foreign.read(folder)


def test_a_cubin_that_is_none(folder, monkeypatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ValueError, match="not an ELF file"):
        foreign.read(folder)
