"""examples/train_slurm.sh on a cluster in a box: a job that SIGTERM stops saves its state, and goes on from the queue."""

import collections
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "bench")]
import cluster
from left import left_behind

BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
SCRIPT = ROOT / "tools" / "cluster.sh"
NAME = "foresee-cluster"
IMAGES, RANKS, BATCH, EPOCHS = 96, 2, 8, 8
STEPS = IMAGES // (RANKS * BATCH)
WAIT_S_MAX = 240


def run(*line: object, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(word) for word in (SCRIPT, *line)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
    )


@pytest.fixture(scope="module")
def up():
    """A cluster of two hosts, with images on its shared storage."""
    if (lacking := cluster.missing()) is not None:
        pytest.skip(f"no cluster: {lacking}")
    made = run("up", 2)
    if "another run holds" in made.stderr or "there is a cluster" in made.stderr:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    try:
        found = cluster.Cluster.found()
        view = found.head.view(found.shared)
        draw = random.Random(0)
        for number in range(IMAGES):
            folder = view / "images" / f"class{number % 4}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:03}.ppm").write_bytes(b"P6 40 40 255\n" + draw.randbytes(4800))
        yield SimpleNamespace(shared=found.shared, view=view, local=found.local)
    finally:
        ended = run("down")
    assert ended.returncode == 0, ended.stderr
    assert left_behind(NAME) == []


def until(done, view: Path, what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not done():
        output = view / "output"
        said = output.read_text() if output.exists() else ""
        assert time.monotonic() < deadline, f"{what}: {said}"
        time.sleep(0.2)


def steps_of(folder: Path) -> dict[str, list[dict]]:
    """What each rank trained on, in its order; a line that is being written is not there yet."""
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    whole = {name: text[: text.rfind("\n") + 1].splitlines() for name, text in texts.items()}
    return {name: [json.loads(line) for line in lines] for name, lines in whole.items()}


def test_a_job_that_is_stopped_goes_on_from_the_queue_with_the_step_that_follows(up):
    record = up.view / "record"
    record.mkdir()
    config = up.view / "foresee.toml"
    config.write_text("[[tier]]\nkind = 'memory'\ncapacity = '1 MB'\n[catalog]\npath = ''\n")
    options = ("--parsable", "--ntasks-per-node=1", f"--output={up.shared / 'output'}")
    given = ("--epochs", EPOCHS, "--batch-size", BATCH, "--step-ms", 200, "--record", up.shared / "record")
    env = {"FORESEE_CONFIG": str(up.shared / "foresee.toml"), "FORESEE_STATE": str(up.shared / "state.pt")}
    env["FORESEE_EXAMPLE"] = str(ROOT / "examples")
    sent = run("run", "sbatch", *options, ROOT / "examples" / "train_slurm.sh", up.shared / "images", *given, **env)
    assert sent.returncode == 0, sent.stderr
    until(lambda: any(len(steps) > STEPS + 1 for steps in steps_of(record).values()), up.view, "no step was trained")

    # What --signal does when its time has come: to the ranks, not to the script that waits for them.
    assert run("run", "scancel", "--signal=TERM", f"{sent.stdout.strip()}.0").returncode == 0
    until((up.view / "state.again").exists, up.view, "the job did not stop")

    until(lambda: run("run", "squeue", "--noheader").stdout == "", up.view, "the job did not end")
    # What ranks wrote on their hosts is seen here a moment later.
    total = RANKS * EPOCHS * STEPS
    until(lambda: sum(map(len, steps_of(record).values())) >= total, up.view, "steps are missing")
    seen = steps_of(record)
    every_step = [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]
    assert len(seen) == RANKS
    assert all([(step["epoch"], step["step"]) for step in steps] == every_step for steps in seen.values())
    trained = collections.Counter(
        (step["epoch"], sample) for steps in seen.values() for step in steps for sample in step["samples"]
    )
    assert trained == {(epoch, sample): 1 for epoch in range(EPOCHS) for sample in range(IMAGES)}
    assert not (up.view / "state.again").exists()
