"""An archive goes out as a dataset and comes back whole; what is no dataset is told in one line."""

import json
from pathlib import Path

import pytest
import yaml
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, edited, verdict

from cudal2 import cli, dataset
from cudal2.archive import Archive
from cudal2.archive.selection import Comparable
from cudal2.problem import Problem
from cudal2.records import Status

BIAS = Problem(7, 64, 128, "nn", "f32", "bf16", "bias")
FORMS = ("parquet", "jsonl")


def fill(run: Path) -> None:
    """Samples of every kind, a verdict without one, an edit, a second measurement, another environment, odd text."""
    with Archive.of(run) as archive:
        for index, (text, speedup) in enumerate((("a", 1.5), ("b", 0.5), ("c", None), ("d \0 \u2028 😀 'q\"", 1.1))):
            one = candidate(text)
            where = {"kind": "train", "run": "r", "step": 1, "index": index, "policy": "p", "prompt": "Write |it|\n"}
            archive.add(verdict(one, speedup, log=f"log {text}"), one, where | {"reward": speedup, "turn": index})
        archive.add(verdict(candidate("a"), 1.2), candidate("a"), None)  # measured again
        archive.add(verdict(edited("a"), 1.6), edited("a"), {"kind": "search", "run": "s", "step": 0, "index": 0})
        other = candidate("other", BIAS)
        archive.add(verdict(other, 3.0, ELSEWHERE), other, {"kind": "serve", "run": "c", "step": 2, "index": 0})
        for step in (3, 4):  # one verdict, two samples
            archive.add(verdict(other, 3.0, ELSEWHERE), other, {"kind": "serve", "run": "c", "step": step, "index": 0})
        lost = candidate("lost")
        archive.add(
            verdict(lost, None, status=Status.TIMEOUT), lost, {"kind": "eval", "run": "e", "step": 0, "index": 0}
        )


def everything(run: Path) -> dict[str, list]:
    with Archive.of(run, create=False) as archive:
        return {
            "verdicts": archive.rows("SELECT identity, source, problem, status, low, body FROM verdicts ORDER BY id"),
            "sources": archive.rows("SELECT * FROM sources ORDER BY hash"),
            "edits": archive.rows("SELECT * FROM edits"),
            "samples": list(archive.samples()),
            "prompts": archive.rows("SELECT prompt, policy FROM samples ORDER BY kind, run, step, position"),
        }


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("run")
    fill(run)
    return run


@pytest.mark.parametrize("form", FORMS)
def test_what_goes_out_comes_back_whole(run, tmp_path, form):
    file, count = dataset.export(run, tmp_path / "out", form)
    assert (file.name, count) == (f"data.{form}", 10)
    assert dataset.join(tmp_path / "out", tmp_path / "again") == (10, 8)
    assert everything(tmp_path / "again") == everything(run)
    assert dataset.join(file, tmp_path / "again") == (10, 0)  # twice changes nothing
    assert everything(tmp_path / "again") == everything(run)
    with Archive.of(tmp_path / "again") as archive:  # and the last measurement is the one that counts
        assert Comparable(archive, "cpu", HERE.fingerprint).best(PROBLEM).verdict.speedup == 1.6


@pytest.mark.parametrize("form", FORMS)
def test_others_can_read_it(run, tmp_path, form):
    """With `datasets`, as the card says, which finds the file by the card's head."""
    import datasets

    dataset.export(run, tmp_path / "out", form)
    rows = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.num_rows == 10 and rows[0]["problem"] == "64_128_256_tn_f32"
    by_text = {row["source"].split("\n")[0]: row for row in rows if row["kind"] == "train"}
    slow, fast = by_text["// b"], by_text["// a"]
    assert slow["better"] == fast["source"] and slow["speedup"] == 0.5 and fast["prompt"] == "Write |it|\n"
    assert fast["better"] == "" and by_text["// c"]["better"] and by_text["// c"]["low"] is None
    other = next(row for row in rows if row["epilogue"] == "bias")
    assert (other["m"], other["dtype"], other["better"]) == (7, "bf16", "")
    assert {row["split"] for row in rows} <= {"train", "unseen"}
    assert json.loads(fast["verdict"])["status"] == fast["status"] == "ok"


def test_the_card_says_how_it_was_made(run, tmp_path):
    dataset.export(run, tmp_path / "out", "jsonl", "mit")
    head, text = (tmp_path / "out/README.md").read_text().split("---\n", 2)[1:]
    assert yaml.safe_load(head) == {
        "license": "mit",
        "tags": ["code", "gpu-kernels", "reinforcement-learning"],
        "configs": [{"config_name": "default", "data_files": "data.jsonl"}],
    }
    for said in (HERE.device, ELSEWHERE.device, HERE.fingerprint, "| train | p | 4 |", "| timeout | 1 |", "`mit`"):
        assert said in text
    dataset.export(run, tmp_path / "out", "jsonl")
    assert "license" not in (tmp_path / "out/README.md").read_text()


def changed(file: Path, number: int, **fields) -> None:
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    rows[number] |= fields
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"source": "another"}, "not the one that was judged"),
        ({"status": "wrong"}, "not those of its verdict"),
        ({"problem": "8_8_8_tn_f32"}, "not those of its verdict"),
        ({"verdict": "{}"}, "missing required field"),
        ({"kind": "guess"}, "Invalid enum value"),
        ({"step": None}, "step"),
        ({"m": "64"}, "Expected `int`"),
    ],
)
def test_a_row_that_lies_is_found_and_those_before_it_are_kept(run, tmp_path, fields, said):
    file, _ = dataset.export(run, tmp_path / "out", "jsonl")
    changed(file, 2, **fields)
    with pytest.raises(ValueError, match=f"row 3 is none.*{said}"):
        dataset.join(file, tmp_path / "again")
    assert len(everything(tmp_path / "again")["samples"]) == 2


def test_what_is_no_dataset_is_one_line(run, tmp_path, capsys):
    for name, text in (("a.jsonl", "{"), ("a.parquet", "no"), ("b.jsonl", "[1]\n")):
        (tmp_path / name).write_text(text)
        assert cli.main(["archive", "import", str(tmp_path / name), str(tmp_path / "again")]) == 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["archive", "import", str(tmp_path / "empty"), str(tmp_path / "again")]) == 2
    for form in FORMS:
        assert cli.main(["archive", "export", str(run), f"format={form}", f"out={tmp_path / 'two'}"]) == 0
    assert cli.main(["archive", "import", str(tmp_path / "two"), str(tmp_path / "again")]) == 2
    assert cli.main(["archive", "export", str(tmp_path / "nothing")]) == 2
    assert cli.main(["archive", "export", str(run), "format=csv"]) == 2
    with Archive.of(tmp_path / "bare"):
        pass
    assert cli.main(["archive", "export", str(tmp_path / "bare")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 8 and all(line.startswith("cudal2: ") for line in said)
    assert "name one of them" in said[4] and "holds no verdict" in said[7]
    assert not list((tmp_path / "bare/dataset").iterdir())
