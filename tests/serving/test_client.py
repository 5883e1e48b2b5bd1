"""What goes wrong between a client and a server is one line with the remedy, and never a verdict."""

import json
import pickle
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from served import serving

from cudal2 import completion
from cudal2.serving import client as module
from cudal2.serving.client import Client, NoService

OK = b"HTTP/1.1 200 OK\r\n"


class Other:
    """Something else that listens: it reads a request, sends these bytes as often as told, and closes."""

    def __init__(self, *pieces: bytes, times: int = 1, hold: bool = False) -> None:
        self.pieces, self.times, self.hold = pieces, times, hold
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            connection.recv(65536)
            try:
                for _ in range(self.times):
                    for piece in self.pieces:
                        connection.sendall(piece)
            except OSError:  # the client has read enough
                pass
            if self.hold:
                self._held.append(connection)
            else:
                connection.close()

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def sized(body: bytes, size: int | None = None) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n%s" % (len(body) if size is None else size, body)


@pytest.mark.parametrize(
    ("answer", "said", "again"),
    [
        ([b""], "ended before its answer", True),
        ([OK], "ended before its answer", True),
        ([sized(b'{"schema": 1', 1000)], "ended before its answer", True),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"], "ended before its answer", True),
        ([sized(b"<html>nginx</html>")], "is no `cudal2 serve`", False),
        ([sized(b"[1]")], "is no `cudal2 serve`", False),
        ([sized(b"\xff\xfe")], "is no `cudal2 serve`", False),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "ended before its answer", True),
        ([b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"], "is no `cudal2", False),
        ([sized(b'{"schema": 2}')], "speaks schema 2, and this client 1", False),
        ([b"HTTP/1.1 400 No\r\n\r\n" + b'{"schema": 7, "problem": "?"}'], "speaks schema 7", False),
    ],
)
def test_what_is_no_answer_is_told_in_one_line(answer, said, again):
    with Other(*answer) as other, pytest.raises(NoService, match=said) as error:
        Client(other.url).health()
    assert error.value.again is again and error.value.remedy
    assert "\n" not in str(error.value)


def test_an_answer_without_end_is_not_read_to_its_end():
    with Other(OK + b"\r\n", b"x" * (1 << 20), times=64) as other, pytest.raises(NoService, match="more than 16 MiB"):
        Client(other.url).health()


def test_a_server_that_says_nothing_is_given_up():
    with Other(hold=True) as other, pytest.raises(NoService, match=r"no answer in 0\.2 s"):
        Client(other.url, seconds=0.2).health()


def test_no_server_is_told_at_once_and_waited_for_with_patience(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(NoService, match="nothing answers at"):
        Client(f"http://127.0.0.1:{port}").health()
    found = []
    waits = threading.Thread(target=lambda: found.append(Client(f"http://127.0.0.1:{port}", patience=30).health()))
    waits.start()
    with serving(tmp_path, f"port={port}"):
        waits.join(30)
    assert found[0]["target"] == "cpu"


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "localhost", "ftp://a", "http://", ""])
def test_what_is_no_address_is_a_mistake(url):
    with pytest.raises(ValueError, match="is no address"):
        Client(url)


PROMPT = module.Prompt("64_64_64_tn_f32", "cpu", "Write!")


@pytest.mark.parametrize(
    "asked",
    [
        lambda judge: judge.completion("64_64_64", None),
        lambda judge: judge.completion("64_64_64", [{"role": "assistant", "content": "fast"}]),
        lambda judge: judge.completion(PROMPT, "fast"),
        lambda judge: judge.completion("64_64_64", "fast", prompt=PROMPT),
        lambda judge: judge.source(PROMPT, "fast"),
        lambda judge: judge.prompt(PROMPT),
        lambda judge: judge.problems([PROMPT]),
    ],
)
def test_what_is_no_text_is_a_mistake_before_anything_is_sent(asked):
    with pytest.raises(ValueError, match="str") as error:
        asked(Client("http://127.0.0.1:1"))
    assert "\n" not in str(error.value)


def test_a_mistake_is_no_fault_of_the_service(tmp_path):
    with serving(tmp_path, "limits.body_bytes=20000") as up:
        with pytest.raises(ValueError, match="M_N_K"):
            up.client(patience=30).source("64_64", "fast")
        with pytest.raises(ValueError, match=r"limits\.body_bytes=20000"):
            up.client(patience=30).source("64_64_64", "x" * 10_000_000)


def test_completions_are_read_and_their_samples_described(tmp_path):
    with serving(tmp_path) as up:
        client = up.client(session="mine")
        text = "Here:\n```cpp\nint hgemm() { return 0; }\n```\n"
        judged = client.completion("64_64_64", text, author="me", prompt="Write!", turn=2)
        assert judged.status == "ok" and json.dumps(judged.verdict)
        (sample,) = up.archive.samples("serve")
        said = sample.origin
        assert (said.run, said.step, said.policy, said.prompt, said.turn) == ("mine", 0, "me", "Write!", 2)
        assert said.reward == judged.reward
        none = client.completion("64_64_64", "I cannot.")
        assert none.status == "no_source" and none.reward == -1.0 and "no kernel" in none.message


def test_an_answer_of_any_length_and_of_any_characters_is_judged(tmp_path):
    assert module.LONGEST == completion.LONGEST
    text = f"\ud800{'é' * 3}{chr(0x10FFFF) * 10_000_000}\n```cpp\nint hgemm() {{ return 0; }}\n```\n"
    with serving(tmp_path) as up:
        assert up.client().completion("64_64_64", text).status == "ok"
        assert up.client().completion("64_64_64", "\ud800").status == "no_source"


def test_lists_of_problems_are_asked_of_the_server(tmp_path):
    with serving(tmp_path, "limits.flop=1e6") as up:
        found = up.client().problems(["demo", "8_16_24_nn_f16"])
        assert found.problems == ["64_64_64_tn_f32", "8_16_24_nn_f16"] and len(found.beyond) == 5
        for names in (["nonsense"], []):
            with pytest.raises(ValueError, match=r"nonsense|names"):
                up.client().problems(names)


def test_the_token_may_come_from_the_environment(tmp_path, monkeypatch):
    with serving(tmp_path, token="secret") as up:
        monkeypatch.setenv(module.TOKEN, "secret")
        assert up.client().health()["target"] == "cpu"


def test_faults_cross_processes():
    fault = pickle.loads(pickle.dumps(NoService("a", "b", again=True, pause=2.0)))
    assert (str(fault), fault.again, fault.pause) == ("a. b", True, 2.0)


def test_the_client_is_one_file_that_needs_only_the_standard_library(tmp_path):
    shutil.copy(Path(module.__file__), tmp_path / "client.py")
    with serving(tmp_path) as up:
        said = f"import client; print(client.Client({up.server.url!r}).source('64_64_64', 'fast').status)"
        words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {said}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_importing_the_client_does_not_import_torch():
    said = "import sys; import cudal2.serving.client; sys.exit('torch' in sys.modules or 'msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], timeout=60).returncode == 0
