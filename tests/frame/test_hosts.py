"""bench/hosts.py at a small size: four hosts with a rank each, a MooseFS behind a slow line, and nothing left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "bench")]
import hosts
from left import left_behind, processes

BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
NAME = "foresee-hosts"
IMAGES = 400
SMALL = ("--images", IMAGES, "--batch", 10, "--staging", "2 MiB", "--loops", "raw", "--cached", 1.1, "--epochs", 3)
SMALL += ("--unlimited",)
START_S_MAX = 60


def start(folder: Path, *options: object) -> subprocess.Popen:
    words = [sys.executable, "-B", ROOT / "bench" / "hosts.py", *SMALL, *options, "--cache", folder]
    return subprocess.Popen(
        [str(word) for word in words],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen) -> str:
    """What it printed; where it cannot run, it says so, and so does the test."""
    output, errors = process.communicate(timeout=120)
    if "SKIPPED" in output:
        pytest.skip(output.strip())
    if "another run holds" in errors:
        pytest.skip(errors.strip())
    return output + errors


def until_ranks_run(process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        if sum("hosts_rank.py" in line for line in processes(NAME)) >= 4:
            return
        time.sleep(0.05)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder that keeps the images from one run to the next."""
    return tmp_path_factory.mktemp("images")


def test_hosts_read_the_shared_storage_once_and_then_each_other(images, tmp_path):
    """That every sample comes once an epoch, with its bytes, is checked by the run."""
    process = start(images, "--loaders", "nopfs", "foresee", "--json", tmp_path / "result.json")
    printed = finish(process)
    assert process.returncode == 0, printed
    result = json.loads((tmp_path / "result.json").read_text())
    nopfs, foresee = result["runs"]
    assert result["samples"] == IMAGES
    assert foresee["source_bytes"] == foresee["minimum_bytes"] == result["bytes"]
    assert nopfs["source_bytes"] > result["bytes"]
    first, *later = foresee["epochs"]
    # Everything once over the storage's line, from then on over the hosts'.
    assert first["line_bytes"] > result["bytes"]
    for epoch in later:
        assert epoch["source_bytes"] == 0
        assert epoch["line_bytes"] < 0.05 * result["bytes"]
        assert epoch["between_bytes"] > 0.25 * result["bytes"]
    assert left_behind(NAME) == []


def test_a_run_that_is_stopped_takes_everything_down(images):
    process = start(images, "--loaders", "foresee", "--epochs", 1000)
    until_ranks_run(process)
    process.send_signal(signal.SIGINT)
    printed = finish(process)
    assert process.returncode == 130, printed
    assert left_behind(NAME) == []


def test_what_a_killed_run_left_is_removed_by_the_next(images):
    process = start(images, "--loaders", "foresee", "--epochs", 1000)
    until_ranks_run(process)
    process.kill()
    finish(process)
    assert left_behind(NAME) != []
    process = start(images, "--loaders", "foresee", "--epochs", 1)
    printed = finish(process)
    assert process.returncode == 0, printed
    assert left_behind(NAME) == []


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ([[(0, "a")], [(1, "b")]], None),
        ([[(0, "a")], [(1, "c")]], "1 samples with other bytes"),
        ([[(0, "a")], [(0, "a"), (1, "b")]], "not every sample exactly once"),
        ([[(0, "a")], []], "not every sample exactly once"),
    ],
)
def test_a_run_ends_where_a_sample_is_wrong_missing_or_twice(seen, wrong):
    data = hosts.Data(Path("/data"), [1, 1], ["a", "b"], [0, 0])
    bench = hosts.Bench(SimpleNamespace(hosts=2, ranks=1), None, data)
    run = hosts.Run("raw", "foresee", 1.0, None)
    said = [{"seen": rank} for rank in seen]
    if wrong is None:
        bench.check(run, 0, said)
    else:
        with pytest.raises(hosts.Stop, match=wrong):
            bench.check(run, 0, said)
