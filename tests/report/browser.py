"""Headless Chromium, driven through the DevTools protocol over a pipe: no driver, no port, nothing else to install."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 600.0  # seconds until a browser that does not answer is given up
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root; the only page it opens is ours
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser process with one tab."""

    def __init__(self) -> None:
        path = shutil.which("chromium")
        assert path is not None, "there is no chromium: run scripts/ensure_chromium.sh"
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._log = open(Path(self._profile.name) / "log", "wb")  # noqa: SIM115  closed by __exit__
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4; ours must not be in the way.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (its_in, its_out)]
        profile = f"--user-data-dir={self._profile.name}/profile"
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", path, *FLAGS, profile, "about:blank"],
            env={**os.environ, "TMPDIR": self._profile.name},
            pass_fds=ends,
            stdout=self._log,
            stderr=self._log,
        )
        for end in (its_in, its_out, *ends):
            os.close(end)
        self._pending, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._in)
        os.close(self._out)
        self._log.close()
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile goes to ``events``."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, mobile: bool = False, dark: bool = False
    ) -> None:
        """Load a file as a reader with such a screen would, and forget what happened before."""
        self.screen(width, height, mobile=mobile, dark=dark)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def screen(self, width: int, height: int, *, mobile: bool = False, dark: bool = False) -> None:
        """Another screen for the page that is open."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])

    @contextmanager
    def printing(self, width: int) -> Iterator[None]:
        """The page laid out by its print rules, this many CSS pixels wide, for a reader who likes it dark."""
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        self.call("Emulation.setEmulatedMedia", media="print", features=[dark])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        yield
        self.screen(1280, 900)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses that the page has asked for since it was opened."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """What a reader's console would show: errors and warnings, uncaught exceptions, anything that was logged."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed, on A4."""
        printed = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                log = Path(self._log.name).read_text(errors="replace")[-2000:]
                raise AssertionError(f"chromium {'ended' if ready else 'does not answer'}:\n{log}")
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
