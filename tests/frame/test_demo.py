"""tools/demo.py on a tiny job: the real loader, the simulator and the page, as `make demo` puts them together."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
TINY = ("--images", "40", "--batch", "8", "--compute-ms", "2", "--mb-per-s", "60", "--latency-ms", "0")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-B", ROOT / "tools" / "demo.py", *TINY]
    return folder, subprocess.run(
        [*command, "--cache", folder, "--report", folder / "page.html"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=60,
    )


def test_the_demo_compares_the_policies_and_writes_a_page(ran):
    folder, done = ran
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"plain", "nopfs", "foresee"} <= rows.keys()
    assert rows["plain"][-1] == "1.00x"
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert 'data-name="foresee, predicted"' in page


def test_foresee_reads_the_source_minimum(ran):
    _, done = ran
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["foresee"]]
    assert len(rows) == 2, "one rank, then four"
    for row in rows:
        amounts = [number for number, unit in itertools.pairwise(row) if unit == "MB"]
        assert amounts[0] == amounts[1]


def test_a_second_page_shows_rank_by_rank(ran):
    folder, _ = ran
    page = (folder / "page-ranks.html").read_text(encoding="utf-8")
    assert all(f'data-name="foresee, rank {rank}"' in page for rank in range(4))


def test_there_is_no_bar_where_there_is_no_terminal(ran):
    _, done = ran
    assert done.stderr == ""
    assert "\r" not in done.stdout


def test_the_dataset_is_made_once_and_is_whole(ran):
    folder, _ = ran
    (made,) = folder.glob("demo-*")
    images = sorted(made.glob("class-*/*.jpg"))
    assert len(images) == 40
    assert all(image.read_bytes()[:2] == b"\xff\xd8" for image in images)
    assert not list(folder.glob(".demo-*"))
