"""A server that speaks as much of OpenAI's chat API as an endpoint needs, and whose model knows some small kernels.

What it does to a request is a behaviour of BEHAVIOURS: to write a kernel, or to fail in one of the ways that servers
do. As a program, `python tests/helpers/fake_endpoint.py PORT [BEHAVIOUR…]` takes the named ones in rotation, until it
is killed.
"""

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KERNEL = """extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void*) {
    for (int n = 0; n < N; ++n)
        for (int m = 0; m < M; ++m) {
            float sum = 0;
            for (int k = 0; k < K; ++k) sum += float(A[m * K + k]) * float(B[n * K + k]);
            C[m * N + n] = _Float16(sum) + _Float16(SALT * 0);
        }
    return 0;
}
"""
PIECE = 400
"""Characters in an event of a stream."""


def kernel(number: int) -> str:
    """The `number`-th kernel; each is another one."""
    return KERNEL.replace("SALT", str(number))


class Model:
    """What the server was asked, and the number of its answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        self.delay = 0.0


Reply = dict[str, Any]


def say(content: str | None, finish: str | None = "stop", **more: Any) -> Reply:
    """A message of the model, as both kinds of body are made from it."""
    return {"content": content, "finish": finish, **more}


def fenced(number: int) -> Reply:
    return say(f"Here it is.\n```cpp\n{kernel(number)}```\n")


def _status(code: int, said: str, **headers: str) -> Reply:
    return {"status": code, "error": {"message": said, "type": "error"}, "headers": headers}


BEHAVIOURS: dict[str, Callable[[int], Reply]] = {
    "kernel": fenced,
    "same": lambda number: fenced(0),
    "thinks": lambda number: fenced(number) | {"reasoning": "I could write ```cpp\nint x;\n```."},
    "thinks_content": lambda number: fenced(number) | {"reasoning_content": "Hm."},
    "only_thinks": lambda number: say(None, "length", reasoning="On and on and"),
    "talks": lambda number: say("I had rather not write any code today."),
    "refuses": lambda number: say(None, "stop", refusal="No."),
    "cut": lambda number: say(f"```cpp\n{kernel(number)[:200]}", "length"),
    "long": lambda number: say("x" * (10 << 20) + f"\n```cpp\n{kernel(number)}```\n"),
    "endless": lambda number: say("x" * (40 << 20)),
    "dies": lambda number: fenced(number) | {"dies": True},
    "silent": lambda number: {"silent": True},
    "wrong_key": lambda number: _status(401, "Incorrect API key provided: secret-123"),
    "no_model": lambda number: _status(404, "The model `fake` does not exist"),
    "too_large": lambda number: _status(400, "This model's maximum context length is 4096 tokens"),
    "busy": lambda number: _status(429, "Rate limit reached", **{"retry-after-ms": "10"}),
    "broken": lambda number: _status(500, "internal error", **{"retry-after-ms": "10"}),
    "html": lambda number: {"raw": b"<html>It works!</html>"},
    "no_kernel_json": lambda number: {"raw": b'{"choices": []}'},
    "error_event": lambda number: {"raw": b'data: {"error": {"message": "the GPU is gone"}}\n\n'},
}


def _body(reply: Reply, stream: bool) -> bytes:
    """What is sent for a message, whole or in pieces."""
    thoughts = {name: reply[name] for name in ("reasoning", "reasoning_content", "refusal") if name in reply}
    content = reply["content"]
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    base = {"id": "c", "model": "fake", "created": 0}
    if not stream:
        choice = {"index": 0, "message": {"role": "assistant", "content": content} | thoughts}
        return json.dumps(
            base
            | {"object": "chat.completion", "choices": [choice | {"finish_reason": reply["finish"]}], "usage": usage}
        ).encode()
    deltas: list[dict[str, Any]] = [{"role": "assistant"}, *([thoughts] if thoughts else [])]
    text = content or ""
    size = max(PIECE, len(text) // 100)
    deltas += [{"content": text[start : start + size]} for start in range(0, len(text), size)]
    events: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reply["finish"]}]})
    events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(base | event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def _handler(model: Model, behaviours: Iterator[str], first: int = 0) -> type[BaseHTTPRequestHandler]:
    numbers = itertools.count(first)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with model.lock:
                model.asked.append(asked)
                model.keys.append(self.headers.get("authorization"))
                reply = BEHAVIOURS[next(behaviours)](next(numbers))
            time.sleep(model.delay)
            if reply.get("silent"):
                time.sleep(5)
                self.close_connection = True
                return
            stream = bool(asked.get("stream"))
            data = reply.get("raw") or (json.dumps(reply) if "error" in reply else "").encode() or _body(reply, stream)
            self.send_response(reply.get("status", 200))
            plain = "error" in reply or not stream
            self.send_header("content-type", "application/json" if plain else "text/event-stream")
            self.send_header("content-length", str(len(data)))
            self.send_header("connection", "close")
            for name, value in reply.get("headers", {}).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # where nobody listens any more
                self.wfile.write(data[: len(data) // 2] if reply.get("dies") else data)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # one that never answers may still be asleep
    request_queue_size = 128


@contextmanager
def serving(*behaviours: str, first: int = 0) -> Iterator[tuple[str, Model]]:
    """The address of a server that takes these behaviours in turn, the last one for ever; and what it was asked. Its
    kernels are numbered from the `first` on."""
    model = Model()
    turn = itertools.chain(behaviours, itertools.repeat(behaviours[-1] if behaviours else "kernel"))
    server = _Server(("127.0.0.1", 0), _handler(model, turn, first))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", model
    finally:
        server.shutdown()
        server.server_close()


def main(words: Sequence[str]) -> None:
    port, *behaviours = words
    _Server(("127.0.0.1", int(port)), _handler(Model(), itertools.cycle(behaviours or ["kernel"]))).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
