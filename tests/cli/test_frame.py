"""What the command says about itself."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def workspace_version() -> str:
    # Not tomllib: Python 3.10 has none.
    section = (ROOT / "Cargo.toml").read_text(encoding="utf-8").split("[workspace.package]")[1]
    return re.search(r'^version = "(.+)"$', section, re.MULTILINE)[1]


def test_version_is_that_of_the_workspace(foresee):
    code, stdout, stderr = foresee("--version")
    assert (code, stdout, stderr) == (0, f"foresee {workspace_version()}\n", "")


def test_help_lists_simulate(foresee):
    code, stdout, _ = foresee("--help")
    assert code == 0
    assert re.search(r"^\s+simulate\b", stdout, re.MULTILINE), stdout
