"""CUDA text that is read on: once each, its licence known, no held-out shape in it, no end where a text was cut."""

import json

import pytest
from fakes import save_policy
from transformers import AutoTokenizer

from cudal2.config import PolicyConfig, SftConfig
from cudal2.problem import grid
from cudal2.split import held_out, training
from cudal2.train.sft import text
from cudal2.worker.cuda.compile import toolchain

HELD_OUT = next(problem.mnk for problem in grid() if held_out(problem))
SEEN = training()[0].mnk
BSD = "/* Copyright (c) 2025 somebody\n * SPDX-License-Identifier: BSD-3-Clause */\n"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "kernels"
    (place / "deep").mkdir(parents=True)
    (place / "LICENSE").write_text("MIT License\n")
    (place / "a.cu").write_text(BSD + "int a;\r\n")
    (place / "deep/b.cuh").write_text("// adds\nint b;\n")
    (place / "deep/copy.cu").write_text("int a;\n")
    (place / "deep" / f"{HELD_OUT}.cu").write_text("int c;\n")
    (place / "named.cu").write_text(f"void k_{HELD_OUT}_tn() {{}}\n")
    (place / f"{SEEN}.cu").write_text("int d;\n")
    (place / "table.cu").write_text("1," * text.LONGEST)
    (place / "notes.txt").write_text("int e;\n")
    return place


def config(tmp_path, *names, **fields) -> SftConfig:
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    policy = PolicyConfig(path="somewhere")
    return SftConfig(run=str(run), policy=policy, examples="text", text=tuple(map(str, names)), **fields)


def test_each_text_of_a_folder_is_read_once_and_its_licence_noted(tmp_path, folder):
    words = AutoTokenizer.from_pretrained(save_policy(tmp_path / "policy"))
    rows = text.rows(config(tmp_path, folder), words)
    notes = json.loads((tmp_path / "run/text.json").read_text())
    licences = {one["name"].removeprefix(f"{folder}/"): one["licence"] for one in notes["read"]}
    assert licences == {"a.cu": "BSD-3-Clause", "deep/b.cuh": "LICENSE", f"{SEEN}.cu": "LICENSE"}
    assert len(rows) == 3 == len({row.digest for row in rows})
    why = {one["name"].removeprefix(f"{folder}/"): one["why"] for one in notes["left_out"]}
    assert why.keys() == {"deep/copy.cu", f"deep/{HELD_OUT}.cu", "named.cu", "table.cu"}
    assert HELD_OUT in why["named.cu"] and "a.cu" in why["deep/copy.cu"]


def test_the_terms_of_a_licence_are_not_learnt_but_a_comment_is(tmp_path, folder):
    found = {one.name: one.text for one in text.documents(config(tmp_path, folder))}
    assert found[f"{folder}/a.cu"] == "int a;\n" and found[f"{folder}/deep/b.cuh"] == "// adds\nint b;\n"


def test_a_long_text_is_cut_into_pieces_of_which_only_the_last_says_that_it_ends(tmp_path, folder):
    words = AutoTokenizer.from_pretrained(save_policy(tmp_path / "policy"))
    whole = text.rows(config(tmp_path, folder), words)
    pieces = text.rows(config(tmp_path, folder, context=2), words)
    assert all(len(row.ids) <= 2 and row.given == 0 for row in pieces) and len(pieces) > len(whole)
    assert [token for row in pieces for token in row.ids] == [token for row in whole for token in row.ids]
    ends = [row for row in pieces if row.ids[-1] == words.eos_token_id]
    assert len(ends) == len(whole) and all(words.eos_token_id not in row.ids[:-1] for row in pieces)


def test_families_and_cutlass_are_texts_too(tmp_path, folder, monkeypatch):
    assert len({one.text for one in text.documents(config(tmp_path, "families", target="sm_90a", samples=5))}) == 5
    (folder / "copy.hpp").write_text("int f;\n")
    monkeypatch.setattr(text, "cutlass_source", lambda: folder)
    names = [one.name for one in text.documents(config(tmp_path, "cutlass"))]
    assert "cutlass/copy.hpp" in names and "cutlass/a.cu" in names
    monkeypatch.setattr(text, "cutlass_source", lambda: None)
    with pytest.raises(ValueError, match=r"cudal2\[reading\]"):
        list(text.documents(config(tmp_path, "cutlass")))


def test_all_of_cutlass_is_read_wherever_its_package_lies(tmp_path, monkeypatch):
    """A jail gets copies of single folders where its user cannot reach the package: in somebody's home, for one."""
    pytest.importorskip("cutlass_library", reason="nvidia-cutlass is not installed")
    monkeypatch.setattr(toolchain, "reachable", lambda path: tmp_path / "copy" / path.name)
    names = {one.name.split("/")[1] for one in text.documents(config(tmp_path, "cutlass"))}
    assert {"include", "tools", "examples"} <= names


@pytest.mark.parametrize("name", ["nowhere", "famillies"])
def test_a_name_that_leads_nowhere_and_a_folder_without_text_are_named(tmp_path, name):
    with pytest.raises(ValueError, match=f"'{name}' is no folder"):
        text.rows(config(tmp_path, name), None)
    with pytest.raises(ValueError, match="leaves nothing to read"):
        text.rows(config(tmp_path, tmp_path), None)
