"""OpenEnv's own client against the environment, in front of a served judge, and what goes wrong between them."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import hasty
import pytest
from processes import wait_for
from served import serving

from cudal2.serving.client import ADDRESS

pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(find_spec("openenv") is None, reason='OpenEnv is not installed: pip install "cudal2[openenv]"'),
]
PROBLEM = "64_128_256"
GOOD, BETTER = "int hgemm() { return 1; } // fast", "int hgemm() { return 1; } // fast fast"


@contextlib.contextmanager
def listening(url, monkeypatch):
    """The environment in front of the judge at `url`, in a thread; gives its address."""
    import uvicorn

    from cudal2.serving import openenv

    monkeypatch.setenv(ADDRESS, url)
    server = uvicorn.Server(uvicorn.Config(openenv.app, factory=True, port=0, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert wait_for(lambda: server.started, 30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def up(tmp_path, monkeypatch):
    with serving(tmp_path, "limits.body_bytes=20000") as up, listening(up.server.url, monkeypatch) as url:
        up.environment = url
        yield up


def client(url, **options):
    from openenv.core import GenericEnvClient

    return GenericEnvClient(base_url=url, **options).sync()


def test_the_sum_of_an_episodes_rewards_is_its_best(up):
    with client(up.environment) as env:
        first = env.reset(problem=PROBLEM, turns=3)
        assert "M=64" in first.observation["message"] and first.reward is None and not first.done
        steps = [env.step({"completion": text}) for text in (GOOD, BETTER, "nothing")]
        state = env.state()
    assert [step.done for step in steps] == [False, False, True]
    assert [step.observation["status"] for step in steps] == ["ok", "ok", "no_source"]
    assert sum(step.reward for step in steps) == pytest.approx(state["best"]) and state["step_count"] == 3
    assert steps[0].reward > 0 and steps[1].reward > 0 and steps[2].reward == 0
    assert steps[1].observation["metrics"]["speedup"] == 4.0 and len(up.samples) == 3


def test_sessions_keep_apart(up):
    with client(up.environment) as one, client(up.environment) as other:
        one.reset(problem=PROBLEM, turns=2)
        other.reset(problem="64_64_64")
        one.step({"completion": BETTER})
        assert other.step({"completion": GOOD}).reward < one.state()["best"]
        assert one.state()["problem"] != other.state()["problem"] and one.state()["step_count"] == 1
        assert one.step({"completion": GOOD}).reward == 0


def test_what_is_wrong_is_told_in_one_line_and_the_session_goes_on(up):
    with client(up.environment) as env:
        for begin, said in (({}, "needs a problem"), ({"problem": "64_64"}, "M_N_K"), ({"shape": 1}, "no shape")):
            with pytest.raises(RuntimeError, match=said):
                env.reset(**begin)
        with pytest.raises(RuntimeError, match="call reset"):
            env.step({"completion": GOOD})
        env.reset(problem=PROBLEM)
        with pytest.raises(RuntimeError, match="Invalid message"):
            env.step({"text": GOOD})
        with pytest.raises(RuntimeError, match=r"limits\.body_bytes=20000"):
            env.step({"completion": "x" * 10_000_000})
        with pytest.raises(RuntimeError, match="Plug it in"):
            env.step({"completion": GOOD + " fault"})
        assert env.state()["best"] is None
        assert env.step({"completion": GOOD}).done


def test_a_session_that_leaves_in_the_middle_takes_nothing_from_others(up):
    up.pool.open.clear()
    leaves, stays = client(up.environment, message_timeout_s=2), client(up.environment)
    with stays:
        leaves.reset(problem=PROBLEM)
        stays.reset(problem=PROBLEM)
        with pytest.raises(TimeoutError):
            leaves.step({"completion": "int hgemm() { return 2; } // slow"})
        leaves.close()
        threading.Timer(0.3, up.pool.open.set).start()
        assert stays.step({"completion": GOOD}).observation["status"] == "ok"


def test_a_judge_that_dies_in_the_middle_is_waited_for_and_nothing_is_judged_twice(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        up = stack.enter_context(serving(tmp_path, f"port={port}"))
        with listening(up.server.url, monkeypatch) as url, client(url) as env:
            env.reset(problem=PROBLEM, turns=2)
            env.step({"completion": GOOD})
            stack.close()
            found = []
            asks = threading.Thread(target=lambda: found.append(env.step({"completion": BETTER})))
            asks.start()
            time.sleep(0.5)
            with serving(tmp_path, f"port={port}") as again:
                asks.join(30)
                assert found[0].reward > 0 and len(again.samples) == 2 and again.pool.judged == [f"{BETTER}\n"]
                assert env.state()["step_count"] == 2


@contextlib.contextmanager
def environment_of_its_own(url):
    """The environment in a process that may be killed; gives the process and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", "cudal2.serving.openenv:app", "--log-level", "error"]
    process = subprocess.Popen(["env", f"{ADDRESS}={url}", *command, "--port", str(port)])
    try:
        assert wait_for(lambda: _answers(port), 60)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_an_environment_that_is_killed_in_the_middle_loses_nothing_that_is_judged(tmp_path):
    with serving(tmp_path) as up:
        with environment_of_its_own(up.server.url) as (process, url), client(url) as env:
            env.reset(problem=PROBLEM)
            up.pool.open.clear()
            threading.Timer(0.5, process.kill).start()
            with pytest.raises(Exception, match=r"(?i)close|reset by peer"):
                env.step({"completion": GOOD})
        up.pool.open.set()
        assert wait_for(lambda: up.pool.judged, 30)
        with environment_of_its_own(up.server.url) as (_, url), client(url) as env:
            env.reset(problem=PROBLEM)
            assert env.step({"completion": GOOD}).reward > 0
        assert up.pool.judged == [f"{GOOD}\n"]


def test_without_the_token_nobody_comes_in(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDAL2_TOKEN", "secret")
    with serving(tmp_path, token="secret") as up, listening(up.server.url, monkeypatch) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(ConnectionError, match="401"):
                client(url, headers=headers).connect()
        with client(url, headers={"Authorization": "Bearer secret"}) as env:
            env.reset(problem=PROBLEM)
            assert env.step({"completion": GOOD}).reward > 0


def test_no_web_page_comes_in(up):
    """Neither one under a name of its own nor one that opens a WebSocket of this machine."""
    host, port = up.environment.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    for headers, code in (
        ({"Host": "evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": up.environment}, 200),
    ):
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse()
        assert answer.read() and answer.status == code
    connection.close()
    with pytest.raises(ConnectionError, match="403"):
        client(up.environment, headers={"Origin": "https://evil.example"}).connect()


def test_without_a_judge_it_does_not_start():
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "uvicorn", "--factory", "cudal2.serving.openenv:app", "--port", "0"]
    done = subprocess.run(["env", f"{ADDRESS}={url}", *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("cudal2: nothing answers at")


@pytest.mark.alone
def test_the_real_judge(tmp_path, monkeypatch):
    where = [f"run={tmp_path / 'run'}", f"worker.cache={tmp_path / 'cache'}", "port=0", *hasty.HASTY]
    command = [sys.executable, "-m", "cudal2.cli", "serve", *where]
    kernels = Path(__file__).parents[1] / "worker" / "kernels"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as judge:
        try:
            url = judge.stdout.readline().split()[0]
            with listening(url, monkeypatch) as environment, client(environment, message_timeout_s=300) as env:
                env.reset(problem="64_64_64", turns=2)
                texts = [f"```cpp\n{(kernels / name).read_text()}\n```" for name in ("zero.cpp", "openmp.cpp")]
                wrong, right = (env.step({"completion": text}) for text in texts)
                best = env.state()["best"]
        finally:
            judge.terminate()
    assert wrong.observation["status"] == "wrong" and right.observation["status"] == "ok"
    assert wrong.reward < 0 < right.reward and best == pytest.approx(wrong.reward + right.reward)
