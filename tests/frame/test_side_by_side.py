"""The comparison with other loaders, from a dataset to a plot, with foresee alone on a tiny job. Nothing is timed here."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
TINY = ("--rounds", "2", "--batch", "16", "--loaders")


def run(script: str, *args: object, cache: Path, path: Path | str = PACKAGE) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-B", ROOT / script, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(path), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def data(folder):
    done = run("tools/bench_data.py", "--images", 64, cache=folder)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def trained(folder, data):
    # No test tool brings DALI: it is missing.
    return run("bench/train.py", data, *TINY, "foresee", "dali", "--json", folder / "train.json", cache=folder)


@pytest.fixture(scope="module")
def read(folder, data):
    ways = ("foresee", "foresee.get", "foresee.disk")
    return run("bench/raw.py", data, *TINY, *ways, "--epochs", 2, "--json", folder / "raw.json", cache=folder)


def test_the_dataset_is_of_images_as_large_as_photographs(data):
    images = sorted(data.glob("class-*/*.jpg"))
    assert len(images) == 64
    assert not [each for each in data.iterdir() if not any(each.iterdir())]
    assert 80e3 < sum(image.stat().st_size for image in images) / len(images) < 130e3


def test_every_round_is_kept_with_the_machine_and_the_versions(folder, trained):
    assert trained.returncode == 0, trained.stderr
    result = json.loads((folder / "train.json").read_text())
    runs = result["runs"]["foresee"]
    assert [run["samples"] for run in runs] == [64, 64]
    for key in ("per_s", "whole_per_s", "cpu_ms", "whole_cpu_ms", "first_batch_s"):
        assert all(run[key] > 0 for run in runs), key
    assert result["dataset"]["files"] == 64
    assert result["machine"]["cores"] >= 1 and result["machine"]["cpu"]
    assert result["versions"]["foresee"]


def test_a_loader_that_is_not_installed_is_left_out_with_a_line(folder, trained):
    assert json.loads((folder / "train.json").read_text())["left_out"] == {"dali": "make bench-setup"}
    assert "dali: not installed; make bench-setup" in trained.stdout.splitlines()


def test_later_epochs_have_a_column(read):
    assert read.returncode == 0, read.stderr
    head = next(line for line in read.stdout.splitlines() if line.startswith("loader"))
    assert "later epochs" in head
    for way in ("foresee ", "foresee.get ", "foresee.disk "):
        assert any(line.startswith(way) for line in read.stdout.splitlines()), way


def test_a_loader_that_fails_shows_its_last_line_and_the_others_go_on(folder, data):
    fake = folder / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise RuntimeError('no such luck')\n")
    path = f"{fake.parent}{os.pathsep}{PACKAGE}"
    done = run("bench/raw.py", data, *TINY, "torch", "foresee", cache=folder, path=path)
    assert done.returncode == 0, done.stderr
    assert "torch: failed: RuntimeError: no such luck" in done.stdout.splitlines()
    assert any(line.startswith("foresee ") for line in done.stdout.splitlines())


def test_fewer_than_two_batches_are_refused(folder, data):
    done = run("bench/train.py", data, "--loaders", "foresee", "--batch", 64, "--rounds", 1, cache=folder)
    assert done.returncode == 1
    assert "fewer than two batches" in done.stdout


def test_ratios_come_first_and_are_taken_round_by_round(folder):
    runs = {
        "foresee": [figures(per_s=400.0, cpu_ms=1.0), figures(per_s=100.0, cpu_ms=2.0)],
        "other": [figures(per_s=200.0, cpu_ms=3.0), figures(per_s=25.0, cpu_ms=2.0)],
    }
    page = plotted(folder, runs)
    ratio, table = (
        page.index("| foresee / other | 3.00 (2.00-4.00) | 2.00 (1.00-3.00) |"),
        page.index("| foresee | 250 (100-400) |"),
    )
    assert ratio < table


def test_a_plot_shows_every_loader_and_tables_replace_only_their_place(folder):
    page = plotted(folder, {"foresee": [figures()], "a<b": [figures()]})
    assert page.startswith("before\n") and page.endswith("\nafter\n")
    assert "old" not in page
    plot = ET.parse(folder / "docs" / "bench-train.svg")
    texts = [text.text for text in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert {"foresee", "a<b", "images/s", "CPU ms/image"} <= set(texts)


def figures(**changed: float) -> dict:
    keys = ("samples", "first_batch_s", "per_s", "whole_per_s", "cpu_ms", "whole_cpu_ms", "memory_bytes")
    return dict.fromkeys(keys, 7.0) | {"later_per_s": None} | changed


def plotted(folder: Path, runs: dict) -> str:
    """docs/bench.md with these runs."""
    result = {
        "benchmark": "train",
        "title": "A title",
        "unit": "images",
        "date": "2026-01-01",
        "machine": {"cpu": "CPU", "cores": 2, "memory_bytes": 2**30, "system": "Linux", "python": "3", "load": 0.0},
        "versions": {"foresee": "1"},
        "dataset": {"files": 1, "bytes": 1},
        "rounds": len(runs["foresee"]),
        "options": {"batch": 128, "threads": 2},
        "runs": runs,
    }
    (folder / "made.json").write_text(json.dumps(result))
    page = folder / "docs" / "bench.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("before\n<!-- bench-train -->\nold\n<!-- /bench-train -->\nafter\n")
    done = run("bench/plot.py", folder / "made.json", "--docs", folder / "docs", cache=folder)
    assert done.returncode == 0, done.stderr
    return page.read_text()
