"""bench/cluster_compare.py at a small size: a bare MPI program and foresee on a cluster in a box, beside what is predicted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "bench")]
import cluster_compare
import cluster_plot
import cluster_prediction
import common
from clustered import BUILD_DIR, NAME, PACKAGE, skip_without
from left import left_behind

SAMPLES, EPOCHS = 256, 3
SMALL = ("--hosts", 2, "--ranks", 2, "--images", SAMPLES, "--global-batch", 32, "--cached", 1.1, "--epochs", EPOCHS)
SMALL += ("--compute-ms", 5, "--more-ranks", 16, "--unlimited", "--loaders", "bare", "foresee")


def test_a_bare_program_reads_every_epoch_and_foresee_the_minimum(tmp_path):
    """That every sample comes once an epoch, with its bytes, is checked by the run."""
    skip_without()
    if not shutil.which(cluster_compare.COMPILER):
        pytest.skip(f"no {cluster_compare.COMPILER}: install Debian's package libopenmpi-dev")
    common.make_dataset(tmp_path / "samples", SAMPLES, 20)
    words = ["bench/cluster_compare.py", tmp_path / "samples", *SMALL, "--json", tmp_path / "result.json"]
    done = subprocess.run(
        [sys.executable, "-B", *map(str, words)],
        env={"FORESEE_BIN": str(BUILD_DIR / "debug" / "foresee"), **os.environ, "PYTHONPATH": str(PACKAGE)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=180,
    )
    if "another run holds" in done.stderr or "there is a cluster" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert left_behind(NAME) == []
    result = json.loads((tmp_path / "result.json").read_text())
    bare, ours = result["runs"]
    assert [epoch["source_bytes"] for epoch in bare["epochs"]] == [result["bytes"]] * EPOCHS
    # The pages of the epoch before were dropped.
    assert all(epoch["line_bytes"] > result["bytes"] for epoch in bare["epochs"])
    assert ours["source_bytes"] == ours["minimum_bytes"] == result["bytes"]
    assert [epoch["source_bytes"] for epoch in ours["epochs"]] == [result["bytes"], 0, 0]
    assert sum(epoch["peer_bytes"] for epoch in ours["epochs"]) > 0.5 * result["bytes"]
    (setting,) = result["settings"]
    for figures in setting["loaders"].values():
        assert figures["minimum_bytes"] == result["bytes"]
        assert figures["predicted"]["first_s"] > 0
    assert setting["loaders"]["foresee"]["predicted"]["job_source_bytes"] == result["bytes"]
    page = cluster_plot.REPORT.tables(result)
    assert "2 hosts of 2 ranks, K = 1.1 S" in page and cluster_prediction.TITLE in page
    assert cluster_plot.REPORT.plot(result).count("<rect") == 1 + 2 * 3


def figures(later_s, source_bytes=100, predicted_s=1.0):
    predicted = {"first_s": 1.0, "later_s": predicted_s}
    return {
        "first_s": 1.0,
        "later_s": later_s,
        "all_source_bytes": source_bytes,
        "minimum_bytes": 100,
        "predicted": predicted,
    }


@pytest.mark.parametrize(
    ("bare", "ours", "missed"),
    [
        (figures(2.0), figures(1.0), ""),
        (figures(1.9), figures(1.0), "2 times the bare program"),
        (figures(2.0), figures(1.0, source_bytes=101), "the minimum"),
        (figures(2.0), figures(1.0, predicted_s=1.21), "a prediction within 20%"),
        (figures(2.0), figures(1.0, predicted_s=0.79), "a prediction within 20%"),
    ],
)
def test_what_falls_short_of_a_goal_is_said(bare, ours, missed):
    said = cluster_compare.verdict({}, {"cached": 1.02, "loaders": {"bare": bare, "foresee": ours}})
    assert said.count("MISSED") == (1 if missed else 0)
    assert f"{missed}: MISSED" in said or not missed
