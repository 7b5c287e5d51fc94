"""Runs the built `foresee` command as a user would: arguments in; exit code, stdout and stderr out."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from built import ROOT, command_path


class Ran(NamedTuple):
    """How one run of the command ended."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def command() -> Path:
    """Where the command is, for tests that start it themselves."""
    return command_path()


@pytest.fixture
def foresee(command):
    """Call it with the command's arguments; it returns (code, stdout, stderr)."""

    def run(
        *args: str | Path,
        cwd: Path = ROOT,
        timeout_s: float = 60,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Ran:
        done = subprocess.run(
            [*prefix, command, *args],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            encoding="utf-8",
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
