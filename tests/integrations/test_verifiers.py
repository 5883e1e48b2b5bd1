"""The verifiers environment through the real `vf-eval`, in a virtual environment without cudal2 (`make verifiers`).

What goes wrong is one line with the remedy, and never a reward.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fake_endpoint
import hasty
import pytest
import served
from processes import wait_for

from cudal2.archive import Archive

ROOT = Path(__file__).parents[2]
VF_EVAL = Path(os.environ.get("VF_EVAL", ROOT / ".venv-verifiers/bin/vf-eval")).absolute()
pytestmark = [
    pytest.mark.parts,
    pytest.mark.verifiers,
    pytest.mark.skipif(not VF_EVAL.exists(), reason="verifiers is not installed here: make verifiers"),
]


def command(url: str, model: str, *words: object, problem: str = "64_64_64") -> list[str]:
    judge = ["--env.taskset.task.url", url, "--env.taskset.shapes", json.dumps([problem])]
    client = ["-m", "fake", "--client.base-url", model, "--no-push", "--no-rich", "--run.name", "run", "-c", "1"]
    return [str(VF_EVAL), "cudal2_hgemm", *judge, *client, *map(str, words)]


def evaluate(folder: Path, *words: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    return runs(folder, command(*words, **more))


def runs(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def resume(folder: Path) -> subprocess.CompletedProcess[str]:
    return runs(folder, [str(VF_EVAL), "@", "outputs/run/configs/resolved/eval.json", "--resume"])


def traces(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "outputs/run/traces.jsonl").read_text().splitlines()
    return [trace for line in lines for trace in json.loads(line)["traces"]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Served:
    """A server in a process of its own."""

    def __init__(self, *words: object) -> None:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout
        self.url = self.process.stdout.readline().split()[0]

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)


def test_turns_of_the_real_judge_become_rewards_and_metrics(tmp_path):
    """A model that first says no and then writes a kernel; then one whose answer has 10 MB before its kernel."""
    where = [f"run={tmp_path / 'run'}", f"worker.cache={tmp_path / 'cache'}", "port=0"]
    with (
        Served("-m", "cudal2.cli", "serve", *where, *hasty.HASTY) as judge,
        fake_endpoint.serving("talks", "kernel", "long", "same") as (model, asked),
    ):
        done = evaluate(tmp_path, judge.url, model, "-r", 2)
    assert done.returncode == 0, done.stderr
    first, second = traces(tmp_path)
    assert first["ok"] and second["ok"], [first["errors"], second["errors"]]
    talked, wrote = first["info"]["attempts"]
    assert (talked["status"], talked["reward"], wrote["status"]) == ("no_source", -1.0, "ok")
    assert first["rewards"]["kernel"]["score"] == wrote["reward"] > talked["reward"]
    metrics = first["metrics"]
    assert metrics["ok"] == metrics["status_ok"] == 1.0 and metrics["attempts"] == 2.0
    assert metrics["speedup"] == wrote["metrics"]["speedup"] > 0 and metrics["rho"] >= 0
    assert (metrics["reward_0"], metrics["reward_1"]) == (talked["reward"], wrote["reward"])
    assert asked.asked[1]["messages"][-1]["content"] == talked["message"]
    assert second["info"]["attempts"][0]["status"] == "ok"
    with Archive.of(tmp_path / "run", create=False) as archive:
        samples = {(one.origin.run, one.origin.turn): one.origin for one in archive.samples("serve")}
    assert set(samples) == {(trace["id"], turn) for trace in (first, second) for turn in (0, 1)}
    assert {one.policy for one in samples.values()} == {"fake"}


class OtherVersion(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"schema": 99}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert done.returncode == 1 and line.startswith("cudal2_hgemm: ")
    return line


def test_a_server_that_is_not_as_it_must_be_is_told_before_any_model_is_asked(tmp_path):
    with fake_endpoint.serving() as (model, asked):
        line = one_line(evaluate(tmp_path, f"http://127.0.0.1:{free_port()}", model))
        assert "nothing answers at" in line and "Start `cudal2 serve`" in line
        with served.serving(tmp_path, token="secret") as up:
            assert "wants a token" in (line := one_line(evaluate(tmp_path, up.server.url, model, "--clean")))
            assert "CUDAL2_TOKEN" in line
        with served.serving(tmp_path) as up:
            line = one_line(evaluate(tmp_path, up.server.url, model, "--clean", problem="nonsense"))
            assert "nonsense" in line and "M_N_K" in line
        with HTTPServer(("127.0.0.1", 0), OtherVersion) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            line = one_line(evaluate(tmp_path, f"http://127.0.0.1:{other.server_port}", model, "--clean"))
            other.shutdown()
        assert "speaks schema 99" in line and "same version" in line
    assert not asked.asked


FAILURES = {
    "silent": ("ProviderError", "no answer in 1.5 s. Is its server alive?"),
    "wrong_key": ("ProviderError", "Incorrect API key"),
    "dies": ("ProviderError", "peer closed connection"),
    "html": ("ProviderError", "malformed upstream response"),
    "fault": ("TaskError", "the device is lost. Plug it in"),
}


def test_what_fails_is_no_reward_and_resume_makes_it_again_and_nothing_else(tmp_path, monkeypatch):
    """Faults of the model's server and of the judge; one answer is right, and later prompts show it."""
    faulty = fake_endpoint.say(f"```cpp\n{fake_endpoint.KERNEL}// fault\n```")
    monkeypatch.setitem(fake_endpoint.BEHAVIOURS, "fault", lambda number: faulty)
    words = ["-r", 1 + len(FAILURES), "--env.turns", 1, "--env.agent.harness.answer-seconds", 1.5]
    with served.serving(tmp_path) as up, fake_endpoint.serving("same", *FAILURES, "kernel") as (model, asked):
        done = evaluate(tmp_path, up.server.url, model, *words, "--env.taskset.task.patience", 0)
        assert done.returncode == 0, done.stderr
        right, *failed = traces(tmp_path)
        for trace, (kind, said) in zip(failed, FAILURES.values(), strict=True):
            (error,) = trace["errors"]
            assert (error["type"], trace["ok"]) == (kind, False) and said in error["message"]
            assert "\n" not in error["message"] and not trace["rewards"]
        before = len(asked.asked)
        done = resume(tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(asked.asked) == before + len(FAILURES) and "Kernels measured so far" in str(asked.asked[-1])
    again = traces(tmp_path)
    assert again[0] == right and len(again) == 1 + len(FAILURES)
    assert all(trace["ok"] and trace["rewards"]["kernel"]["score"] > 0 for trace in again)


def test_best_of_n_judges_each_attempts_last_answer(tmp_path):
    """Another environment, of verifiers' own, plays the tasks with our harness, on this machine."""
    seat = ["--env.agent.runtime.type", "subprocess", "--env.agent.harness.id", "cudal2_hgemm"]
    words = ["--env.id", "best-of-n", "--env.n", 2, "--env.max-concurrent-agents", 1, *seat]
    with served.serving(tmp_path) as up, fake_endpoint.serving("talks", "kernel") as (model, asked):
        done = evaluate(tmp_path, up.server.url, model, *words)
    assert done.returncode == 0, done.stderr
    found = sorted(traces(tmp_path), key=lambda trace: trace["metrics"]["best"])
    assert [trace["metrics"]["best"] for trace in found] == [0.0, 1.0] and len(asked.asked) == 2
    assert [trace["info"]["attempts"][0]["status"] for trace in found] == ["no_source", "ok"]
    assert found[0]["rewards"]["kernel"]["score"] == -1.0 < found[1]["rewards"]["kernel"]["score"]


def test_a_server_that_dies_is_waited_for_and_nothing_is_judged_twice(tmp_path):
    log, port = tmp_path / "judged", free_port()
    words = (served.__file__, log, f"run={tmp_path / 'run'}", f"port={port}")

    def judged() -> list[str]:
        return log.read_text().split("return 0;")[:-1] if log.exists() else []

    with fake_endpoint.serving("same", "kernel") as (model, asked):
        asked.delay = 0.1
        server, found = Served(*words), []
        runs = threading.Thread(target=lambda: found.append(evaluate(tmp_path, server.url, model, "-r", 8)))
        runs.start()
        assert wait_for(lambda: len(judged()) >= 4, 120)
        server.process.kill()
        server.process.communicate()
        before = len(judged())
        with Served(*words):
            runs.join(200)
    assert found[0].returncode == 0, found[0].stderr
    made = traces(tmp_path)
    assert len(made) == 8 and all(trace["ok"] and trace["rewards"]["kernel"]["score"] > 0 for trace in made)
    assert before <= len(judged()) <= 17  # a kill may cost the kernel that was under way
    with Archive.of(tmp_path / "run", create=False) as archive:
        assert {(one.origin.run, one.origin.turn) for one in archive.samples("serve")} == {
            (trace["id"], turn) for trace in made for turn in (0, 1)
        }
