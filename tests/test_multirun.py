"""-m: each run in a folder of its own, others go on where one fails, what is done is skipped, signals end all."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from processes import wait_for
from thorough import only_thorough, some

from cudal2 import cli, sweep

DEFAULT = ["env", "--default-signal=INT"]  # a shell ignores it in the background, and so would what we start
HASTY = [
    *("experiment=smoke", "trainer.steps=1", "trainer.group_size=2", "trainer.problems_per_step=1", "shapes=64_64_64"),
    *("worker.disturbed=1000", "worker.threads=1", "worker.batch_ms=0.1", "worker.min_pairs=3", "worker.max_pairs=3"),
    *("worker.timing_seconds=0", "run=sweep", "worker.cache=cache"),
]
DEMO = "64_64_64,128_128_128,256_256_256,128_512_256,384_256_512,512_512_512"
FAKE = """
import sys, time
from pathlib import Path
words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
run = Path(words["run"].strip("'"))
run.mkdir(parents=True, exist_ok=True)
with (run / "starts").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if words.get("seed") == "3":
    sys.exit(2)
if words.get("seed") == "9":
    time.sleep(100)
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """An empty working folder, where a run of a sweep only notes that it was started; seed 3 fails, 9 takes long."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.py").write_text(FAKE)
    command = [sys.executable, str(tmp_path / "fake.py")]
    begin = subprocess.Popen

    def started(words, **options):
        return begin([*command, *words[words.index("cudal2.cli") + 1 :]], **options)

    monkeypatch.setattr(sweep.subprocess, "Popen", started)
    return tmp_path


def starts(place: Path) -> dict[str, int]:
    """How often each run was started, by its folder."""
    files = sorted(place.rglob("starts"))
    return {str(file.parent.relative_to(place)): len(file.read_text().splitlines()) for file in files}


def test_every_combination_runs_in_a_folder_named_by_what_is_swept(place, capfd):
    assert cli.main(["train", "-m", "seed=0,1,2", "reward=log,paper", "run=sweep", "trainer.steps=2"]) == 0
    wanted = {f"sweep/reward={reward},seed={seed}" for reward in ("log", "paper") for seed in range(3)}
    assert starts(place) == dict.fromkeys(wanted, 1)
    said = (place / "sweep/reward=log,seed=0/starts").read_text()
    assert said == "train seed=0 reward=log trainer.steps=2 run='sweep/reward=log,seed=0'\n"
    assert "cudal2 report sweep" in capfd.readouterr().out


def test_the_same_command_skips_what_is_done_and_repeats_what_failed(place, capfd):
    command = ["train", "--multirun", "seed=2,3,4", "run=sweep"]
    assert cli.main(command) == 2
    said = capfd.readouterr().out
    assert "seed=3  failed, exit code 2" in said and "seed=4  done" in said
    assert cli.main(command) == 2
    assert starts(place) == {"sweep/seed=2": 1, "sweep/seed=3": 2, "sweep/seed=4": 1}
    assert cli.main(["train", "-m", "seed=2,4", "run=sweep", "trainer.steps=9"]) == 0  # the same runs, longer
    assert starts(place) == {"sweep/seed=2": 2, "sweep/seed=3": 2, "sweep/seed=4": 2}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "folders"),
    [
        (["train", "seed=0,1", "run=a b"], ["a b/seed=0", "a b/seed=1"]),
        (["train", "seed=range(0,2)", "run='x,y'"], ["x,y/seed=0", "x,y/seed=1"]),
        (["train", "seed=0", "run=one"], ["one"]),
        (["train", "experiment=smoke,demo"], ["runs/train/experiment=demo", "runs/train/experiment=smoke"]),
        (["train", "experiment=smoke", "seed=1,2"], ["runs/smoke/seed=1", "runs/smoke/seed=2"]),
        (["train", "policy.path=m/a b,~x", "run=s"], ["s/policy.path=m_a b", "s/policy.path=~x"]),
        (["search", "shapes=64_64_64,demo", "run=s"], ["s/shapes=64_64_64", f"s/shapes={DEMO}"]),
        (["eval", "runs/a", "runs/b", "shapes=demo"], ["runs/a", "runs/b"]),
        (["eval", "runs/a", "source=policy", "samples=1,2"], ["runs/a/samples=1", "runs/a/samples=2"]),
        (["sass", "play", "k.cu", "seed=1,2", "run=g"], ["g/seed=1", "g/seed=2"]),
        (["train", "seed=0,1", "hydra.sweep.dir=d", "hydra.sweep.subdir=n${hydra.job.num}"], ["d/n0", "d/n1"]),
        (["train", "seed=0,1", "hydra.mode=MULTIRUN", "run=h"], ["h/seed=0", "h/seed=1"]),
        (["train", "reward.alpha=0.1,0.2", "++seed=4", "run=k"], ["k/reward.alpha=0.1", "k/reward.alpha=0.2"]),
    ],
)  # fmt: skip
def test_where_runs_are(words, folders, place):
    multi = [] if any(word.startswith("hydra.mode") for word in words) else ["-m"]
    assert cli.main([*words, *multi]) == 0
    assert sorted(starts(place)) == sorted(folders)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "sead=0,1"], "there is no key sead; there is seed"),
        (["train", "seed=0,1", "hydra.run.dir=x"], "run=FOLDER"),
        (["train", "seed=0,1", "hydra.job.chdir=true"], "stay where"),
        (["train", "seed=0,1", "hydra.sweep.dir=x", "run=y"], "give one of them"),
        (["train", "seed=0,1", "hydra.mode=RUN"], "contradict"),
        (["train", "seed=0,1", "hydra.nonsense=1"], "hydra.nonsense"),
        (["train", "seed=0,1", "hydra/launcher=nonsense"], "basic"),
        (["train", "reward=log,nope"], "nope"),
        (["train", "seed=interval(0,1)"], "INTERVAL"),
        (["train", "run=a,"], "run=FOLDER"),
        (["eval", "samples=1,2"], "RUN is missing"),
        (["train", "seed=0,1", "--prompt", "64_64_64"], "--prompt"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_starts_nothing(words, said, place, capsys):
    assert cli.main([*words, "-m"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not starts(place)


@pytest.mark.parametrize("name", ["joblib", "optuna", "submitit_local"])
def test_an_extra_that_is_missing_is_named(name, place, capsys):
    group = "sweeper" if name == "optuna" else "launcher"
    if installed(f"{name.removesuffix('_local')}_{group}"):
        pytest.skip("it is installed")
    assert cli.main(["train", "-m", "seed=0,1", f"hydra/{group}={name}"]) == 2
    assert f"pip install 'cudal2[{name.removesuffix('_local')}]'" in capsys.readouterr().err


def test_a_sweep_that_was_told_to_stop_starts_no_other_run(place):
    assert cli.main(["train", "-m", "seed=0", "run=s"]) == 0
    (only,) = sweep.listed(Path("s"))
    sweep.stop(Path("s"), only.sweep)
    assert sweep.stopped(Path("s"), only.sweep) and not sweep.stopped(Path("s"), "another")
    assert sweep.last(Path("s"), only.folder) == only and msgspec.json.encode(only)


def test_long_names_and_those_of_paths_make_one_folder():
    assert sweep.folder("policy.path='runs/a b',seed=0") == "policy.path=runs_a b,seed=0"
    assert sweep.folder("shapes.names=['64_64_64','8_8_8']") == "shapes=64_64_64,8_8_8"
    long = sweep.folder("x=" + "y" * 300)
    assert len(long.encode()) < 255 and long != sweep.folder("x=" + "y" * 301)


def installed(plugin: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.hydra_{plugin}") is not None


def alive(group: int) -> list[str]:
    """The processes of a group that have not ended; what an ended one leaves until it is reaped is none."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its = stat.read_text().rpartition(") ")[2].split()[:3]
            if int(its) == group and state not in "ZX":
                found.append(stat.parent.name)
    return found


def run(place: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "cudal2.cli", *words]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=900)


@only_thorough
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_runs_and_the_same_command_goes_on(tmp_path, number):
    """To its end, though a run fails in between; then they are shown side by side."""
    command = [sys.executable, "-m", "cudal2.cli", "train", "-m", *HASTY, "policy.path=,missing"]
    longer = [word.replace("steps=1", "steps=1000") for word in command]
    begun = subprocess.Popen(
        [*DEFAULT, *longer], cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        metrics = tmp_path / "sweep/policy.path=/metrics.jsonl"
        while begun.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.2)
        os.killpg(begun.pid, number) if number == signal.SIGINT else begun.send_signal(number)
        _, said = begun.communicate(timeout=30)
        assert begun.returncode == 128 + number and "Traceback" not in said
        assert wait_for(lambda: not alive(begun.pid), 10), "a run outlives the sweep"
    finally:
        begun.kill()
    before = metrics.read_text().count("\n")
    steps = f"trainer.steps={before + 1}"
    done = run(tmp_path, *[steps if word == "trainer.steps=1000" else word for word in longer[3:]])
    assert done.returncode == 2 and done.stdout.count("  done  ") == 1 and done.stdout.count("failed") == 1
    assert metrics.read_text().count("\n") == before + 1
    shown = run(tmp_path, "report", "sweep")
    assert shown.returncode == 0 and f"| policy.path= | {before + 1} | {2 * (before + 1)} |" in shown.stdout
    assert (tmp_path / "sweep/comparison.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parts
@pytest.mark.parametrize("launcher", some(["joblib", "submitit_local"], 2))
def test_launchers_run_side_by_side(tmp_path, launcher):
    if not installed(f"{launcher.removesuffix('_local')}_launcher"):
        pytest.skip(f"needs cudal2[{launcher.removesuffix('_local')}]")
    more = "hydra.launcher.n_jobs=2" if launcher == "joblib" else "hydra.launcher.timeout_min=10"
    done = run(tmp_path, "train", "-m", *HASTY, "seed=0,1", f"hydra/launcher={launcher}", more)
    assert done.returncode == 0 and done.stdout.count("  done  ") == 2, done.stderr
    assert "step   1/1" in (tmp_path / "sweep/seed=1" / sweep.OUTPUT).read_text()


@pytest.mark.slow
@pytest.mark.parts
def test_optuna_maximises_what_a_run_says_of_itself(tmp_path):
    if not installed("optuna_sweeper"):
        pytest.skip("needs cudal2[optuna]")
    words = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.sampler.seed=1"]
    rate = "trainer.learning_rate=tag(log,interval(1e-5,1e-3))"
    done = run(tmp_path, "train", "-m", *HASTY, rate, *words)
    assert done.returncode == 0, done.stderr
    found = sweep.listed(tmp_path / "sweep")
    best = max(one.objective for one in found)
    assert len(found) == 3 and f"best_value: {best}" in (tmp_path / "sweep/optimization_results.yaml").read_text()
    again = run(tmp_path, "train", "-m", *HASTY, rate, *words)
    assert again.returncode == 0 and again.stdout.count("is done") == 3
