"""bench/shared_fs.py at a small size: a real MooseFS behind a slow line, with foresee alone, and nothing left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from left import left_behind

BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
NAME = "foresee-mfs"
IMAGES = 200
SMALL = ("--images", str(IMAGES), "--batch", "16", "--staging", "32 MiB", "--epochs", "2", "--rounds", "1")
START_S_MAX = 30


def start(folder: Path, *options: object) -> subprocess.Popen:
    command = [sys.executable, "-B", ROOT / "bench" / "shared_fs.py", *SMALL, "--loaders", "job", *options]
    return subprocess.Popen(
        [str(word) for word in [*command, "--cache", folder]],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen) -> str:
    """What it printed; where it cannot run, it says so, and so does the test."""
    output, errors = process.communicate(timeout=60)
    if "SKIPPED" in output:
        pytest.skip(output.strip())
    if "another run holds" in errors:
        pytest.skip(errors.strip())
    return output + errors


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder that keeps the images from one run to the next."""
    return tmp_path_factory.mktemp("images")


def test_the_second_epoch_reads_less_and_nothing_is_left(images, tmp_path):
    process = start(images, "--json", tmp_path / "result.json")
    printed = finish(process)
    assert process.returncode == 0, printed
    result = json.loads((tmp_path / "result.json").read_text())
    (run,) = result["runs"]
    first, second = (epoch["received_bytes"] for epoch in run["epochs"])
    assert result["images"] == IMAGES
    # Everything once, and then what is not in memory.
    assert first >= result["bytes"] > second
    assert run["stats"]["source_bytes"] == run["stats"]["source_minimum_bytes"]
    assert left_behind(NAME) == []


def test_a_run_that_is_stopped_takes_everything_down(images):
    process = start(images, "--epochs", "1000")
    deadline = time.monotonic() + START_S_MAX
    while (
        process.poll() is None and not Path(f"/tmp/{NAME}/mfschunkserver.log").exists() and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    printed = finish(process)
    assert process.returncode == 128 + signal.SIGTERM, printed
    assert left_behind(NAME) == []


def test_runs_that_share_a_network_but_no_folder_wait_for_each_other(tmp_path):
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    # Nothing is made, and there is nothing to take down.
    code = "import network; network.remove = lambda _: None\n"
    code += f"with network.locked('{NAME}'): print('held', flush=True); input()"

    def hold(folder: Path) -> subprocess.Popen:
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "bench")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-B", "-c", code], env=environment, encoding="utf-8", **pipes)

    one = hold(folders[0])
    held = one.stdout.readline()
    other = hold(folders[1])
    _, errors = other.communicate("\n", timeout=30)
    _, first_errors = one.communicate("\n", timeout=30)
    if "another run holds" in first_errors:
        pytest.skip("a real run is under way")
    assert held == "held\n"
    assert f"another run holds the network {NAME}: wait for it to end" in errors
    again = hold(folders[1])
    assert again.communicate("\n", timeout=30)[0] == "held\n"


def test_without_moosefs_it_says_what_to_install(tmp_path):
    done = subprocess.run(
        [sys.executable, "-B", ROOT / "bench" / "shared_fs.py"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0
    packages = "iproute2 moosefs-chunkserver moosefs-client moosefs-master util-linux"
    assert done.stdout == f"shared_fs: SKIPPED: needs Debian's packages: apt-get install {packages}\n"
