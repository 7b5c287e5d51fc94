"""Opens reports in a real Chromium, headless and without network, as a reader would: from a file.

The browser is the system's (Debian's package `chromium`), driven by playwright, which never downloads one of its own.
Where there is none, these tests are skipped and say so.
"""

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "scenarios" / "hdmlp-s1.toml"
# The names that tools/setup.sh takes for a browser.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# What a browser asks the network for by itself.
QUIET = ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-sync"]


class Made(NamedTuple):
    """A report and the numbers that it was made from."""

    path: Path
    comparison: dict


def build_dir() -> Path:
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target")


def command_path() -> Path:
    """FORESEE_BIN (relative to the checkout, or absolute), else the release build, else the debug build."""
    if named := os.environ.get("FORESEE_BIN"):
        candidates = [ROOT / named]
    else:
        candidates = [build_dir() / profile / "foresee" for profile in ("release", "debug")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    pytest.fail(f"no foresee command at {' or '.join(map(str, candidates))}; run `make test`", pytrace=False)


@pytest.fixture(scope="session")
def simulate():
    """Call it with options of `foresee simulate`; it returns how the run ended."""

    def run(*options: str | Path, scenario: Path = SCENARIO) -> subprocess.CompletedProcess:
        command = [command_path(), "simulate", scenario, *options]
        return subprocess.run(command, capture_output=True, check=False, encoding="utf-8", timeout=120)

    return run


@pytest.fixture(scope="session")
def report_runs():
    """Call it with a file of real runs and a page to write."""

    def run(runs: Path, page: Path) -> None:
        subprocess.run([command_path(), "report", runs, "--output", page], check=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def make_report(simulate, tmp_path_factory):
    """Call it with options of `foresee simulate`; it returns a report and its numbers."""

    def make(*options: str) -> Made:
        path = tmp_path_factory.mktemp("report") / "report.html"
        done = simulate("--json", "--report", path, *options)
        assert done.returncode == 0, done.stderr
        return Made(path, json.loads(done.stdout))

    return make


@pytest.fixture(scope="session")
def made(make_report) -> Made:
    """The report of a small scenario with all policies."""
    return make_report()


@pytest.fixture(scope="session")
def report_paths(made) -> dict[str, Path]:
    """Reports of all kinds: a real one, and those with every chart that the crate's tests leave in the build."""
    names = ("two-keys", "one-key", "names")
    paths = {name: build_dir() / "tmp" / f"report-{name}.html" for name in names}
    if missing := [str(path) for path in paths.values() if not path.is_file()]:
        pytest.skip(f"missing: {', '.join(missing)}; `cargo test --package foresee-cli` makes them")
    return {"plain": made.path, **paths}


@pytest.fixture(scope="session")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip("no browser: install Debian's package chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")
    # Chromium's sandbox refuses to run as root.
    arguments = QUIET + (["--no-sandbox"] if os.geteuid() == 0 else [])
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def open_page(browser):
    """Opens a file, once for all tests that want it so: they must leave it as it is.

    The page has `asked` (what it requested) and `said` (its console messages and errors).
    """

    @functools.cache
    def open_file(path: Path, width: int = 1280, scheme: str = "light", scripts: bool = True):
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=scripts)
        page = context.new_page()
        page.asked, page.said = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.goto(path.as_uri())
        return page

    return open_file
