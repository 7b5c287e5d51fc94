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
from left import left_behind, processes

BUILD_DIR = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PACKAGE = ROOT / os.environ.get("FORESEE_PACKAGE", BUILD_DIR / "debug" / "python")
BINARY = ROOT / os.environ.get("FORESEE_BIN", BUILD_DIR / "debug" / "foresee")
SCRIPT = ROOT / "tools" / "cluster.sh"
ENDLESS = ROOT / "tests" / "slurm_endless.py"
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


def until(done, what: str) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def ranks_running() -> list[str]:
    # Not srun, which has the same words behind it.
    return [line for line in processes(NAME) if line.startswith(f"{sys.executable} -B {ENDLESS}")]


def around(hosts: list) -> list:
    """All that a job could leave around it: mounts of hosts, files of theirs, namespaces, memory with a name."""
    mounts = [Path(f"/proc/{host.holder_pid}/mounts").read_text() for host in hosts]
    disks = [sorted(path.name for path in host.view(cluster.Cluster.found().local).iterdir()) for host in hosts]
    named = [path.name for folder in ("/run/netns", "/dev/shm") for path in Path(folder).glob("*foresee*")]
    return [mounts, disks, sorted(named)]


def cancel(job: str, _hosts: list) -> None:
    assert run("run", "scancel", job).returncode == 0


def reach_the_time_limit(job: str, _hosts: list) -> None:
    # Limits are whole minutes; one that is over is as good as a minute of waiting.
    done = run("run", "scontrol", "update", f"JobId={job}", "EndTime=now")
    assert done.returncode == 0, done.stderr


def kill_slurmstepd(job: str, hosts: list) -> None:
    """Of the second host: its ranks end with it. The others go on without them, until the job is cancelled."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode()
            is_on_host = (folder / "ns" / "net").readlink() == Path(f"/proc/{hosts[1].holder_pid}/ns/net").readlink()
        except OSError:
            continue
        if is_on_host and line.startswith("slurmstepd"):
            os.kill(int(folder.name), signal.SIGKILL)
    until(lambda: len(ranks_running()) == RANKS // 2, "the ranks of the host did not end")
    cancel(job, hosts)


@pytest.mark.parametrize("end", [cancel, reach_the_time_limit, kill_slurmstepd])
def test_a_job_that_is_ended_leaves_nothing_but_a_cache_that_is_whole(up, end):
    found = cluster.Cluster.found()
    cache, marks = found.local / "cache", up.shared / f"marks-{end.__name__}"
    (up.view / marks.name).mkdir()
    for host in found.hosts:
        host.view(cache).mkdir(mode=0o700, exist_ok=True)
    before = around(found.hosts)
    rank = f"{sys.executable} -B {ENDLESS} {up.shared / 'samples'} {cache} {marks}"
    options = ("--parsable", "--nodes=2", "--ntasks-per-node=2", "--output=/dev/null", "--time=60")
    sent = run(
        "run",
        "sbatch",
        *options,
        f"--wrap=exec srun setpriv --pdeathsig TERM {rank}",
        FORESEE_PEERS_SECRET="a secret of this test",
    )
    assert sent.returncode == 0, sent.stderr
    until(lambda: len(list((up.view / marks.name).iterdir())) == RANKS, "the ranks did not start")
    assert len(ranks_running()) == RANKS

    end(sent.stdout.strip(), found.hosts)

    until(lambda: run("run", "squeue", "--noheader").stdout == "", "the job did not end")
    until(lambda: ranks_running() == [], "ranks were left")
    until(lambda: around(found.hosts) == before, "something was left")
    for host in found.hosts:
        verified = json.loads(host.run(BINARY, "cache", "verify", cache, "--json"))
        assert verified["whole"]
        assert sum(part["checked"] for part in verified["parts"]) > 0


def test_a_second_cluster_is_refused(up):
    again = run("up", 2)
    assert again.returncode == 1
    assert again.stderr == "cluster: there is a cluster: tools/cluster.sh down takes it away\n"
