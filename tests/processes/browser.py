"""A real browser for tests of pages: headless Chromium through chromedriver, no other library."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

__all__ = ["Browser", "needs_browser"]


class Browser:
    """Headless Chromium, driven through chromedriver by the W3C WebDriver protocol."""

    def __init__(self, home: Path) -> None:
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self.driver.stdout is not None
        port = next(match[1] for line in self.driver.stdout if (match := re.search(r"started successfully on port (\d+)", line)))
        self.url = f"http://127.0.0.1:{port}"
        flags = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
        flags += ["--disable-sync", f"--user-data-dir={home}", "--window-size=1400,1000", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        options = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self._post("/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]

    def _post(self, path: str, body: object) -> dict:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def script(self, code: str) -> object:
        return self._post(f"/session/{self.session}/execute/sync", {"script": code, "args": []})

    def cdp(self, command: str, **params: object) -> dict:
        return self._post(f"/session/{self.session}/goog/cdp/execute", {"cmd": command, "params": params})

    def go(self, url: str) -> None:
        self._post(f"/session/{self.session}/url", {"url": url})

    def open(self, path: Path) -> None:
        self._post(f"/session/{self.session}/url", {"url": path.as_uri()})
        self.wait("return window.Bokeh?.documents?.[0]?.is_idle ?? false")

    def wait(self, code: str) -> object:
        until = time.monotonic() + 30
        while not (value := self.script(code)):
            assert time.monotonic() < until, f"never true: {code}"
            time.sleep(0.05)
        return value

    def complaints(self) -> list[str]:
        log = self._post(f"/session/{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def scheme(self, name: str) -> None:
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(self.png())).convert("RGB"))

    def png(self) -> bytes:
        """What the window shows."""
        return base64.b64decode(self.cdp("Page.captureScreenshot", format="png")["data"])

    def size(self, width: int, height: int = 900) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def key(self, name: str) -> None:
        """Press and release a key: Tab, ArrowRight, ..."""
        code = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, " ": 32, "Enter": 13}[name]
        more = {"text": "\r"} if name == "Enter" else {"text": " "} if name == " " else {}
        for kind in ("keyDown", "keyUp"):
            self.cdp(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **(more if kind == "keyDown" else {})
            )

    def quit(self) -> None:
        request = urllib.request.Request(f"{self.url}/session/{self.session}", method="DELETE")
        with urllib.request.urlopen(request, timeout=60):
            pass
        self.driver.terminate()
        self.driver.wait(timeout=30)


needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="no chromium and chromedriver (Debian: chromium-driver)"
)
