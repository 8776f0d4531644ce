"""A real browser for pages: headless Chromium, if one is installed with its driver."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def headless(profile: Path) -> Iterator[Any]:
    """Start a Chromium that keeps its profile in a folder; the test is skipped if there is none."""
    driver_module = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver on this machine")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for argument in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage",
        "disable-background-networking", "disable-component-update", "disable-sync", "window-size=1360,1000",
        f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = driver_module.Chrome(options=options, service=Service(driver))
    try:
        yield found
    finally:
        found.quit()


def wait(browser: Any, script: str, limit_s: float = 40.0) -> Any:
    """Wait until a script returns something true."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = browser.execute_script(f"return {script}")
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{script} stayed false for {limit_s} s")


def faults(browser: Any) -> list[str]:
    """Return the errors in the page and its requests to the network."""
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    asked = [e["message"] for e in browser.get_log("performance") if "requestWillBeSent" in e["message"]]
    return severe + [text for text in asked if re.search(r'"url":"https?:', text)]
