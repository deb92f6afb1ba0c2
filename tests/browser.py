"""Pages are tested in a real browser, without a window and without a network: any Chrome or Chromium there is.

Where there is none, the tests that need one are left out and the report says so at its end. With ``CI=true`` they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_APPS = ("Google Chrome", "Chromium")
NONE_FOUND = "there is no Chrome or Chromium (tests/install_browser.sh installs one on Debian)"


def find_browser() -> str | None:
    """The path of a browser, if there is one."""
    on_mac = (f"/Applications/{app}.app/Contents/MacOS/{app}" for app in MAC_APPS)
    return next(filter(None, map(shutil.which, (*NAMES, *on_mac))), None)


def is_left_out() -> bool:
    return find_browser() is None and os.environ.get("CI") != "true"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a browser where there is none."""
    if is_left_out():
        in_browser = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=in_browser)
        items[:] = [item for item in items if item not in in_browser]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so, also where workers have left it out."""
    if is_left_out():
        terminalreporter.write_line(f"Tests of pages in a browser were left out: {NONE_FOUND}.", yellow=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    path = find_browser()
    if path is None:
        pytest.fail(f"CI=true, and {NONE_FOUND}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """Opens a file; at the end of the test no page may have raised, complained or asked the network for anything."""
    context = browser.new_context(viewport={"width": 1200, "height": 700}, offline=True)
    faults: list[str] = []

    def open_page(path: Path) -> Any:
        page = context.new_page()
        watch(page, faults)
        page.goto(path.resolve().as_uri())
        return page

    yield open_page
    context.close()
    assert faults == []


def watch(page: Any, faults: list[str]) -> None:
    """Note in ``faults`` whatever is wrong with a page from now on."""
    page.on("pageerror", lambda error: faults.append(f"raised: {error}"))
    page.on("console", lambda said: faults.append(f"said: {said.text}") if said.type in ("error", "warning") else None)
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else faults.append(asked.url))
