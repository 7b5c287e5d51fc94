"""`foresee bench --trace`: what cannot be written is said, and nobody writes over the trace of another job."""

import json
import subprocess
import time
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch):
    """No catalog stays behind."""
    monkeypatch.setenv("FORESEE_CATALOG_PATH", "")
    monkeypatch.setenv("FORESEE_CONFIG", "")


@pytest.fixture
def dataset(tmp_path):
    """One class, 40 samples."""
    folder = tmp_path / "dataset" / "class"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / f"{number:02}.jpg").write_bytes(bytes(1000))
    return folder.parent


def await_writer(trace: Path) -> None:
    """Returns once a job has the file."""
    while not trace.exists() or f":{trace.stat().st_ino} " not in Path("/proc/locks").read_text():
        time.sleep(0.01)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_on_a_full_disk_is_said_once_and_ends_with_an_error(foresee, dataset):
    ran = foresee("bench", dataset, "--trace", "/dev/full", "--epochs", "200", "--json")
    assert ran.code == 1
    assert json.loads(ran.stdout)["stats"]["samples"] == 8000
    assert ran.stderr.count("trace /dev/full: No space left on device") == 1 and ran.stderr.count("\n") == 1, ran.stderr


def test_jobs_that_run_at_once_have_traces_of_their_own(command, dataset, tmp_path):
    trace = tmp_path / "trace.jsonl"
    args = [command, "bench", dataset, "--batch", "4", "--compute-ms", "30", "--trace", trace, "--json"]
    first = subprocess.Popen([*args, "--epochs", "8"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    await_writer(trace)
    second = subprocess.run([*args, "--epochs", "1"], capture_output=True, text=True, check=True, timeout=60)
    stdout, stderr = first.communicate(timeout=60)
    assert (first.returncode, stderr) == (0, "")
    other = tmp_path / "trace.1.jsonl"
    assert f"trace {trace}: another job is writing it; this one goes to {other}" in second.stderr
    for path, epochs in ((trace, 8), (other, 1)):
        assert [line["event"] for line in lines(path)].count("batch") == 10 * epochs
        assert lines(path)[-1]["event"] == "end"
    assert json.loads(stdout)["stats"]["batches"] == 80


def test_a_trace_that_is_removed_meanwhile_is_said(command, dataset, tmp_path):
    trace = tmp_path / "trace.jsonl"
    args = [command, "bench", dataset, "--batch", "4", "--compute-ms", "30", "--trace", trace]
    ran = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    await_writer(trace)
    trace.unlink()
    _, stderr = ran.communicate(timeout=60)
    assert ran.returncode == 1
    assert f"trace {trace}: it was removed or replaced" in stderr


def test_ranks_have_traces_of_their_own(foresee, dataset, tmp_path):
    for rank in range(2):
        ran = foresee(
            "bench", dataset, "--rank", str(rank), "--world-size", "2", "--trace", tmp_path / "trace.jsonl", "--json"
        )
        assert (ran.code, ran.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.glob("trace*")) == ["trace.rank0.jsonl", "trace.rank1.jsonl"]
