"""The command where threads are not to be had: fewer do the same, and where there is none at all one line says so.

A thread whose stack is larger than the address space cannot be started, whoever asks for it; stacks of 1 GiB under a limit
of the address space leave some.
"""

import json
import resource
import subprocess

import pytest

NO_THREADS = {"RUST_MIN_STACK": str(1 << 50)}
GIB = 1 << 30


@pytest.fixture
def dataset(tmp_path):
    """Class folders with more files than one thread takes at a time."""
    for number in range(200):
        path = tmp_path / "dataset" / f"class{number % 20:02}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100 + number))
    return tmp_path / "dataset"


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch):
    """Each run lists."""
    monkeypatch.setenv("FORESEE_CATALOG_PATH", "")
    monkeypatch.setenv("FORESEE_CONFIG", "")


def test_plan_and_simulate_need_no_thread(foresee, dataset):
    for args in (
        ("plan", dataset),
        ("simulate", "scenarios/hdmlp-s1.toml", "--policy", "nopfs", "--set", "job.epochs=1"),
    ):
        ran = foresee(*args, "--json", env=NO_THREADS)
        assert (ran.code, ran.stderr) == (0, "")
        assert ran.stdout == foresee(*args, "--json").stdout


def test_a_listing_without_threads_goes_on_and_a_loader_without_says_so_in_one_line(foresee, dataset):
    ran = foresee("bench", dataset, env=NO_THREADS)
    assert ran.code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("foresee: cannot start a loader thread: ") and ran.stderr.count("\n") == 1, ran.stderr
    assert "ulimit" in ran.stderr


def test_a_loader_goes_on_with_the_threads_that_it_gets(command, dataset):
    limited = subprocess.run(
        [command, "bench", dataset, "--threads", "16", "--staging", "1 MiB", "--json"],
        env={"RUST_MIN_STACK": str(GIB), "FORESEE_CATALOG_PATH": "", "FORESEE_CONFIG": ""},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 * GIB, 4 * GIB)),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert limited.returncode == 0, limited.stderr
    assert json.loads(limited.stdout)["stats"]["samples"] == 400
    said = [line for line in limited.stderr.splitlines() if line]
    assert len(said) == 1 and "cannot start more loader threads" in said[0] and "going on with" in said[0], said
