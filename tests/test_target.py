"""What targets differ in stands in their records, and a target of a new kind is one more of them."""

import re
from pathlib import Path

import msgspec
import pytest

import cudal2
from cudal2 import bench, target
from cudal2.config import BenchManyConfig, SassConfig, TrainConfig, load
from cudal2.problem import parse
from cudal2.sass.polish import subject
from cudal2.target import CPU, find, targets

NEW = msgspec.structs.replace(CPU, name="toy", kind="toy", protocols=("device", "offline"), suffix=".toy")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> target.Target:
    monkeypatch.setitem(target.TARGETS, NEW.name, NEW)
    return NEW


def test_a_record_adds_a_target_of_another_kind(added, monkeypatch) -> None:
    assert find("toy") is added and targets()["toy"] is added
    assert load("train", ["run=x", "target=toy"], TrainConfig).target == "toy"
    asked: list[str] = []

    class Judge:
        def __init__(self, worker, name: str) -> None:
            assert name == "toy"

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def baseline_seconds(self, problem, protocol: str = "device") -> dict[str, float]:
            asked.append(protocol)
            return {"torch": 1e-6}

    monkeypatch.setattr(bench, "Worker", Judge)
    (row,) = bench.baseline(parse("7_64_64_tn_f32_bf16_bias"), load("bench", ["target=toy"], BenchManyConfig))
    assert asked == ["device", "offline"] and row["offline_us"] == pytest.approx(1.0)


def test_what_a_target_lacks_is_said_and_not_tried(added) -> None:
    config = msgspec.structs.replace(load("sass", ["run=x"], SassConfig), target="toy")
    with pytest.raises(ValueError, match="code of toy is not edited"):
        subject.find(Path("kernel.cu"), config)


def test_no_place_but_a_worker_asks_for_a_kind_by_name() -> None:
    """Else a new kind would be forgotten there."""
    root = Path(cudal2.__file__).parent
    files = [path for path in root.rglob("*.py") if "worker" not in path.relative_to(root).parts]
    found = [path.name for path in files if re.search(r"\.kind [!=]= [\"']c", path.read_text())]
    assert not found, "ask the target's record"
