"""A packed run arrives whole, in files small enough to be carried; a damaged one is refused."""

import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest
import specimens

from cudal2 import parcel
from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.evaluation.results import only_evaluation_of
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.worker.cache import Cache

CANDIDATE = Candidate("int hgemm;", Problem(64, 64, 64))


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    checkpoint = folder / "checkpoints/checkpoint-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(os.urandom(300_000))
    (folder / "checkpoints/checkpoint-30").mkdir()  # left half-written by a kill
    (folder / "eval").mkdir()
    for name in ("config.json", "metrics.jsonl", "eval/results.json"):
        (folder / name).write_text(f"this is {name}")
    with Archive(folder / "archive.sqlite") as archive:
        archive.add(specimens.verdict(CANDIDATE), CANDIDATE, Origin(kind="train", run="run", step=1, index=0))
    cache = Cache(tmp_path / "cache")
    cache.write("verdicts", specimens.verdict(CANDIDATE).key, b"of this run")
    cache.write("verdicts", "ab" * 32, b"of another run")
    cache.write("baselines", "cd" * 32, b"tuned")
    cache.write("builds", "ef" * 32, b"large")
    return folder


def test_what_is_needed_to_go_on_arrives(run, tmp_path, monkeypatch):
    assert parcel.PART_BYTES <= 16e6
    monkeypatch.setattr(parcel, "PART_BYTES", 100_000)
    count = parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")
    parts = list((tmp_path / "parcel").iterdir())
    assert len(parts) == count > 3 and max(part.stat().st_size for part in parts) <= 100_000
    there = tmp_path / "there"
    parcel.unpack(tmp_path / "parcel", there, tmp_path / "cache there")
    for name in ("config.json", "metrics.jsonl", "eval/results.json", "checkpoints/checkpoint-20/model.safetensors"):
        assert (there / name).read_bytes() == (run / name).read_bytes()
    assert not (there / "checkpoints/checkpoint-30").exists()
    with Archive(there / "archive.sqlite") as archive:
        assert [sample.origin.step for sample in archive.samples()] == [1]
    brought = Cache(tmp_path / "cache there")
    assert brought.read("verdicts", specimens.verdict(CANDIDATE).key) == b"of this run"
    assert brought.read("baselines", "cd" * 32) == b"tuned"
    assert brought.read("verdicts", "ab" * 32) is None and brought.read("builds", "ef" * 32) is None


def test_what_training_has_made_takes_the_place_of_its_checkpoint(run, tmp_path):
    for name in ("policy/model.safetensors", "sass/64_64_64_tn_f32-ab/greedy/journal.jsonl"):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text(name)
    parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")
    there = tmp_path / "there"
    parcel.unpack(tmp_path / "parcel", there, tmp_path / "cache there")
    assert (there / "policy/model.safetensors").read_text() == "policy/model.safetensors"
    assert (there / "sass/64_64_64_tn_f32-ab/greedy/journal.jsonl").exists() and not (there / "checkpoints").exists()


def test_what_a_machine_found_itself_stays_and_built_kernels_are_not_taken(run, tmp_path, monkeypatch):
    """A parcel may say anything: what it holds of others' kernels must not take the place of what was built here."""
    monkeypatch.setattr(parcel, "CACHED", ("verdicts", "baselines", "builds"))
    parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")
    monkeypatch.undo()
    here = Cache(tmp_path / "cache here")
    here.write("baselines", "cd" * 32, b"tuned here")
    parcel.unpack(tmp_path / "parcel", tmp_path / "there", here.root)
    assert here.read("baselines", "cd" * 32) == b"tuned here" and here.read("builds", "ef" * 32) is None
    assert here.read("verdicts", specimens.verdict(CANDIDATE).key) == b"of this run"


def test_a_parcel_with_a_part_missing_or_cut_off_is_refused(run, tmp_path):
    parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")
    last = max((tmp_path / "parcel").iterdir())
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(ValueError, match="no complete packed run"):
        parcel.unpack(tmp_path / "parcel", tmp_path / "there", tmp_path / "cache")
    assert not (tmp_path / "there").exists(), "half a run must not be taken for one"
    (tmp_path / "parcel/part.000").unlink()
    with pytest.raises(ValueError, match="parts"):
        parcel.unpack(tmp_path / "parcel", tmp_path / "elsewhere", tmp_path / "cache")


def test_what_is_being_evaluated_is_not_packed(run, tmp_path):
    """Rows move from one file to the other meanwhile, and would be in neither."""
    with only_evaluation_of(run), pytest.raises(ValueError, match="evaluated by another process"):
        parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")


def test_nothing_is_written_over(run, tmp_path):
    with pytest.raises(ValueError, match="not empty"):
        parcel.pack(run, run, tmp_path / "cache")
    parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")
    with pytest.raises(ValueError, match="not empty"):
        parcel.unpack(tmp_path / "parcel", run, tmp_path / "cache")
    with pytest.raises(ValueError, match="no run"):
        parcel.pack(tmp_path, tmp_path / "other", tmp_path / "cache")


def sent(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """A parcel of somebody else's making."""
    folder.mkdir()
    with lzma.open(folder / "part.000", "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return folder


def entry(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


@pytest.mark.parametrize(
    "members",
    [
        [(entry("cache/verdicts/../builds/ef/efef"), b"of theirs")],
        [(entry("cache/./builds/ef/efef"), b"of theirs")],
        [(entry("cache/verdicts/ab", tarfile.SYMTYPE, "../builds/ef"), b""), (entry("cache/verdicts/ab/efef"), b"x")],
        [(entry("cache/verdicts/ab/abab", tarfile.LNKTYPE, "builds/ef/here"), b"")],
        [
            (entry("run/config.json"), b"{}"),
            (entry("cache/baselines/cd/cdcd", tarfile.SYMTYPE, "../../builds/ef/here"), b""),
        ],
        [(entry("run/../../outside"), b"of theirs")],
        [(entry("run//outside"), b"of theirs")],
        [(entry("run/archive.sqlite", tarfile.FIFOTYPE), b"")],
        [(entry("elsewhere/file"), b"")],
        [(entry("cache/verdicts/ab/abab"), b"no run is in it")],
        [(entry("run/config.json"), b"{}"), (entry("run/config.json"), b"{}")],
        [(entry("run/config.json"), b"{}"), (entry("run/config.json/deeper"), b"{}")],
        [(entry("run/config.json", tarfile.SYMTYPE, "../../cache/builds/ef/here"), b"")],
        [(entry("run/config.json", tarfile.LNKTYPE, "cache/builds/ef/here"), b"")],
    ],
)
def test_what_pack_writes_no_parcel_of_is_refused(tmp_path, members):
    """Another place by a name that leads elsewhere, or by a link, and what is no file; nothing of it stays."""
    builds = tmp_path / "cache" / "builds" / "ef"
    builds.mkdir(parents=True)
    (builds / "here").write_bytes(b"built here")
    (tmp_path / "cache" / "verdicts").mkdir()
    with pytest.raises(ValueError, match="no complete packed run"):
        parcel.unpack(sent(tmp_path / "parcel", *members), tmp_path / "run", tmp_path / "cache")
    assert [path.name for path in builds.iterdir()] == ["here"] and (builds / "here").read_bytes() == b"built here"
    assert not (tmp_path / "run").exists() and not (tmp_path / "outside").exists()
    assert not any((tmp_path / "cache" / "verdicts").iterdir()) and not (tmp_path / "cache" / "baselines").exists()


def test_it_works_and_is_as_careful_where_python_has_no_filters_yet(run, tmp_path, monkeypatch):
    """3.11.0 to 3.11.3: `TarFile.extract` takes no `filter` there, and would make what a member asks for."""
    for name in ("data_filter", "tar_filter", "fully_trusted_filter"):
        monkeypatch.delattr(tarfile, name)
    for name in ("extract", "extractall"):
        monkeypatch.setattr(tarfile.TarFile, name, lambda *_, **__: pytest.fail("it trusts the members"))
    (run / "config.json").chmod(0o4777)
    parcel.pack(run, tmp_path / "parcel", tmp_path / "cache")
    parcel.unpack(tmp_path / "parcel", tmp_path / "there", tmp_path / "cache there")
    config = tmp_path / "there/config.json"
    assert config.read_text() == "this is config.json" and not config.stat().st_mode & 0o6111
