"""The cluster in a box (tools/cluster.sh) as tests use it: its command, one that is up for a module, and waiting."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))
import cluster
from left import left_behind

BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
SCRIPT = ROOT / "tools" / "cluster.sh"
NAME = cluster.NAME


def run(*line: object, **env: str) -> subprocess.CompletedProcess:
    """tools/cluster.sh with these words; what it starts finds the package."""
    return subprocess.run(
        [str(word) for word in (SCRIPT, *line)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
    )


def skip_without() -> None:
    """Where there can be none, the test is skipped."""
    if (lacking := cluster.missing()) is not None:
        pytest.skip(f"no cluster: {lacking}")


@contextmanager
def lasting(hosts: int) -> Iterator[cluster.Cluster]:
    """One that is up until the end of `with`; nothing is left of it then."""
    skip_without()
    made = run("up", hosts)
    if "another run holds" in made.stderr or "there is a cluster" in made.stderr:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    try:
        yield cluster.Cluster.found()
    finally:
        ended = run("down")
    assert ended.returncode == 0, ended.stderr
    assert left_behind(NAME) == []


def until(is_so: Callable[[], bool], otherwise: Callable[[], str], wait_s_max: float = 90) -> None:
    """Waits for something that jobs bring about."""
    deadline = time.monotonic() + wait_s_max
    while not is_so():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.2)
