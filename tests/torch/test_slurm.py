"""examples/train_slurm.sh on a cluster in a box: a job that SIGTERM stops saves its state, and goes on from the queue."""

import collections
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "bench")]
from clustered import lasting
from clustered import run as run_on_cluster
from clustered import until as until_within

IMAGES, RANKS, BATCH, EPOCHS = 96, 2, 8, 8
STEPS = IMAGES // (RANKS * BATCH)
WAIT_S_MAX = 240


def run(*line: object, **env: str) -> subprocess.CompletedProcess:
    return run_on_cluster(*line, **{"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **env})


@pytest.fixture(scope="module")
def up():
    """A cluster of two hosts, with images on its shared storage."""
    with lasting(2) as found:
        view = found.head.view(found.shared)
        draw = random.Random(0)
        for number in range(IMAGES):
            folder = view / "images" / f"class{number % 4}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:03}.ppm").write_bytes(b"P6 40 40 255\n" + draw.randbytes(4800))
        yield SimpleNamespace(shared=found.shared, view=view, local=found.local)


def until(done, view: Path, what: str) -> None:
    def otherwise() -> str:
        output = view / "output"
        return f"{what}: {output.read_text() if output.exists() else ''}"

    until_within(done, otherwise, WAIT_S_MAX)


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
