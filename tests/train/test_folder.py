"""A folder holds one run of one kind, and says so once the run exists."""

import msgspec
import pytest
import specimens

from cudal2.archive import Archive
from cudal2.config import SftConfig, TrainConfig, TrainerConfig, WorkerConfig
from cudal2.train.folder import changes, check, record, stored


def test_a_folder_of_another_kind_is_refused(tmp_path):
    record(tmp_path / "config.json", SftConfig(run="x"))
    assert stored(tmp_path, SftConfig) == SftConfig(run="x")
    with pytest.raises(ValueError, match="choose another run="):
        check(tmp_path, TrainConfig(run="x"))
    record(tmp_path / "config.json", TrainConfig(run="x"))
    with pytest.raises(ValueError, match="choose another run="):
        stored(tmp_path, SftConfig)
    assert stored(tmp_path / "none", SftConfig) is None


def test_what_an_earlier_version_did_not_know_is_at_its_default(tmp_path):
    plain = msgspec.to_builtins(TrainConfig(run="x", seed=3))
    del plain["trainer"]["micro_batch"], plain["worker"]["devices"]
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(plain))
    assert stored(tmp_path, TrainConfig) == TrainConfig(run="x", seed=3)


def test_a_start_of_which_nothing_was_judged_binds_nobody(tmp_path):
    record(tmp_path / "config.json", TrainConfig(run="x"))
    check(tmp_path, TrainConfig(run="x", seed=1))
    with Archive(tmp_path / "archive.sqlite") as archive:
        check(tmp_path, TrainConfig(run="x", seed=1))
        origin = {"kind": "train", "run": "x", "step": 1, "index": 0, "prompt": "", "policy": "", "reward": 0.0}
        archive.add(specimens.verdict(specimens.candidate()), specimens.candidate(), origin)
    check(tmp_path, TrainConfig(run="y"))
    with pytest.raises(ValueError, match="seed=0 became 1"):
        check(tmp_path, TrainConfig(run="x", seed=1))


def test_changes_are_named_but_for_keys_that_no_result_depends_on():
    before = TrainConfig(run="x")
    assert changes(before, TrainConfig(run="y", seed=1)) == "seed=0 became 1"
    assert (
        changes(before, TrainConfig(run="x", trainer=TrainerConfig(steps=7, beta=0.5)))
        == "trainer.beta=auto became 0.5"
    )
    assert changes(SftConfig(run="x"), SftConfig(run="x", verify=3, worker=WorkerConfig(min_pairs=3))) == ""
