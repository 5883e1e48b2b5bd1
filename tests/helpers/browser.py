"""Headless Chromium for tests, through the pipe of its DevTools protocol (chromedevtools.github.io/devtools-protocol).

Its jail needs what containers seldom give, and it shows only pages that these tests write: hence --no-sandbox.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60
"""Seconds after which a page that says nothing is given up."""
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")


class Page:
    """One page, what it complained of (`errors`) and asked for (`requests`: addresses)."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders, self._answers, self._read, self._last = orders, answers, b"", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Open the file and wait until the page has drawn its figures, or said that it cannot."""
        self._ask("Page.navigate", url=path.resolve().as_uri())
        drawn = "document.documentElement?.dataset.drawn === ''"
        failed = "!!document.querySelector('#unreadable:not([hidden])')"
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(f"{drawn} || {failed}"):
            assert time.monotonic() < deadline, f"the page does not draw itself: {self.errors}"
            time.sleep(0.05)

    def evaluate(self, script: str) -> Any:
        """What the expression is worth in the page, awaited where it is a promise."""
        said = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def size(self, width: int, height: int) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefers(self, scheme: str) -> None:
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str) -> None:
        """A key by its name: Tab, Enter, ArrowDown."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        order = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._last:
                assert "error" not in said, said
                return said["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser ended"
            self._read += part
        line, self._read = self._read.split(b"\0", 1)
        said = json.loads(line)
        about, what = said.get("params", {}), said.get("method")
        if what == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"]))
        elif what == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(about["args"]))
        elif what == "Log.entryAdded":
            self.errors.append(about["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif what == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {about['message']}")
        return said


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a browser that nobody else uses, ended with the block."""
    assert CHROMIUM
    (ordered, orders), (answers, answered) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # A shell puts the pipes where the browser looks for them.
        command = f'exec "$@" 3<&{ordered} 4>&{answered}'
        process = subprocess.Popen(
            ["bash", "-c", command, "bash", CHROMIUM, *_OPTIONS, f"--user-data-dir={home}"],
            pass_fds=(ordered, answered),
            stderr=subprocess.DEVNULL,
        )
        os.close(ordered)
        os.close(answered)
        try:
            yield Page(orders, answers)
        finally:
            os.close(orders)
            os.close(answers)
            process.terminate()
            process.wait(30)
