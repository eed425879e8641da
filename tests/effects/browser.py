"""A headless Chromium, driven over its DevTools protocol through a pipe; tests skip where there is none."""

import base64
import fcntl
import importlib.util
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATH = next((found for name in NAMES if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(
    PATH is None or importlib.util.find_spec("plotly") is None,
    reason="chromium (Debian: apt-get install chromium) or plotly is not installed",
)

_ANSWER_S = 30.0
_POLL_S = 0.02
_QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-breakpad", "--mute-audio", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


class Tab:
    """One page.

    Attributes:
        errors: what the console, the page's code, and its requests complained of.
    """

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, parameters, self._session)

    def evaluate(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, expression: str, within_s: float = _ANSWER_S) -> Any:
        """Until it is true; returns it."""
        deadline_s = time.monotonic() + within_s
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < deadline_s, f"waited in vain for {expression}; errors: {self.errors}"
            time.sleep(_POLL_S)
        return found

    def look(self, width: int, height: int, is_dark: bool = False) -> None:
        """As a screen of this size, in the light or in the dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def click(self, x: float, y: float) -> None:
        """With the mouse."""
        at = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        time.sleep(0.2)  # charts look where the mouse is a few times a second
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def shoot(self, path: Path) -> None:
        """A picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def heed(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


class Browser:
    """A running Chromium."""

    def __init__(self, to_it: int, from_it: int) -> None:
        self._to, self._from = os.fdopen(to_it, "wb", buffering=0), os.fdopen(from_it, "rb", buffering=0)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._number = 0
        self._tabs: dict[str, Tab] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        number, answer = self._number, queue.SimpleQueue[dict[str, Any]]()
        self._answers[number] = answer
        asked = {"id": number, "method": method, "params": parameters}
        self._to.write(json.dumps(asked | ({"sessionId": session} if session else {})).encode() + b"\0")
        told = answer.get(timeout=_ANSWER_S)
        assert "error" not in told, (method, told["error"])
        return dict(told["result"])

    def tab(self) -> Tab:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        return tab

    def _read(self) -> None:
        rest = b""
        while data := self._from.read(1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for text in messages:
                told = json.loads(text)
                if "id" in told:
                    self._answers.pop(told["id"]).put(told)
                elif told.get("sessionId") in self._tabs:
                    self._tabs[told["sessionId"]].heed(told["method"], told.get("params", {}))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """For as long as the block lasts."""
    assert PATH is not None
    its_in, to_it = os.pipe()
    from_it, its_out = os.pipe()
    # It reads from 3 and writes to 4; the shell puts them there, from numbers that are neither.
    high_in, high_out = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (its_in, its_out))
    command = [PATH, *_QUIET, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$0" "$@" 3<&{high_in} 4>&{high_out}', *command],
        pass_fds=(high_in, high_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"DBUS_SESSION_BUS_ADDRESS": "/dev/null", "HOME": str(folder)},
    )
    for one in (its_in, its_out, high_in, high_out):
        os.close(one)
    running = Browser(to_it, from_it)
    try:
        yield running
    finally:
        try:
            running.call("Browser.close", {})
            process.wait(_ANSWER_S)
        finally:
            process.kill()
            process.wait()
        running._reader.join(_ANSWER_S)
        running._to.close()
        running._from.close()
