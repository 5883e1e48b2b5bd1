"""A game in a folder: what it leaves there, how it goes on, who may play; what cannot be played says what to do."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from sass.planted import listing

from cudal2 import cli
from cudal2.config import SassConfig, load
from cudal2.polish import finish, judging, run
from cudal2.polish.judging import Judge
from cudal2.polish.subject import Subject
from cudal2.problem import parse
from cudal2.records import Edit, HarnessFault, Measured, Status, edit_from_json
from cudal2.sass.simulator import Simulated
from cudal2.tracking import read_metrics

SUBJECT = Subject(b"", listing(), parse("64_64_64"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Edit]:
    """The edits that were measured, by the simulator; no cubin is looked at."""
    edits, simulated = list[Edit](), Simulated(listing())

    def measure(edit: Edit) -> Measured:
        edits.append(edit)
        return simulated([edit])[0]

    @contextmanager
    def opened(subject: Subject, config: SassConfig):
        yield Judge(measure, lambda edit: simulated([edit])[0], lambda: Measured(Status.OK, 1.01, 1.0, 1.02, 7), "")

    monkeypatch.setattr(judging, "opened", opened)
    return edits


def config(folder: Path, *more: str) -> SassConfig:
    return load("sass", [f"run={folder}", "search.measurements=12", "floor=2", *more], SassConfig)


def test_searches_are_compared_and_go_on_where_they_were(asked: list[Edit], tmp_path: Path) -> None:
    found, floor = run.compare(SUBJECT, config(tmp_path), ("random", "greedy"))
    assert [(one.method, one.measurements) for one in found] == [("random", 12), ("greedy", 12)]
    assert len(asked) == 24
    rows = read_metrics(tmp_path / "greedy/metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert edit_from_json((tmp_path / "greedy/edit.json").read_bytes()) == found[1].edit
    said = finish.finished(SUBJECT, config(tmp_path), found, floor)
    assert all(word in said for word in ("random", "greedy", "0.0100", "simulator"))
    assert len(json.loads((tmp_path / "compare.json").read_bytes())["found"]) == 2
    again, _ = run.compare(SUBJECT, config(tmp_path, "search.measurements=15"), ("random", "greedy"))
    assert [one.measurements for one in again] == [15, 15] and len(asked) == 30
    assert len(read_metrics(tmp_path / "greedy/metrics.jsonl")) == 15
    with pytest.raises(ValueError, match=r"seed.*run="):
        run.compare(SUBJECT, config(tmp_path, "seed=1"), ("greedy",))


def test_one_process_plays_in_a_folder(asked: list[Edit], tmp_path: Path) -> None:
    with run._alone(tmp_path), pytest.raises(ValueError, match="another process"):
        run.play(SUBJECT, config(tmp_path))
    with pytest.raises(ValueError, match="annealing"):
        run.play(SUBJECT, config(tmp_path, "search.method=luck"))
    assert not asked


def test_a_winner_is_above_the_floor() -> None:
    def found(low: float, status: Status = Status.OK) -> run.Found:
        measured = Measured(status, 1.1, low, 1.2, 7)
        return run.Found("greedy", 1, 0.0, Edit("k", "0"), measured, measured)

    assert finish.winner([found(1.005), found(0.99)], 0.01) is None
    assert finish.winner([found(1.02), found(1.05), found(1.3, Status.WRONG)], 0.01) == found(1.05)
    assert finish.winner([], 0.0) is None


def test_without_what_ppo_needs_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from cudal2.sass.game import needs

    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"gymnasium.*pip install"):
        needs.needed("gymnasium")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.cubin", None, "cannot read"),
        ("gone.cu", None, "cannot read"),
        ("noise.cubin", b"noise", "compile"),
        ("cut.cubin", b"\x7fELF\2\1\1" + bytes(100), "compile"),
        ("folder", "folder", "archive"),
    ],
)
def test_what_cannot_be_played_says_what_to_do(name, content, said, tmp_path, capsys) -> None:
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    assert cli.main(["sass", "list", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_cubin_alone_has_no_gpu_to_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((ValueError, HarnessFault)), judging.opened(SUBJECT, config(tmp_path, "judge=gpu")):
        pass
