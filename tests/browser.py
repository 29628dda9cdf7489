"""A headless Chromium, as the tests of the site and of the HTML report drive it."""

import contextlib
import os
import shutil
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

CHROMIUM_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1200",
    # What a page asks of other hosts fails, and is complained of.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


def need(present, what):
    """Skips where a tool is absent; CI sets the variable, so that there nothing is left out."""
    if not present:
        (pytest.fail if os.environ.get("DSOCR_TEST_SITE") else pytest.skip)(f"needs {what}")


@contextlib.contextmanager
def chromium(profile):
    """A browser with a profile of its own; what pages say on the console is kept."""
    need(CHROMIUM and DRIVER, "chromium and chromedriver (Debian: chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in CHROMIUM_OPTIONS:
        options.add_argument(option)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def wait_for(what, seconds=20):
    """The first true answer of `what`, or its last one."""
    end = time.monotonic() + seconds
    while not (answer := what()) and time.monotonic() < end:
        time.sleep(0.1)
    return answer
