"""Ranks under mpirun, with Open MPI and with MPICH: every sample once, order as without peers, the source at its minimum; through
memory that ranks of a host share and with all samples over MPI. What MPI does when a rank stops or dies is its own matter, but
what is delivered is right, and the next run goes on where this one was."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PACKAGE
from many import check_epochs, go_on, line, make_files
from mpi import LAUNCHERS, LIBRARIES, MpiRanks, launcher

SIZE, SAMPLES, EPOCHS, BATCH = 4000, 480, 3, 8
DEADLINE_S = 2
#: What samples that come from other ranks are counted as, by how ranks reach each other.
ORIGINS = {"mpi": "host_peer", "mpi-only": "peer"}


@pytest.fixture(params=LAUNCHERS)
def kind(request):
    # Where there is no such MPI, the test is skipped before it makes anything.
    launcher(request.param, 1)
    return request.param


@pytest.fixture(params=ORIGINS)
def transport(request):
    return request.param


@pytest.fixture
def paths(tmp_path):
    return make_files(tmp_path / "dataset", SAMPLES, SIZE)


def options(ranks, percent, transport, **more):
    tier = {"kind": "memory", "capacity": SAMPLES * percent // 100 // ranks * SIZE}
    peers = {"deadline": DEADLINE_S, "transport": transport}
    config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": peers}
    return {"batch_size": BATCH, "epochs": EPOCHS, "seed": 5, "config": config, **more}


def run(kind, paths, ranks, folder, **more):
    with MpiRanks(kind, paths, ranks, folder, **more) as job:
        job.step_together()
        return job.end(), job


def minimum(ranks, percent):
    kept = SAMPLES * percent // 100 // ranks * ranks
    return SIZE * (SAMPLES + (EPOCHS - 1) * max(SAMPLES - kept, 0))


@pytest.mark.parametrize(("ranks", "percent"), [(2, 102), (4, 60), (4, 102)])
def test_every_sample_once_and_the_source_at_its_minimum(kind, paths, tmp_path, ranks, percent, transport):
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")
    told = options(ranks, percent, transport)
    got, job = run(kind, paths, ranks, tmp_path, trace=True, check=False, job=told)
    check_epochs(got, SAMPLES, EPOCHS)
    read = job.source_bytes_by_file()
    assert sum(read.values()) == minimum(ranks, percent)
    assert sum(rank["stats"]["source_bytes"] for rank in got) == sum(read.values())
    assert len(read) == SAMPLES
    assert not any(rank["stats"]["peers"]["faults"] for rank in got)


def test_the_order_is_that_of_ranks_without_peers_and_bytes_are_the_files(kind, paths, tmp_path, transport):
    got, _ = run(kind, paths, 4, tmp_path / "with", job=options(4, 102, transport))
    check_epochs(got, SAMPLES, EPOCHS)
    without, _ = run(kind, paths, 4, tmp_path / "without", job=options(4, 102, "none"))
    assert [rank["steps"] for rank in got] == [rank["steps"] for rank in without]
    assert all(rank["stats"]["origins"][ORIGINS[transport]]["samples"] > 0 for rank in got)


def test_local_batches_are_the_same_sets_and_hardly_use_other_ranks(kind, tmp_path):
    """As it is used: local batches of 64, and enough steps for what is over and what is short to even out."""
    size, batch, steps = 2000, 64, 40
    samples = 4 * batch * steps
    paths = make_files(tmp_path / "dataset", samples, size)
    told = options(4, 102, "mpi-only", batch_size=batch)
    told["config"]["tier"][0]["capacity"] = samples * size * 51 // 50 // 4
    told["config"]["staging"]["capacity"] = "4 MiB"

    def batches(folder, **more):
        got, _ = run(kind, paths, 4, tmp_path / folder, job={**told, **more}, check=False)
        check_epochs(got, samples, EPOCHS)
        by_step = zip(*(rank["steps"] for rank in got), strict=True)
        from_others = sum(rank["stats"]["origins"].get("peer", {"bytes": 0})["bytes"] for rank in got)
        return [sorted(itertools.chain(*step)) for step in by_step], from_others

    local, local_bytes = batches("local", assignment="local")
    in_order, in_order_bytes = batches("order")
    assert local == in_order
    # None in the first epoch: the first user of a sample holds it.
    assert local_bytes / (EPOCHS - 1) <= 0.06 * samples * size
    assert in_order_bytes / (EPOCHS - 1) > 0.5 * samples * size


def step(processes, steps):
    """Lets some of the ranks take steps together."""
    for _ in range(steps):
        for process in processes:
            assert line(process, time.monotonic() + 60) != ""
        for process in processes:
            go_on(process)


def test_a_stopped_rank_delays_those_who_need_it_until_their_bound(kind, paths, tmp_path):
    """It holds a quarter of the samples; the others read these from the source, after a deadline."""
    told = options(4, 102, "mpi-only")
    # A few steps ahead, not the rest of the job.
    told["config"]["staging"]["capacity"] = "128 KiB"
    with MpiRanks(kind, paths, 4, tmp_path, job=told) as job:
        step(job.processes, 18)
        job.kill(2, signal.SIGSTOP)
        step([job.processes[rank] for rank in (0, 1, 3)], 15)
        job.kill(2, signal.SIGCONT)
        job.run_free()
        got = job.end()
    check_epochs(got, SAMPLES, EPOCHS)
    for rank in (0, 1, 3):
        long = [wait for wait in got[rank]["waits_s"][1:-1] if wait > DEADLINE_S / 2]
        assert long, "nobody needed it"
        # What it had sent before may be heard late, and then it is waited for once more.
        assert sum(long) < 2.5 * DEADLINE_S, long


def test_a_killed_rank_ends_the_job_and_the_next_one_resumes_exactly(kind, paths, tmp_path):
    first, _ = run(kind, paths, 4, tmp_path / "first", job=options(4, 102, "mpi-only"), stop_after=22)
    state = first[0]["state"]
    with MpiRanks(kind, paths, 4, tmp_path / "killed", job=options(4, 102, "mpi-only"), state=state) as job:
        for process in job.processes:
            assert process.stdout.readline()
        pids = [process.pid for process in job.processes]
        job.kill(2)
        code, took_s = job.end_of_all()
        assert code != 0
        assert took_s < 30
        end_s = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/stat").exists() for pid in pids):
            assert time.monotonic() < end_s, "ranks are left"
            time.sleep(0.05)
    rest, _ = run(kind, paths, 4, tmp_path / "rest", job=options(4, 102, "mpi-only"), state=state)
    both = [
        {"epochs": [before + after for before, after in zip(one["epochs"], other["epochs"], strict=True)], "wrong": []}
        for one, other in zip(first, rest, strict=True)
    ]
    check_epochs(both, SAMPLES, EPOCHS)


#: A program that has initialised MPI itself, as mpi4py does, at a level; says by which way samples came, and finalises it.
PROGRAM = """
import ctypes, json, sys
library, level, transport, *paths = sys.argv[1:]
mpi = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
granted = ctypes.c_int()
assert mpi.MPI_Init_thread(None, None, int(level), ctypes.byref(granted)) == 0
import foresee
from foresee import _peers
tier = {"kind": "memory", "capacity": len(paths) * 4000 // 2 * 11 // 10}
config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": {"transport": transport, "patience": 20}}
job = foresee.Job(foresee.Files(paths), batch_size=8, epochs=2, seed=1, config=config)
seen = [int(index) for batch in job for index in batch.indices]
stats = job.stats()
fetched = sum(reads["samples"] for origin, reads in stats["origins"].items() if origin.endswith("peer"))
job.close()
rank, world = foresee._launch.find_rank(None, None)
ways = {"by_mpi": len(_peers._by_mpi), "port": max([mesh.port for mesh in _peers._by_mpi.values()], default=None)}
# One write, so that lines of two ranks do not mix.
told = {"rank": rank, "seen": seen, "fetched": fetched, "source": stats["source_bytes"], **ways}
sys.stdout.write(json.dumps(told) + "\\n")
sys.stdout.flush()
assert mpi.MPI_Finalize() == 0
"""


def program(kind, paths, level, transport="auto"):
    """What each rank says of a program that has MPI itself."""
    command = [*launcher(kind, 2), sys.executable, "-B", "-c", PROGRAM, LIBRARIES[kind], str(level), transport]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [*command, *map(str, paths)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda told: told["rank"])


@pytest.mark.parametrize("level", [3, 1])
def test_where_the_program_has_initialised_mpi_ranks_meet_by_it(kind, paths, level):
    """Where MPI lets any thread call it, it carries all; where it does not, ranks only meet by it. What the program initialised
    it finalises."""
    told = program(kind, paths[:160], level)
    for epoch in (0, 1):
        part = slice(80 * epoch, 80 * (epoch + 1))
        assert sorted(itertools.chain(*(rank["seen"][part] for rank in told))) == list(range(160))
    assert all(rank["by_mpi"] == 1 and rank["fetched"] > 0 for rank in told)
    assert sum(rank["source"] for rank in told) == 160 * SIZE
    # Only TCP listens at a port.
    assert all((rank["port"] > 0) == (level < 3) for rank in told)


def test_who_wants_tcp_has_it_whatever_the_program_has(kind, paths):
    told = program(kind, paths[:160], 3, "none")
    assert all(rank["by_mpi"] == 0 for rank in told)


def test_two_mpis_in_one_process_are_refused_in_one_line(paths):
    launcher("mpich", 1)
    code = f"""
import ctypes, foresee
for library in {list(LIBRARIES.values())}:
    ctypes.CDLL(library)
config = {{"peers": {{"transport": "mpi", "patience": 1}}, "tier": [{{"kind": "memory", "capacity": "1 MiB"}}]}}
job = foresee.Job(foresee.Files({[str(path) for path in paths[:8]]}), batch_size=2, epochs=1, seed=1, config=config)
assert sum(len(batch.indices) for batch in job) == 4
"""
    command = [*launcher("openmpi", 2), sys.executable, "-B", "-c", code]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^.*two MPIs are loaded.*$", done.stderr, re.MULTILINE)
    assert len(said) == 2
    assert all("libmpi.so" in line and "libmpich.so" in line for line in said)


def test_without_a_launcher_of_mpi_one_line_says_so(paths):
    code = f"""
import foresee
config = {{"peers": {{"transport": "mpi", "patience": 1}}, "tier": [{{"kind": "memory", "capacity": "1 MiB"}}]}}
job = foresee.Job(foresee.Files({[str(path) for path in paths[:8]]}), rank=0, world_size=2, batch_size=2, epochs=1, seed=1, config=config)
assert sum(len(batch.indices) for batch in job) == 4
"""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("no peers: no launcher of MPI started this process; start it with mpirun", done.stderr)) == 1


def test_the_package_needs_no_mpi():
    if not shutil.which("readelf"):
        pytest.skip("no readelf: install Debian's package binutils")
    library = PACKAGE / "foresee" / "_native.abi3.so"
    shown = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", shown)
    assert needed
    assert not [name for name in needed if "mpi" in name]
