"""Headless Chromium, driven over its debugging protocol with the WebSocket client that Brim has anyway.

    with Chromium() as browser:
        page = browser.page(width=1280, height=900)
        page.open("http://127.0.0.1:8080/")
        page.click("text=Clients")
        page.until("document.querySelectorAll('tbody tr').length === 100")

Clicks and keys are real input events. `page.errors` has every uncaught exception and console error of the
page, such as a violation of its content security policy.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.waiting import PATIENCE_S

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
STEP_S = 0.03
FIND = """(selector) => {
  const name = selector.startsWith("text=") ? selector.slice(5) : null;
  const shown = [...document.querySelectorAll(name === null ? selector : "button, a")].filter((one) =>
    one.getClientRects().length && (name === null || one.textContent.trim() === name));
  const dialogs = shown.filter((one) => one.closest("dialog[open]"));
  return (dialogs.length ? dialogs : shown)[0] ?? null;
}"""
# Middle of an element, once it has not moved for a moment and receives clicks there: content that arrives
# moves what is below it, a dialog that closes still covers the page.
CENTER = """async (found) => {
  for (let before = null; ; await new Promise((resolve) => setTimeout(resolve, 60))) {
    const one = found();
    if (one === null) continue;
    one.scrollIntoView({ block: "center" });
    const box = one.getBoundingClientRect();
    const middle = [box.x + box.width / 2, box.y + box.height / 2];
    if (String(middle) === before && one.contains(document.elementFromPoint(...middle))) return middle;
    before = String(middle);
  }
}"""
CHOOSE = """(one, value) => {
  one.value = value;
  one.dispatchEvent(new Event("change", { bubbles: true }));
}"""


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str, context: str) -> None:
        self.errors: list[str] = []
        self._browser = browser
        self._session = session
        self._context = context
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Close the tab and forget its cookies and storage."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **parameters: Any) -> Any:
        """Result of a command of the debugging protocol."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """Size of the window, and theme of the machine."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        """Load a page, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """Value of an expression in the page; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(
            f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        ):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not true in {PATIENCE_S} s: {condition}; the page: {self.text()[:2000]}"
                )
            time.sleep(STEP_S)

    def text(self) -> str:
        """Text in view."""
        return str(self.value("document.body.innerText"))

    def until_text(self, wanted: str) -> None:
        """Wait until a text is in view."""
        self.until(f"document.body.innerText.includes({json.dumps(wanted)})")

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector, or text=NAME, finds in an open dialog, or in view."""
        x, y = self.value(f"({CENTER})(() => {self._found(selector)})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Replace the content of a field by typing."""
        self.value(f"((one) => {{ one.focus(); one.select(); }})({self._found(selector)})")
        self.call("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option."""
        self.value(f"({CHOOSE})({self._found(selector)}, {json.dumps(value)})")

    def _found(self, selector: str) -> str:
        """Expression for the element, once it is in view."""
        found = f"({FIND})({json.dumps(selector)})"
        self.until(found)
        return found

    def press(self, key: str) -> None:
        """Press and release a key, such as Tab or Enter."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
            if kind == "rawKeyDown" and key == "Enter":
                self.call("Input.dispatchKeyEvent", type="char", key=key, text="\r")

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the window."""
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def heard(self, message: dict[str, Any]) -> None:
        """Take an event of this tab."""
        match message:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.errors.append(json.dumps(details)[:1000])
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text} as entry}}:
                self.errors.append(f"{text} {entry.get('url', '')}")


class Chromium:
    """The browser; a context manager. The test is skipped where there is no Chromium."""

    def __enter__(self) -> Self:
        program = (
            shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        )
        if program is None:
            pytest.skip("no browser: apt-get install chromium")
        self._numbers = itertools.count(1)
        self._pages: dict[str, Page] = {}
        self._down = contextlib.ExitStack()
        profile = Path(self._down.enter_context(tempfile.TemporaryDirectory(prefix="brim-chromium-")))
        command = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._down.callback(self._end)
        try:
            self._socket: ClientConnection = connect(self._url(profile), max_size=None, compression=None)
            self._down.callback(self._socket.close)
        except BaseException:
            self._down.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._down.close()

    @property
    def pid(self) -> int:
        """Process, and process group, of the browser."""
        return self._process.pid

    def page(self, width: int = 1280, height: int = 860, *, dark: bool = False) -> Page:
        """A new tab, with cookies and storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        self._pages[session] = page
        page.resize(width, height, dark=dark)
        return page

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Result of a command."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(request | ({"sessionId": session} if session else {})))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            if page := self._pages.get(message.get("sessionId", "")):
                page.heard(message)

    def _url(self, profile: Path) -> str:
        deadline = time.monotonic() + PATIENCE_S
        file = profile / "DevToolsActivePort"
        while time.monotonic() < deadline:
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            assert self._process.poll() is None, "Chromium has ended"
            time.sleep(STEP_S)
        raise AssertionError(f"Chromium is not ready in {PATIENCE_S} s")

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
                return
