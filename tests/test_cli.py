"""Each verb hands the right things to the right stage; mistakes end in one line and exit code 2. What a plain
installation lacks is asked for by the name of the extra that pyproject.toml has for it."""

import ast
import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import fakes
import pytest
import specimens
import yaml
from msgspec import convert, to_builtins
from msgspec.structs import replace
from packaging.requirements import Requirement

from cudal2 import bench, cli, completion, dataset
from cudal2.cli import runs
from cudal2.config import EvalConfig, TrainConfig, load
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.results import save
from cudal2.policy.learnt import settled
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, HarnessFault, Measured, Shift, Status, to_json
from cudal2.tracking import read_metrics
from cudal2.train import grpo, judge
from cudal2.train.folder import record
from cudal2.worker.cuda.plan import CudaLaunchable, Recording
from cudal2.worker.outcome import Outcome
from cudal2.worker.timing import ReadFloor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_MESSAGE = {"nvMatmulHeuristics", "pyarrow", "triton", "openenv", "pydantic", "starlette"}
"""Modules whose absence is handled where they are imported; torch and datasets bring the second and third."""


class FakeWorker:
    """Judges by counting words, and remembers its configuration and candidates."""

    asked: tuple = ()

    def __init__(self, config, target):
        FakeWorker.asked = (config,)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def evaluate(self, candidate: Candidate):
        FakeWorker.asked += (candidate,)
        if "fault" in candidate.source:
            raise HarnessFault("the disk is full", "make room")
        return fakes.verdict(candidate)

    def baseline_seconds(self, problem: Problem, protocol: str = "device"):
        return {"slow": 2e-3, "quick": 1e-3}

    def read_floor(self, problem: Problem):
        return ReadFloor("2x512x8", [1e-6, 9e-7, 1.1e-6], {"slow": [4e-6, 3e-6, 5e-6], "quick": [2e-6] * 3})


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    monkeypatch.setattr(bench, "Worker", FakeWorker)
    monkeypatch.setattr(bench, "Pool", fakes.FakePool)


@pytest.fixture
def source(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "kernel.cpp"
        path.write_text(text)
        return str(path)

    return write


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = "import sys, cudal2.cli; cudal2.cli._parser(); print([m for m in ('torch', 'hydra') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_verbs_that_train_nothing_do_not_wait_for_what_trains():
    code = """
import sys
import cudal2.campaign, cudal2.evaluation.run, cudal2.policy.writer, cudal2.report, cudal2.search.loop
import cudal2.search.proposers.policy, cudal2.serving.server
print([name for name in ("transformers", "trl", "peft", "accelerate", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "cudal2.cli", "bench", "aa", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "repeats: 20" in done.stdout and "worker: default, quick" in done.stdout
    missing = subprocess.run([sys.executable, "-m", "cudal2.cli", "trian"], capture_output=True, text=True)
    assert missing.returncode == 2 and "trian" in missing.stderr


@pytest.mark.parametrize("text", ["void hgemm( fast", "bug", ""])
def test_bench_kernel_prints_one_object_and_exits_0_for_any_verdict(source, capsys, text):
    words = "target=cpu problem=256_384_512 layout=nn accumulate=f16 --json worker.threads=3"
    assert cli.main(["bench", "kernel", source(text), *words.split()]) == 0
    printed = json.loads(capsys.readouterr().out)
    config, candidate = FakeWorker.asked
    assert config.threads == 3
    assert candidate == Candidate(text, Problem(256, 384, 512, "nn", "f16"), "cpu")
    assert printed["problem"] == "256_384_512_nn_f16"
    if "fast" in text:
        assert (printed["status"], printed["baseline"]) == ("ok", "base")
        assert printed["speedup"]["low"] < printed["speedup"]["median"] == 2.0 < printed["speedup"]["high"]
    else:
        assert printed["status"] != "ok" and printed["speedup"] is None


@pytest.mark.parametrize("name", ["answer.txt", "answer.md", "kernel.cpp"])
def test_bench_kernel_judges_what_a_model_wrote_or_says_what_it_is(tmp_path, name):
    """A source is judged as it is."""
    for text in ("</think>```cpp\nint hgemm(int fast) { return 0; }```", "import torch"):
        (tmp_path / name).write_text(text)
        assert cli.main(["bench", "kernel", str(tmp_path / name), "target=cpu"]) == 0
        _, candidate = FakeWorker.asked
        found = completion.read(text) if name != "kernel.cpp" else completion.Found(text)
        assert (candidate.source, candidate.missing) == (found.source, found.missing)
    assert name == "kernel.cpp" or "Python" in candidate.missing


def test_bench_kernel_for_people_names_status_and_figures(source, capsys):
    assert cli.main(["bench", "kernel", source("void hgemm( fast")]) == 0
    printed = capsys.readouterr().out
    assert "256_256_256_tn_f32" in printed and "ok" in printed and "2.000" in printed


def test_bench_kernel_judges_an_edit_and_names_it(source, tmp_path, capsys, monkeypatch):
    edit, file = Edit("multiply", "ab" * 32, (Shift(3, 4),)), tmp_path / "edit.json"
    file.write_text(to_json(edit))
    beside = to_builtins(Measured(Status.OK, 1.25, 1.24, 1.26, 25))
    monkeypatch.setattr("cudal2.worker.cuda.edit_bench.parent_of", lambda *_: None)
    monkeypatch.setattr(bench, "_beside", lambda *_: {"beside": beside})
    assert cli.main(["bench", "kernel", source("void hgemm( fast"), "target=cpu", f"edit={file}"]) == 0
    printed = capsys.readouterr().out
    assert FakeWorker.asked[1].edit == edit and edit.name in printed and "1.250" in printed
    file.write_text('{"kernel": "multiply"}')
    assert cli.main(["bench", "kernel", source("void hgemm( fast"), "target=cpu", f"edit={file}"]) == 2
    assert "sha256" in capsys.readouterr().err


def test_bench_kernel_shows_counters_beside_those_of_the_unedited_kernel(source, tmp_path, capsys, monkeypatch):
    def evaluate(self, candidate: Candidate):
        value = 25.5 if candidate.edit else 20.25
        return replace(fakes.verdict(candidate), counters={"tensor_pct": value, "stall_drain": 0.0})

    (tmp_path / "edit.json").write_text(to_json(Edit("multiply", "ab" * 32)))
    monkeypatch.setattr(FakeWorker, "evaluate", evaluate)
    command = ["bench", "kernel", source("void hgemm( fast"), "worker.counters=true", f"edit={tmp_path / 'edit.json'}"]
    assert cli.main([*command, "worker.protocols=[]"]) == 0
    printed = capsys.readouterr().out
    assert FakeWorker.asked[0].counters and "stall_drain" not in printed
    assert re.search(r"counter +unedited\n", printed) and re.search(r"tensor_pct +25.5 +20.25\n", printed)


def test_bench_kernel_reads_a_folder_with_a_cubin_once(tmp_path, capsys, monkeypatch):
    reads = []

    def read(folder: Path):
        reads.append(folder)
        return Problem(256, 512, 128), CudaLaunchable(b"", b"gemm", Recording(0, ()))

    here = SimpleNamespace(target=SimpleNamespace(name="sm_90a"))
    monkeypatch.setattr("cudal2.worker.cuda.foreign.read", read)
    monkeypatch.setattr("cudal2.worker.cuda.device.find", lambda: here)
    monkeypatch.setattr(FakeWorker, "measure", lambda *_: Outcome(Status.WRONG, "no product"), raising=False)
    assert cli.main(["bench", "kernel", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "256_512_128_tn_f32 on sm_90a: wrong  no product\n"
    assert reads == [tmp_path]


def test_bench_baseline_ranks_by_speed(capsys):
    assert cli.main(["bench", "baseline", "problem=64_64_64", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["baseline"] for row in rows] == ["quick", "slow"]
    assert rows[0]["gflops"] == pytest.approx(2 * 64**3 / 1e-3 / 1e9)


def test_bench_floor_says_what_share_of_each_baseline_reading_is(capsys):
    words = ["bench", "floor", "problem=8_512_256,64_64_64_tn_f32_bf16_bias", "target=sm_90a"]
    assert cli.main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["problem"], row["baseline"], row["share"]) for row in rows] == [
        *(("8_512_256_tn_f32", "quick", 0.5), ("8_512_256_tn_f32", "slow", 0.25)),
        *(("64_64_64_tn_f32_bf16_bias", "quick", 0.5), ("64_64_64_tn_f32_bf16_bias", "slow", 0.25)),
    ]
    assert [row["bytes"] for row in rows[::2]] == [2 * (8 * 256 + 512 * 256 + 8 * 512), 2 * (3 * 64 * 64 + 64)]
    assert rows[0]["tb_per_s"] == pytest.approx(rows[0]["bytes"] / 1e-6 / 1e12)
    assert (rows[0]["low_us"], rows[0]["floor_us"], rows[0]["high_us"]) == pytest.approx((0.9, 1.0, 1.1))
    assert cli.main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == list(rows[0]) and len(lines) == 4


def test_bench_worker_counts_verdicts(capsys):
    assert cli.main(["bench", "worker", "count=3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdicts"] == 3 and printed["per_minute"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "kernel", "/no/such/file.cpp"], "/no/such/file.cpp"),
        (["bench", "kernel", "."], "kernel.cubin and launch.json"),
        (["bench", "kernel", __file__, "problem=1_2"], "M_N_K"),
        (["bench", "kernel", __file__, "target=sm_00"], "cpu"),
        (["bench", "kernel", __file__, "worker.thread=1"], "worker.thread"),
        (["train", "nonsense=1"], "nonsense"),
        (["train", "policy.path=no/such/folder/here"], "no/such/folder/here"),
        (["eval", "/no/such/run"], "/no/such/run"),
        (["eval"], "RUN is missing"),
        (["eval", "a", "b"], "b is no KEY=VALUE"),
        (["eval", ""], "empty"),
        (["train", "run="], "run=FOLDER"),
        (["doctor", "x"], "x is no KEY=VALUE"),
        (["doctor", "cash=x"], "there is cache"),
        (["report", "tables", "run", "out=x"], "there is no key out"),
        (["bench", "baseline", "layout=tt"], "nn, tn"),
        (["archive", "export", "run", "format=xml"], "parquet, jsonl"),
        (["eval", "/no/such/run", "shapes=nonsense"], "nonsense"),
    ],
)
def test_mistakes_end_in_one_line(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grpo, "Pool", fakes.FakePool)
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.startswith("cudal2: ") and "Traceback" not in printed


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_what_cannot_be_written_is_told_with_a_remedy(code, capsys, monkeypatch):
    def refuse(*_):
        raise OSError(code, os.strerror(code), "run/dataset")

    monkeypatch.setattr(dataset, "export", refuse)
    assert cli.main(["archive", "export", "run"]) == 2
    printed = capsys.readouterr().err
    assert "run/dataset" in printed and "choose another" in printed and printed.count("\n") == 1


@pytest.mark.parametrize("words", [["trian"], ["bench", "kernel", "f", "--jsn"], ["bench", "aa", "-m"], []])
def test_unknown_words_exit_2(words):
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    assert leaving.value.code == 2


def test_harness_faults_exit_2_with_the_remedy(source, capsys):
    assert cli.main(["bench", "kernel", source("fault")]) == 2
    assert "make room" in capsys.readouterr().err


def test_traceback_is_shown_on_demand(source):
    with pytest.raises(HarnessFault):
        cli.main(["--traceback", "bench", "kernel", source("fault")])


def test_interrupt_exits_130(monkeypatch):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(grpo, "run", interrupted)
    assert cli.main(["train"]) == 130


def test_a_list_of_shapes_may_be_longer_than_any_name_of_a_file(tmp_path, capsys) -> None:
    shapes = ",".join(f"{8 * number}_64_64" for number in range(1, 80))
    assert cli.main(["eval", str(tmp_path / "none"), f"shapes={shapes}"]) == 2
    assert "none" in (said := capsys.readouterr().err) and "too long" not in said


def test_whoever_reads_may_go_before_the_end() -> None:
    """As `head` does: no complaint, and the exit code that a shell knows for it."""
    listed = [sys.executable, "-m", "cudal2.cli", "train", "--cfg", "job"]
    with subprocess.Popen(listed, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == cli.UNREAD


def test_a_closed_output_is_no_mistake() -> None:
    command = [sys.executable, "-m", "cudal2.cli", "train", "--cfg", "job"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_run_alone_is_the_run_in_that_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(grpo, "Pool", fakes.FakePool)
    policy = fakes.save_policy(tmp_path / "policy")
    overrides = [*fakes.tiny(tmp_path / "run", policy), "trainer.steps=1", "reward=paper"]
    assert cli.main(["train", *overrides]) == 0
    asked = settled(load("train", overrides, TrainConfig), str(policy))
    assert runs.training_config([f"run={tmp_path / 'run'}"]) == asked
    assert cli.main(["train", f"run={tmp_path / 'run'}"]) == 0
    (tmp_path / "run/config.json").write_text("{")
    assert cli.main(["train", f"run={tmp_path / 'run'}"]) == 2


def test_a_run_goes_on_with_what_may_change_and_nothing_else(tmp_path, monkeypatch, capsys):
    """`run=FOLDER KEY=VALUE` changes that run's configuration; it does not begin with the defaults."""
    monkeypatch.setattr(grpo, "Pool", fakes.FakePool)
    policy, run = fakes.save_policy(tmp_path / "policy"), f"run={tmp_path / 'run'}"
    tiny = [*fakes.tiny(tmp_path / "run", policy), "reward=paper", "seed=7", "worker=quick", "shapes.names=[8_8_8]"]
    assert cli.main(["train", *tiny, "trainer.steps=1"]) == 0
    assert cli.main(["train", run, "trainer.steps=2", "tracker.project=other"]) == 0
    assert len(read_metrics(tmp_path / "run/metrics.jsonl")) == 2
    asked = load("train", [*tiny, "trainer.steps=2", "tracker.project=other"], TrainConfig)
    assert runs.training_config([run]) == settled(asked, str(policy))
    for change, said in [
        ("reward=log", "reward.name=paper became log"),
        ("seed=0", "seed=7 became 0"),
        ("worker=default", "worker.min_pairs=3 became 7"),
        ("experiment=smoke", "seed=7 became 0"),
    ]:
        assert cli.main(["train", run, "trainer.steps=3", change]) == 2
        assert said in capsys.readouterr().err


def test_a_folder_that_was_moved_is_trained_where_it_is(tmp_path):
    record(tmp_path / "config.json", TrainConfig(run="elsewhere", seed=3))
    assert runs.training_config([f"run={tmp_path}"]) == TrainConfig(run=str(tmp_path), seed=3)


def test_lists_of_shapes_and_problems_go_together() -> None:
    config = load("eval", ["run=x", "shapes=demo, 8_16_24,llm"], EvalConfig)
    demo, llm = (load("eval", ["run=x", f"shapes={name}"], EvalConfig).shapes.problems() for name in ("demo", "llm"))
    assert config.shapes.problems() == [*demo, Problem(8, 16, 24), *llm]
    assert load("eval", ["run=x", "shapes=[demo,8_16_24,llm]"], EvalConfig) == config
    assert load("eval", ["run=x", "shapes=64_64_64"], EvalConfig).shapes.problems() == [Problem(64, 64, 64)]


def test_tables_are_printed_of_what_was_evaluated(tmp_path, capsys) -> None:
    """Side by side with another run's, of which it takes the CSV."""
    for run, speedup in (("a", 1.5), ("b", 0.5)):
        row = Row(problem=Problem(64, 64, 64), fingerprint="f", status="ok", timings=(specimens.timing(speedup),))
        save(tmp_path / run, Results({}, (row,)))
    assert cli.main(["report", "tables", str(tmp_path / "a")]) == 0
    assert "| torch.matmul" in capsys.readouterr().out
    assert cli.main(["report", "tables", str(tmp_path / "a"), f"against={tmp_path / 'b/eval/results.csv'}"]) == 0
    assert "1.500 / 0.500" in capsys.readouterr().out
    assert cli.main(["report", "tables", str(tmp_path / "none")]) == 2
    assert "cudal2 eval" in capsys.readouterr().err


def test_rows_of_two_environments_are_never_in_one_table_unasked(tmp_path, capsys) -> None:
    """Nor joined with each other's: an evaluation's folder keeps the rows of another GPU, or of an older judge."""
    here, there = specimens.HERE, specimens.ELSEWHERE
    problems = Problem(64, 64, 64), Problem(128, 64, 64)
    rows = [
        Row(problem=one, fingerprint=where.fingerprint, status="ok", timings=(specimens.timing(speedup),))
        for one, where, speedup in ((problems[0], here, 4.0), (problems[0], there, 1.0), (problems[1], there, 1.0))
    ]
    save(tmp_path / "run", Results({one.fingerprint: one for one in (here, there)}, tuple(rows)))
    assert cli.main(["report", "tables", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "on 1 shapes" in said and "on 2 shapes" in said and "2.500" not in said and "1.587" not in said
    assert here.fingerprint in said and there.fingerprint in said and there.device in said
    assert cli.main(["report", "tables", str(tmp_path / "run"), "together=true"]) == 0
    said = capsys.readouterr().out
    assert "on 1 shapes" not in said and "on 2 shapes" in said and here.device in said and there.device in said
    assert cli.main(["report", "tables", str(tmp_path / "run"), f"against={tmp_path / 'run/eval/results.csv'}"]) == 0
    said = capsys.readouterr().out
    assert "4.000 / 4.000" in said and "1.000 / 1.000" in said and "4.000 / 1.000" in said
    assert all(f"device {one.fingerprint}" in said for one in (here, there)), "whose figure it is stands over it"


def test_train_prints_the_prompt_that_it_would_send(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(judge, "Pool", fakes.FakePool)
    monkeypatch.setattr(grpo, "run", None)
    tiny = fakes.tiny(tmp_path / "run", fakes.save_policy(tmp_path / "policy"))
    assert cli.main(["train", "--prompt", "64_64_64", *tiny, "shapes.layout=nn"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "<|bos|><|cpu|><|nn|><|f32|><|m=64|><|n=64|><|k=64|>\n" and "tokens" in printed.err


def test_what_a_compiler_quotes_moves_no_cursor() -> None:
    """A kernel's own warning could write another figure over its own."""
    log = "kernel.cu:1: warning: \x1b[2A\x1b[2K 9.99 × torch\x9b2J\r\n\tint x;\x07"
    row = bench.flatten(specimens.verdict(specimens.candidate("a"), 1.5, log=log)) | {"edit": None}
    said = bench.describe_kernel(row)
    assert said.endswith("kernel.cu:1: warning: [2A[2K 9.99 × torch2J\n\tint x;") and "1.500 ×" in said


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("eval runs/a --shapes grid,llm --limit 10", "eval runs/a shapes=grid,llm limit=10"),
        ("eval runs/a --source=policy samples=4 --ray", "eval runs/a source=policy samples=4 worker.executor=ray"),
        ("search 64_64_64 128_64_64 --target sm_90a run=x", "search shapes=64_64_64,128_64_64 target=sm_90a run=x"),
        ("search llama-3-8b.up", "search shapes=llama-3-8b.up"),
        ("bench kernel f.cu --problem 1_2_3 --edit e.json --counters --json",
         "bench kernel f.cu problem=1_2_3 edit=e.json worker.counters=true --json"),
        ("bench baseline 64_64_64", "bench baseline problem=64_64_64"),
        ("bench call out --neighbours --settle", "bench call out neighbours=true settle=true"),
        ("sass polish runs/a --methods greedy,ppo --jobs 4", "sass polish runs/a methods=greedy,ppo jobs=4"),
        ("report runs/a --tables --against b.csv --together", "report tables runs/a against=b.csv together=true"),
        ("report runs/a --against b.csv", "report tables runs/a against=b.csv"),
        ("report runs/a runs/b --searches --out s.png", "report searches runs/a runs/b out=s.png"),
        ("report runs/a --audit", "report audit runs/a"),
        ("report runs/a --outsiders --json", "report outsiders runs/a --json"),
        ("pack runs/a parcel --cache c", "pack runs/a parcel cache=c"),
    ],
)  # fmt: skip
def test_old_spellings_are_answered_with_the_new_command(words, new, capsys):
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.endswith(f": cudal2 {new}\n") and said.count("\n") == 1
    assert cli.renewed(new.split()) is None


NAMES = ["demo (1)", "20261126", "démo", "a[1]", "demo,lr=1e-4", "demo#2", "it's", 'the "best"', "null", "a/reward=log"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_a_path_in_every_verb(name, tmp_path, monkeypatch, capsys):
    """As a value and as a word of its own, whether it is there or not."""
    monkeypatch.chdir(tmp_path)
    for key in ("run", "policy.path", "trainer.deepspeed"):
        composed = runs.training_config([f"{key}={name}"])
        assert eval(f"composed.{key}", {"composed": composed}) == name
    for words in (["export"], ["sass", "polish"], ["report"], ["report", "tables"], ["eval", "limit=1"]):
        for given in (name, f"run={name}"):
            assert cli.main([*words, given]) == 2
            assert name in capsys.readouterr().err  # nothing is there; it was looked for under this name
    (tmp_path / name).mkdir(parents=True)
    assert cli.main(["report", name]) == 2 and name in capsys.readouterr().err
    assert cli.main(["eval", name, "--cfg", "job", "-p", "run"]) == 0
    assert capsys.readouterr().out == f"{name}\n"
    assert cli.main(["bench", "kernel", name, "target=cpu"]) == 2 and name in capsys.readouterr().err


def test_home_is_spelled_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs.training_config(["policy.path=~/model", "run=~/runs/a b"]).policy.path == f"{tmp_path}/model"
    assert runs.training_config(["run=~/runs/a b"]).run == f"{tmp_path}/runs/a b"


def test_cfg_prints_what_the_verb_would_do_and_does_nothing(capsys, monkeypatch):
    monkeypatch.setattr(grpo, "run", None)
    assert cli.main(["train", "experiment=smoke", "seed=3", "--cfg", "job"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert convert(printed, TrainConfig) == load("train", ["experiment=smoke", "seed=3"], TrainConfig)
    assert cli.main(["train", "--cfg", "job", "-p", "trainer.steps"]) == 0
    assert capsys.readouterr().out == "40\n"
    assert cli.main(["train", "--info", "experiment=smoke"]) == 0
    assert "Config search path" in capsys.readouterr().out
    assert cli.main(["eval", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "shapes: demo, demo_gpu" in printed and "finalists: 3" in printed
    assert cli.main(["eval", "runs/x", "finalists=9", "--help"]) == 0
    assert "finalists: 9" in capsys.readouterr().out


def modules() -> set[str]:
    """The first names of all modules that the package imports from elsewhere."""
    found = set()
    for file in (ROOT / "cudal2").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"cudal2", "cudal2_kernels"}


def test_every_import_is_declared_or_an_extra_is_named_for_it() -> None:
    declared = {Requirement(one).name.lower().replace("_", "-") for one in PROJECT["dependencies"]}
    brought = packages_distributions()
    for module in sorted(modules() - cli.EXTRAS.keys() - OWN_MESSAGE):
        names = {name.lower().replace("_", "-") for name in brought.get(module, [module])}
        assert names & declared, f"{module} is imported, and neither declared nor in cli.EXTRAS"


def test_the_extras_that_are_named_exist() -> None:
    assert set(cli.EXTRAS.values()) <= PROJECT["optional-dependencies"].keys()


def test_a_missing_package_is_one_line(tmp_path) -> None:
    (tmp_path / "kernel.cu").write_text('extern "C" int hgemm() { return 0; }\n')
    words = ["sass", "list", str(tmp_path / "kernel.cu")]
    program = f"import sys; sys.modules['elftools'] = None; from cudal2 import cli; sys.exit(cli.main({words}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and 'pip install "cudal2[sass]"' in done.stderr and done.stderr.count("\n") == 1


def test_the_game_asks_for_its_own_extra_and_others_for_what_reads_code() -> None:
    asked = [cli.extra(ImportError(name="elftools.elf"), verb) or "" for verb in ("sass", "measuring")]
    assert ["cudal2[sass]" in asked[0], "cudal2[reading]" in asked[1]] == [True, True]


def test_what_no_extra_brings_is_a_bug_and_shown_as_one() -> None:
    assert cli.extra(ImportError(name="nonesuch")) is None and cli.extra(ImportError()) is None
