"""Over HTTP: the schema, who may ask, the limits of a request, clients that leave, and many at once."""

import http.client
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from processes import wait_for
from served import serving

from cudal2.config import ServeConfig, load
from cudal2.problem import parse
from cudal2.records import Candidate, Status
from cudal2.serving import messages
from cudal2.serving.client import VERSION, Client, NoService
from cudal2.serving.messages import ROUTES, Health, JudgeAnswer, PromptAnswer, Trouble
from cudal2.serving.server import Server

PROBLEM = "64_128_256"
ASKED = {"problem": PROBLEM, "source": "fast"}


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve"), "limits.body_bytes=20000", "limits.flop=1e9") as up:
        yield up


def asked(up, method="POST", path="/judge", body=ASKED, **headers):
    """The code and the body of an answer; a header of None is left out."""
    host, port = up.server.server_address[:2]
    connection = http.client.HTTPConnection(host, port, timeout=20)
    data = b"" if method == "GET" else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in sent)
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    connection.send(data)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def test_answers_are_what_the_schema_says(up):
    code, text = asked(up)
    judged = msgspec.json.decode(text, type=JudgeAnswer)
    assert code == 200 and judged.verdict.status is Status.OK and judged.metrics["speedup"] == 2.0
    candidate = Candidate("fast", parse(PROBLEM))
    assert judged.reward == up.service.reward(candidate, judged.verdict) and "correct" in judged.message
    code, text = asked(up, path="/prompt", body={"problem": "64_128_256"})
    prompt = msgspec.json.decode(text, type=PromptAnswer)
    assert (prompt.problem, prompt.target) == ("64_128_256_tn_f32", "cpu") and "M=64" in prompt.prompt
    assert msgspec.json.decode(asked(up, "GET", "/health")[1], type=Health).target == "cpu"


def test_the_schema_is_published_and_whole(up):
    found = json.loads(asked(up, "GET", "/schema")[1])
    assert found == up.client().schema() and set(found["routes"]) == set(ROUTES)
    text = json.dumps(found)
    named = {part.partition('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named <= set(found["$defs"])
    request = found["$defs"]["JudgeRequest"]
    assert request["required"] == ["problem"] and request["additionalProperties"] is False
    assert msgspec.json.decode(b"{}", type=messages.Message).schema == VERSION


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({**ASKED, "problem": "64_128"}, "M_N_K"),
        ({**ASKED, "problem": "64_128_256_tn_f32_fp16_sine"}, "sine"),
        ({**ASKED, "problem": "1024_1024_1024"}, "limits.flop"),
        ({**ASKED, "target": "sm_90a"}, "judges for cpu"),
        ({**ASKED, "completion": "both"}, "either"),
        ({"problem": PROBLEM}, "either"),
        ({**ASKED, "new": 1}, "unknown field"),
        ({**ASKED, "turn": -1}, "turn"),
        ({**ASKED, "number": 2**60}, "number"),
        ({**ASKED, "schema": 2}, "speaks schema 1, and the request 2"),
        ({**ASKED, "schema": 2, "new": 1}, "speaks schema 1"),
        ([1], "no JudgeRequest"),
        (b"{", "no JudgeRequest"),
        (b'{"problem": "64_128_256", "source": "\\ud800 "}', "no JudgeRequest"),
        (b"\xff", "no JudgeRequest"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_in_one_line(up, body, said):
    code, text = asked(up, body=body)
    trouble = msgspec.json.decode(text, type=Trouble)
    assert code == 400 and said in f"{trouble.problem}. {trouble.remedy}" and "\n" not in trouble.problem
    assert asked(up)[0] == 200


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"path": "/nope"}, 404),
        ({"path": "/judge", "method": "GET"}, 404),
        ({"Content_Type": "text/plain"}, 415),  # what a form in a web page could send
        ({"Content_Length": None}, 411),
        ({"Content_Length": "-1"}, 411),
        ({"Content_Length": "9" * 30}, 413),
        ({"body": b" " * 1_000_000}, 413),
        ({"Host": "evil.example:8765"}, 403),  # what a web page under another name could send
    ],
)
def test_what_may_not_be_sent_is_refused_by_its_code(up, given, code):
    found, text = asked(up, **given)
    assert found == code and msgspec.json.decode(text, type=Trouble).remedy
    assert asked(up)[0] == 200


def test_odd_text_is_judged_as_any_other(up):
    for text in ("fast \0 nul", "fast 😀 \u2028", "", "x" * 15_000):
        judged = up.client().source(PROBLEM, text)
        assert judged.status in ("ok", "no_source"), text
        assert text in up.samples.values()


def test_one_connection_may_ask_many_times(up):
    host, port = up.server.server_address[:2]
    connection = http.client.HTTPConnection(host, port, timeout=20)
    for body in (ASKED, {**ASKED, "problem": "?"}, ASKED):
        connection.request("POST", "/judge", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.read() and answer.status in (200, 400)
    connection.close()


def test_a_token_is_needed_and_compared(tmp_path):
    with serving(tmp_path, token="secret") as up:
        for wrong in ("", "wrong", "secre", "secret2", "geheim ß"):
            with pytest.raises(NoService, match="token") as error:
                Client(up.server.url, wrong, patience=5).health() if wrong.isascii() else asked_with(up, wrong)
            assert not error.value.again and not up.pool.judged
        client = Client(up.server.url, "secret")
        assert client.source(PROBLEM, "fast").status == "ok"
        assert asked(up, Authorization="Bearer secret", Host="elsewhere.example")[0] == 200


def asked_with(up, token):
    code, text = asked(up, Authorization=f"Bearer {token}".encode())
    raise NoService(msgspec.json.decode(text, type=Trouble).problem, str(code))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_other_machines_may_ask_only_with_a_token(host, monkeypatch):
    monkeypatch.delenv("CUDAL2_TOKEN", raising=False)
    config = load("serve", ["run=x", f"host='{host}'"], ServeConfig)
    with pytest.raises(ValueError, match="CUDAL2_TOKEN"):
        messages.shown_token(config)
    monkeypatch.setenv("CUDAL2_TOKEN", "secret")
    assert messages.shown_token(config) == "secret"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_this_machine_may_ask_without(host, monkeypatch):
    monkeypatch.delenv("CUDAL2_TOKEN", raising=False)
    assert messages.shown_token(load("serve", ["run=x", f"host='{host}'"], ServeConfig)) == ""


def test_a_port_that_is_taken_is_one_line(up):
    config = msgspec.structs.replace(up.config, port=up.server.server_address[1])
    with pytest.raises(ValueError, match="choose another port"):
        Server(config, "")


def test_an_address_that_asks_too_often_is_told_to_wait(tmp_path):
    with serving(tmp_path, "limits.per_minute=60") as up:
        codes = Counter(asked(up, "GET", "/health")[0] for _ in range(65))
        assert codes[200] in (60, 61, 62, 63) and set(codes) == {200, 429}  # some come back meanwhile
        assert up.client(patience=10).health()  # waits as it is told


def test_the_rate_of_one_address_is_not_that_of_another():
    rates = messages.Rates(2)
    for address in ("a", "a", "b", "b"):
        rates.take(address)
    with pytest.raises(messages.Refusal, match="per_minute=2"):
        rates.take("a")
    for number in range(2 * messages.ADDRESSES):
        rates.take(str(number))
    assert len(rates._left) <= messages.ADDRESSES + 1


def test_a_request_that_drips_in_is_cut_off(tmp_path):
    with serving(tmp_path, "limits.arrive_seconds=0.5") as up:
        for head in (b"POST /judge HTTP/1.1\r\n", b"POST /judge HTTP/1.1\r\nHost: localhost\r\n" + TYPED + b"\r\n"):
            with socket.create_connection(up.server.server_address[:2], timeout=20) as slow:
                slow.sendall(head)
                began = time.monotonic()
                try:
                    while time.monotonic() < began + 20:
                        slow.sendall(b"x")
                        time.sleep(0.05)
                        slow.setblocking(False)
                        try:
                            if not slow.recv(4096).startswith(b"HTTP/1.1 408"):
                                break
                        except BlockingIOError:
                            pass
                        slow.setblocking(True)
                except OSError:
                    pass
                assert time.monotonic() < began + 15
        assert wait_for(lambda: up.server.open == 0, 10) and asked(up)[0] == 200


TYPED = b"Content-Type: application/json\r\nContent-Length: 10000\r\n"


def test_too_many_connections_are_refused_and_room_comes_again(tmp_path):
    with serving(tmp_path, "limits.connections=3") as up:
        held = [socket.create_connection(up.server.server_address[:2]) for _ in range(3)]
        assert wait_for(lambda: up.server.open == 3, 10)
        with pytest.raises(NoService) as refused:
            up.client().health()
        assert refused.value.again
        threading.Timer(0.3, lambda: [one.close() for one in held]).start()
        assert up.client(patience=20).health()["target"] == "cpu"


def test_a_client_that_leaves_loses_its_place_and_nobody_elses(tmp_path):
    with serving(tmp_path) as up, ThreadPoolExecutor(4) as threads:
        up.pool.open.clear()
        first = threads.submit(up.client().source, PROBLEM, "slow")
        assert up.pool.begun.wait(20)
        leaving = socket.create_connection(up.server.server_address[:2])
        body = json.dumps({"problem": PROBLEM, "source": "fast alone"}).encode()
        leaving.sendall(b"POST /judge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        leaving.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert wait_for(lambda: up.queue.waiting == 1, 20)
        stays = threads.submit(up.client().source, PROBLEM, "fast")
        assert wait_for(lambda: up.queue.waiting == 2, 20)
        leaving.close()
        assert wait_for(lambda: up.queue.waiting == 1, 20) and up.queue.left == 1
        up.pool.open.set()
        assert (first.result(20).status, stays.result(20).status) == ("ok", "ok")
        assert sorted(up.pool.judged) == ["fast", "slow"]


def test_a_wait_that_is_too_long_is_told_and_the_verdict_recalled(tmp_path):
    with serving(tmp_path, "limits.wait_seconds=0.2") as up:
        up.pool.open.clear()
        with pytest.raises(NoService, match="wait_seconds") as error:
            up.client().source(PROBLEM, "fast")
        assert error.value.again
        threading.Timer(0.5, up.pool.open.set).start()
        assert up.client(patience=30).source(PROBLEM, "fast").status == "ok"
        assert up.pool.judged == ["fast"]


def test_a_fault_of_the_harness_is_no_verdict(tmp_path):
    with serving(tmp_path) as up:
        with pytest.raises(NoService, match=r"the device is lost\. Plug it in") as error:
            up.client(patience=5).source(PROBLEM, "fault")
        assert not error.value.again and not up.samples
        assert up.client().source(PROBLEM, "fast").reward > 1.0


def test_a_prompt_shows_what_was_judged(tmp_path):
    with serving(tmp_path) as up:
        before = up.client().prompt(PROBLEM).text
        up.client().source(PROBLEM, "int hgemm() { return 4711; } // fast")
        assert "4711" not in before and "4711" in up.client().prompt(PROBLEM).text


@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_64_clients_at_once_lose_and_double_nothing(tmp_path, seconds):
    """Each asks eight times, a quarter of it for what others ask for too."""
    with serving(tmp_path, seconds=seconds) as up:

        def one(number: int) -> dict[tuple[str, int], str]:
            client = up.client(patience=60)
            sources = [f"fast {number} {turn}" if turn % 4 else f"slow {number % 8} {turn}" for turn in range(8)]
            for turn, source in enumerate(sources):
                judged = client.source(PROBLEM, source, author="c", turn=turn)
                assert judged.metrics["speedup"] == (2.0 if "fast" in source else 0.5)
            return {(client.session, turn): source for turn, source in enumerate(sources)}

        with ThreadPoolExecutor(64) as threads:
            wanted = dict(pair for found in threads.map(one, range(64)) for pair in found.items())
        assert up.samples == wanted and len(wanted) == 512
        assert sorted(up.pool.judged) == sorted(set(wanted.values()))
        assert up.queue.judged + up.queue.recalled == 512 and up.queue.waiting == up.queue.judging == 0
