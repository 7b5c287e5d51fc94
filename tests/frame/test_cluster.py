"""A cluster in a box (tools/cluster.sh): SLURM on two hosts, a shared storage, ranks that srun starts, and nothing left."""

import hashlib
import json
import os
import random
import shutil
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
from clustered import BUILD_DIR, NAME, PACKAGE, SCRIPT, lasting, run, skip_without, until
from left import left_behind, processes
from traced import read_bytes, strace

BINARY = ROOT / os.environ.get("FORESEE_BIN", BUILD_DIR / "debug" / "foresee")
ENDLESS = ROOT / "tests" / "slurm_endless.py"
SAMPLES, RANKS, EPOCHS = 320, 4, 3
#: Of one size, so that what fits is easily said.
SIZE = 20_000


@pytest.fixture(scope="module")
def up():
    """A cluster of two hosts, with a dataset on its shared storage."""
    with lasting(2) as found:
        view = found.head.view(found.shared)
        (view / "samples").mkdir()
        draw = random.Random(0)
        contents = [draw.randbytes(SIZE) for _ in range(SAMPLES)]
        for number, content in enumerate(contents):
            (view / "samples" / f"{number:04}").write_bytes(content)
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        yield SimpleNamespace(shared=found.shared, view=view, digests=digests)


def ranks(up: SimpleNamespace, name: str, percent: int, assignment: str = "order", by_mpi: bool = False) -> list[dict]:
    """What each rank of a job under srun got, with tiers for so much of the dataset, and what it read of files."""
    (up.view / name).mkdir()
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")
    # Each rank's own log, on the disk of this machine.
    logs = Path(f"/tmp/{NAME}") / name
    logs.mkdir()
    traced = ["sh", "-c", f'exec {" ".join(strace())} -o "{logs}/$SLURM_PROCID" "$@"', "traced"]
    rank = [sys.executable, "-B", ROOT / "tests" / "slurm_rank.py"]
    told = [up.shared / "samples", up.shared / name, assignment, SAMPLES * percent // 100 // RANKS * SIZE]
    options = ("--nodes=2", "--ntasks-per-node=2", f"--mpi={'pmix' if by_mpi else 'none'}")
    env = {"FORESEE_PEERS_SECRET": "a secret of the ranks of this test"}
    if by_mpi:
        env = {"FORESEE_PEERS_TRANSPORT": "mpi"}
    done = run("run", "srun", *options, *traced, *rank, *told, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    got = [json.loads((up.view / name / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    return [{**rank, "read": read_bytes(logs / str(at), r"/samples/\d+$")} for at, rank in enumerate(got)]


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


def check(got: list[dict], up: SimpleNamespace, percent: int) -> None:
    """Every sample once an epoch, with its bytes; of the source no more was read than must be, by the kernel's account, too."""
    steps = len(got[0]["steps"]) // EPOCHS
    for epoch in range(EPOCHS):
        seen = [pair for rank in got for step in rank["steps"][epoch * steps : (epoch + 1) * steps] for pair in step]
        assert sorted(index for index, _ in seen) == list(range(SAMPLES))
        assert all(found == up.digests[index] for index, found in seen)
    kept = SAMPLES * percent // 100 // RANKS * RANKS
    minimum = SIZE * (SAMPLES + (EPOCHS - 1) * max(SAMPLES - kept, 0))
    assert sum(sum(rank["read"].values()) for rank in got) == minimum
    assert sum(rank["stats"]["source_bytes"] for rank in got) == minimum
    assert {rank["stats"]["job"]["source_minimum_bytes"] for rank in got} == {minimum}


# Those without a cluster come first: the others have one until the end.


def test_a_cluster_whose_making_is_killed_is_taken_away():
    skip_without()
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
    skip_without()
    if left_behind(NAME):
        pytest.skip("there is a cluster")
    done = run(*line)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(("by_mpi", "percent"), [(False, 102), (True, 102), (True, 60)])
def test_ranks_under_srun_on_two_hosts_read_the_source_minimum_and_keep_the_order(up, by_mpi, percent):
    got = ranks(up, f"order-{by_mpi}-{percent}", percent, by_mpi=by_mpi)
    check(got, up, percent)
    assert [[[index for index, _ in step] for step in rank["steps"]] for rank in got] == in_order()
    # Two ranks of a host share its memory, the others are reached over the line.
    assert all({"host_peer", "peer"} <= rank["stats"]["origins"].keys() for rank in got)


@pytest.mark.parametrize("by_mpi", [False, True])
def test_local_batches_under_srun_keep_the_set_of_each_step(up, by_mpi):
    got = ranks(up, f"local-{by_mpi}", 102, "local", by_mpi)
    check(got, up, 102)
    dealt = [sorted(index for rank in got for index, _ in rank["steps"][at]) for at in range(len(got[0]["steps"]))]
    alone = in_order()
    assert dealt == [sorted(index for rank in alone for index in rank[at]) for at in range(len(alone[0]))]


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
    until(lambda: len(ranks_running()) == RANKS // 2, lambda: "the ranks of the host did not end")
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
    until(lambda: len(list((up.view / marks.name).iterdir())) == RANKS, lambda: "the ranks did not start")
    assert len(ranks_running()) == RANKS

    end(sent.stdout.strip(), found.hosts)

    until(lambda: run("run", "squeue", "--noheader").stdout == "", lambda: "the job did not end")
    until(lambda: ranks_running() == [], lambda: "ranks were left")
    until(lambda: around(found.hosts) == before, lambda: "something was left")
    for host in found.hosts:
        verified = json.loads(host.run(BINARY, "cache", "verify", cache, "--json"))
        assert verified["whole"]
        assert sum(part["checked"] for part in verified["parts"]) > 0


def test_a_second_cluster_is_refused(up):
    again = run("up", 2)
    assert again.returncode == 1
    assert again.stderr == "cluster: there is a cluster: tools/cluster.sh down takes it away\n"
