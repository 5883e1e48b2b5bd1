"""What Weights & Biases keeps of a run, read back from the disk: it is offline unless told."""

import json
from contextlib import nullcontext
from pathlib import Path

import fakes
import pytest
from sass.planted import listing

from cudal2 import parcel
from cudal2.config import SassConfig, TrainConfig, load
from cudal2.problem import parse
from cudal2.records import Measured, Status
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.polish import run as polish
from cudal2.sass.polish.subject import Judge, Subject
from cudal2.tracking import read_metrics
from cudal2.train import grpo

pytestmark = pytest.mark.parts


@pytest.fixture(autouse=True)
def on_its_own(tmp_path, monkeypatch):
    """No login, no settings, no files of the user's: and whoever would ask a network fails."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A run of two steps, one more by a second start, and a run beside it."""
    monkeypatch.setattr(grpo, "Pool", fakes.FakePool)
    policy = fakes.save_policy(tmp_path / "policy")

    def train(name: str, *more: str) -> Path:
        grpo.run(load("train", [*fakes.tiny(tmp_path / name, policy), "tracker=wandb", *more], TrainConfig))
        return tmp_path / name

    folder = train("run", "trainer.steps=2")
    train("run", "trainer.steps=3", "tracker.policy=true", "tracker.kernels=4")
    return folder, train("other", "trainer.steps=1")


def test_a_run_is_read_back_from_the_disk(trained, tmp_path):
    import offline_run

    folder, other = trained
    starts = offline_run.starts(folder)
    assert len(starts) == 2 and len({start.run.run_id for start in starts}) == 1
    assert starts[0].run.run_id != offline_run.starts(other)[0].run.run_id
    assert starts[0].run.project == "cudal2" and starts[0].run.display_name == f"{tmp_path.name}/run"

    kept = json.loads((folder / "config.json").read_text())
    assert {name: starts[1].config[name] for name in kept} == kept

    rows = [row for start in starts for row in start.rows]
    for row, told in zip(rows, read_metrics(folder / "metrics.jsonl"), strict=True):
        assert {key: row[key] for key in ("reward_mean", "speedup_best", "loss")} == {
            key: told[key] for key in ("reward_mean", "speedup_best", "loss")
        }
        assert row["_step"] == told["step"] and row["seconds.judge"] == told["seconds"]["judge"]

    for row, most in zip(rows, (32, 32, 4), strict=True):
        table = offline_run.table(folder, row, "kernels")
        assert 0 < len(table) <= most
        assert [one["reward"] for one in table] == sorted((one["reward"] for one in table), reverse=True)
        for one in table:
            assert one["status"] in row_statuses(row) and parse(one["problem"])
            assert ("hgemm(){}" in one["source"]) or one["status"] != "ok"
            assert (one["speedup"] is not None) == (one["status"] == "ok")

    first, second = ({artefact.type: artefact for artefact in start.artefacts} for start in starts)
    assert "policy" not in first and {"run", "policy"} <= second.keys()
    files = second["run"].files
    assert json.loads(files["config.json"]) == kept
    assert files["metrics.jsonl"].count(b"\n") == 3
    sources = [name for name in files if name.endswith(".cpp")]
    assert sources and all(b"hgemm(){}" in files[name] for name in sources)
    assert all(json.loads(files[name.replace(".cpp", ".json")])["status"] == "ok" for name in sources)
    weights = folder / "checkpoints/checkpoint-3/model.safetensors"
    assert second["policy"].files["model.safetensors"] == weights.read_bytes()
    assert "optimizer.pt" not in second["policy"].files
    assert not list((tmp_path / "home").rglob("staging"))  # what artefacts hold lies in the run's folder

    parcel.pack(folder, tmp_path / "parcel", tmp_path / "cache")
    parcel.unpack(tmp_path / "parcel", tmp_path / "elsewhere", tmp_path / "cache2")
    assert (tmp_path / "elsewhere/wandb_id").read_text().strip() == starts[0].run.run_id


def row_statuses(row: dict) -> set[str]:
    return {key.removeprefix("statuses.") for key in row if key.startswith("statuses.")}


def test_a_game_is_read_back_too(tmp_path, monkeypatch):
    import offline_run

    simulated = Simulated(listing())

    def opened(subject, config):
        def measure(edit, best=1.0):
            return simulated([edit])[0]

        return nullcontext(Judge(measure, measure, measure, lambda: Measured(Status.OK, 1.0, 1.0, 1.0), ""))

    monkeypatch.setattr(polish, "opened", opened)
    words = [f"run={tmp_path}", "search.measurements=12", "tracker=wandb", "search.method=greedy", "floor=0"]
    polish.compare(Subject(b"", listing(), parse("64_64_64")), load("sass", words, SassConfig), ("greedy", "random"))
    (start,), (random,) = (offline_run.starts(tmp_path / method) for method in ("greedy", "random"))
    assert start.run.run_id != random.run.run_id and start.run.display_name == f"{tmp_path.name}/greedy"
    assert [row["step"] for row in start.rows if "step" in row] == list(range(1, 13))
    table = offline_run.table(tmp_path / "greedy", start.rows[-1], "kernels")
    assert len(table) == 12 and table[0]["low"] == max(one["low"] for one in table)
    assert "shift" in table[0]["edit"] or "control" in table[0]["edit"]
    (kept,) = (one for one in start.artefacts if one.type == "run")
    assert kept.files["edit.json"] == (tmp_path / "greedy/edit.json").read_bytes()
    assert {"metrics.jsonl", "journal.jsonl", "found.json"} <= kept.files.keys()


def test_online_wants_a_login(tmp_path):
    with pytest.raises(ValueError, match="wandb login"):
        grpo.run(
            load(
                "train",
                [*fakes.tiny(tmp_path / "run", fakes.save_policy(tmp_path)), "tracker=wandb", "tracker.mode=online"],
                TrainConfig,
            )
        )
