"""A game in a folder: what it leaves there, how it goes on, who may play; what cannot be played says what to do."""

import importlib
import json
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from sass.planted import listing

from cudal2 import cli
from cudal2.config import SassConfig, load
from cudal2.problem import parse
from cudal2.records import Edit, Measured, Shift, Status, edit_from_json
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.legality import Legality
from cudal2.sass.polish import run, shapes
from cudal2.sass.polish.subject import Judge, Subject
from cudal2.tracking import read_metrics

SUBJECT = Subject(b"", listing(), parse("64_64_64"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Edit]:
    """The edits that were measured, by the simulator; no cubin is looked at."""
    edits, simulated = list[Edit](), Simulated(listing())

    def measure(edit: Edit, best: float) -> Measured:
        edits.append(edit)
        return simulated([edit])[0]

    @contextmanager
    def opened(subject: Subject, config: SassConfig):
        def again(edit: Edit) -> Measured:
            return simulated([edit])[0]

        yield Judge(measure, again, again, lambda: Measured(Status.OK, 1.01, 1.0, 1.02, 7), "")

    monkeypatch.setattr(run, "opened", opened)
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
    kept = [(tmp_path / method / "found.json").read_bytes() for method in ("random", "greedy")]
    assert [msgspec.json.decode(text, type=run.Found) for text in kept] == found
    said = shapes.finished(SUBJECT, config(tmp_path), found, floor)
    assert all(word in said for word in ("random", "greedy", "0.0100", "simulator"))
    assert len(json.loads((tmp_path / "compare.json").read_bytes())["found"]) == 2
    again, _ = run.compare(SUBJECT, config(tmp_path, "search.measurements=15"), ("random", "greedy"))
    assert [one.measurements for one in again] == [15, 15] and len(asked) == 30
    assert len(read_metrics(tmp_path / "greedy/metrics.jsonl")) == 15
    with pytest.raises(ValueError, match=r"seed.*run="):
        run.compare(SUBJECT, config(tmp_path, "seed=1"), ("greedy",))


def test_luck_in_a_search_does_not_choose_the_winner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The edit that the search thought best is the worst of the finalists, and the third of them is the best."""
    asked, again = list[Edit](), list[Edit]()

    def measure(edit: Edit, best: float) -> Measured:
        asked.append(edit)
        speed = 2.0 - 0.1 * len(asked)
        return Measured(Status.OK, speed, speed, speed, 4)

    def exact(edit: Edit) -> Measured:
        again.append(edit)
        speed = 1.0 + 0.01 * (asked.index(edit) == 2)
        return Measured(Status.OK, speed, speed, speed, 15)

    @contextmanager
    def opened(subject: Subject, config: SassConfig):
        yield Judge(measure, exact, exact, lambda: Measured(Status.OK, 1.0, 1.0, 1.0, 7), "")

    monkeypatch.setattr(run, "opened", opened)
    (found,), _ = run.compare(SUBJECT, config(tmp_path), ("random",))
    assert found.edit == asked[2] and again == [*asked[: run.FINALISTS], asked[2]]
    assert found.measured and found.confirmed and (found.measured.speedup, found.confirmed.speedup) == (1.7, 1.01)
    assert edit_from_json((tmp_path / "random/edit.json").read_bytes()) == asked[2]
    assert run.compare(SUBJECT, config(tmp_path), ("random",))[0] == [found] and len(again) == run.FINALISTS + 1


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

    assert shapes.winner([found(1.005), found(0.99)], 0.01) is None
    assert shapes.winner([found(1.02), found(1.05), found(1.3, Status.WRONG)], 0.01) == found(1.05)
    assert shapes.winner([], 0.0) is None


def test_without_what_ppo_needs_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "cudal2.sass.searches.ppo", raising=False)
    with pytest.raises(ValueError, match=r"gymnasium.*pip install"):
        importlib.import_module("cudal2.sass.searches.ppo")


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


def test_the_gpu_is_spared_proofs_but_not_of_a_winner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Edits of legal moves are let onto it at once; what is confirmed is held to all rules."""
    from cudal2.worker import worker
    from cudal2.worker.cuda import edit_bench as editing

    edit = Edit("planted", "0", (Shift(1, 2),))
    said: list[list[str]] = []

    class Bench:
        def __init__(self, judge, parent, problem, legal, effort) -> None:
            self.legal = legal

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def measure(self, edits, best=1.0) -> list[Measured]:
            said.append(list(self.legal(edits)))
            return [Measured(Status.OK, 1.1, 1.0, 1.2, 7)]

        def again(self, edit) -> Measured:
            return self.measure([edit])[0]

        confirm = again

        def floor(self, thoroughly: bool = False) -> Measured:
            return Measured(Status.OK, 1.0, 1.0, 1.0, 7)

    judge = SimpleNamespace(environment=SimpleNamespace(fingerprint="here"))
    monkeypatch.setattr(worker, "Worker", lambda *_: nullcontext(judge))
    monkeypatch.setattr(editing, "EditBench", Bench)
    monkeypatch.setattr(editing, "parent_of", lambda *_: SimpleNamespace(cubin=b""))
    monkeypatch.setattr(Legality, "why_not", lambda self, edit: "a rule")
    subject = Subject(b"", listing(), parse("64_64_64"), source="")
    with run.opened(subject, config(tmp_path, "judge=gpu")) as gpu:
        assert gpu.measure(edit, 1.0).speedup == 1.1 and gpu.environment == "here"
        gpu.confirm(edit)
    assert said == [[""], ["a rule"]]
    with pytest.raises(ValueError, match="a cubin alone"), run.opened(SUBJECT, config(tmp_path, "judge=gpu")):
        pass
