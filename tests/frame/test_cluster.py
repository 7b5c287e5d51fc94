"""A cluster in a box (tools/cluster.sh): SLURM on two hosts, a shared storage, ranks that srun starts, and nothing left."""

import hashlib
import json
import os
import random
import signal
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
SAMPLES, RANKS, EPOCHS = 320, 4, 3
#: Of one size, so that what fits is easily said: 1.02 times the dataset in the tiers of all ranks.
SIZE = 20_000
TIER_BYTES = (SAMPLES * 102 // 100 // RANKS + 1) * SIZE


def run(*line: object, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(word) for word in (SCRIPT, *line)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=120,
    )


@pytest.fixture(scope="module")
def up():
    """A cluster of two hosts, with a dataset on its shared storage."""
    if (lacking := cluster.missing()) is not None:
        pytest.skip(f"no cluster: {lacking}")
    made = run("up", 2)
    if "another run holds" in made.stderr or "there is a cluster" in made.stderr:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    try:
        found = cluster.Cluster.found()
        view = found.head.view(found.shared)
        (view / "samples").mkdir()
        draw = random.Random(0)
        contents = [draw.randbytes(SIZE) for _ in range(SAMPLES)]
        for number, content in enumerate(contents):
            (view / "samples" / f"{number:04}").write_bytes(content)
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        yield SimpleNamespace(shared=found.shared, view=view, digests=digests)
    finally:
        ended = run("down")
    assert ended.returncode == 0, ended.stderr
    assert left_behind(NAME) == []


def ranks(up: SimpleNamespace, name: str, assignment: str, *options: str) -> list[dict]:
    """What each rank of a job under srun got."""
    (up.view / name).mkdir()
    rank = [sys.executable, "-B", ROOT / "tests" / "slurm_rank.py"]
    told = [up.shared / "samples", up.shared / name, assignment, TIER_BYTES]
    options = (*options, "--nodes=2", "--ntasks-per-node=2")
    done = run("run", "srun", *options, *rank, *told, FORESEE_PEERS_SECRET="a secret of the ranks of this test")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads((up.view / name / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def in_order() -> list[list[set[int]]]:
    """The samples of each rank by step, as ranks that are alone get them, in the order of the ranks."""
    code = f"""
import json, sys, tempfile, foresee
from pathlib import Path
with tempfile.TemporaryDirectory() as folder:
    paths = [Path(folder, f"{{at:04}}") for at in range({SAMPLES})]
    for path in paths: path.write_bytes(b"x")
    config = {{"catalog": {{"path": ""}}}}
    jobs = [foresee.Job(foresee.Files(paths, config=config), 8, {EPOCHS}, seed=5, rank=rank, world_size={RANKS},
            config=config) for rank in range({RANKS})]
    print(json.dumps([[batch.indices.tolist() for batch in job] for job in jobs]))
"""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, encoding="utf-8")
    return json.loads(done.stdout)


def check(got: list[dict], up: SimpleNamespace) -> None:
    """Every sample once an epoch, with its bytes; the source was read once, and never again."""
    steps = len(got[0]["steps"]) // EPOCHS
    for epoch in range(EPOCHS):
        seen = [pair for rank in got for step in rank["steps"][epoch * steps : (epoch + 1) * steps] for pair in step]
        assert sorted(index for index, _ in seen) == list(range(SAMPLES))
        assert all(found == up.digests[index] for index, found in seen)
    assert sum(rank["stats"]["source_bytes"] for rank in got) == SAMPLES * SIZE
    assert {rank["stats"]["job"]["source_minimum_bytes"] for rank in got} == {SAMPLES * SIZE}


# Those without a cluster come first: the others have one until the end.


def test_a_cluster_whose_making_is_killed_is_taken_away():
    if (lacking := cluster.missing()) is not None:
        pytest.skip(f"no cluster: {lacking}")
    if left_behind(NAME):
        pytest.skip("there is a cluster")
    making = subprocess.Popen([SCRIPT, "up", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not Path(f"/tmp/{NAME}/slurm/slurm.conf").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    making.send_signal(signal.SIGKILL)
    making.wait()
    assert left_behind(NAME) != []
    assert run("down").returncode == 0
    assert left_behind(NAME) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("run", "true"), "cluster: there is no cluster: tools/cluster.sh up HOSTS makes one"),
        (("up", "0"), "give a number of hosts from 1 to 64"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(line, said):
    if (lacking := cluster.missing()) is not None:
        pytest.skip(f"no cluster: {lacking}")
    if left_behind(NAME):
        pytest.skip("there is a cluster")
    done = run(*line)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("mpi", ["none", "pmix"])
def test_ranks_under_srun_on_two_hosts_read_the_source_once_and_keep_the_order(up, mpi):
    got = ranks(up, f"order-{mpi}", "order", f"--mpi={mpi}")
    check(got, up)
    assert [[[index for index, _ in step] for step in rank["steps"]] for rank in got] == in_order()
    # Two ranks of a host share its memory, the others are reached over the line.
    assert all({"host_peer", "peer"} <= rank["stats"]["origins"].keys() for rank in got)


def test_local_batches_under_srun_keep_the_set_of_each_step(up):
    got = ranks(up, "local", "local")
    check(got, up)
    dealt = [sorted(index for rank in got for index, _ in rank["steps"][at]) for at in range(len(got[0]["steps"]))]
    alone = in_order()
    assert dealt == [sorted(index for rank in alone for index in rank[at]) for at in range(len(alone[0]))]


def test_a_second_cluster_is_refused(up):
    again = run("up", 2)
    assert again.returncode == 1
    assert again.stderr == "cluster: there is a cluster: tools/cluster.sh down takes it away\n"
