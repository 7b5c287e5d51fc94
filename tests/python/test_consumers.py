"""One process that feeds several consumers: each is a rank of its own, and they serve each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import foresee
import pytest
from conftest import PACKAGE
from many import free_port, make_files

SIZE, SAMPLES, BATCH, EPOCHS = 2000, 240, 8, 3


def config(ranks: int) -> dict:
    tier = {"kind": "memory", "capacity": -(-SAMPLES // ranks) * SIZE + SIZE, "threads": 1}
    return {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": {"deadline": 5}}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return [str(path) for path in make_files(tmp_path_factory.mktemp("consumers") / "dataset", SAMPLES, SIZE)]


def contents(paths: list[str], batch) -> list[int]:
    """The samples of a batch, each the same as its file."""
    for data, index in zip(batch.data, batch.indices, strict=True):
        assert Path(paths[index]).read_bytes() == bytes(data)
    return [int(index) for index in batch.indices]


def indices(step) -> list[list[int]]:
    """The samples of a step, by consumer."""
    return [[int(index) for index in batch.indices] for batch in step]


def ordered(paths: list[str], rank: int, world_size: int) -> list[list[int]]:
    """The batches of a rank alone."""
    options = {"config": {"peers": {"transport": "none"}}, "rank": rank, "world_size": world_size}
    with foresee.Job(foresee.Files(paths), BATCH, EPOCHS, seed=5, **options) as alone:
        return [[int(index) for index in batch.indices] for batch in alone]


def test_consumers_of_a_process_are_ranks_that_serve_each_other(paths):
    with foresee.Job(foresee.Files(paths), BATCH, EPOCHS, seed=5, config=config(3), consumers=3) as job:
        assert [(one.rank, one.world_size) for one in job.consumers] == [(0, 3), (1, 3), (2, 3)]
        assert job.consumers[0] is job and job.rank == 0
        # One thread asks one after the other, so that the first waits for none of the others.
        got = [[contents(paths, batch) for batch in step] for step in zip(*job.consumers, strict=True)]
        read = [one.stats()["source_bytes"] for one in job.consumers]
    for rank in range(3):
        assert [step[rank] for step in got] == ordered(paths, rank, 3)
    assert sum(read) == SAMPLES * SIZE, read


def test_processes_with_several_consumers_make_one_world(paths, tmp_path):
    """Two processes of two: each sample once an epoch over all four ranks, and read once."""
    code = """
import json, sys, foresee
paths, options = json.loads(sys.argv[1])
with foresee.Job(foresee.Files(paths), consumers=2, **options) as job:
    got = [[] for _ in range(options["epochs"])]
    for step in zip(*job.consumers):
        for batch in step:
            got[batch.epoch] += [int(index) for index in batch.indices]
    ranks = [(one.rank, one.world_size) for one in job.consumers]
print(json.dumps([ranks, got, [one.stats()["source_bytes"] for one in job.consumers]]))
"""
    told = json.dumps([paths, {"batch_size": BATCH, "epochs": EPOCHS, "seed": 5, "config": config(4)}])
    port = free_port()

    def start(process: int) -> subprocess.Popen:
        place = {"RANK": process, "WORLD_SIZE": 2, "LOCAL_RANK": process, "LOCAL_WORLD_SIZE": 2}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port - 1, "PYTHONPATH": PACKAGE}
        env = {**os.environ, **{key: str(value) for key, value in place.items()}}
        line = [sys.executable, "-B", "-c", code, told]
        return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    processes = [start(process) for process in range(2)]
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    ranks, got, read = zip(*(json.loads(out) for out, _ in said), strict=True)
    assert ranks == ([[0, 4], [1, 4]], [[2, 4], [3, 4]])
    for epoch in range(EPOCHS):
        assert sorted(got[0][epoch] + got[1][epoch]) == list(range(SAMPLES))
    assert sum(map(sum, read)) == SAMPLES * SIZE, read


def test_a_state_of_each_consumer_goes_on_where_it_was(paths):
    options = {"seed": 5, "config": config(2), "consumers": 2}
    with foresee.Job(foresee.Files(paths), BATCH, EPOCHS, **options) as job:
        steps = zip(*job.consumers, strict=True)
        before = [indices(next(steps)) for _ in range(7)]
        states = [one.state_dict() for one in job.consumers]
    with foresee.Job(foresee.Files(paths), BATCH, EPOCHS, **options) as job:
        for one, state in zip(job.consumers, states, strict=True):
            one.load_state_dict(state)
        after = [indices(step) for step in zip(*job.consumers, strict=True)]
    for rank in range(2):
        assert [step[rank] for step in before + after] == ordered(paths, rank, 2)


@pytest.mark.parametrize("wrong", [0, -1, 65, 1.5, "two"])
def test_a_number_of_consumers_that_makes_no_sense_is_refused(paths, wrong):
    with pytest.raises(foresee.ForeseeError, match=r"^consumers="):
        foresee.Job(foresee.Files(paths), BATCH, 1, consumers=wrong)


def test_a_job_of_a_rank_that_was_named_has_nothing_to_do_with_consumers(paths):
    """It would wait for ranks that do not come."""
    with foresee.Job(foresee.Files(paths), BATCH, 1, seed=5, config=config(2), consumers=2) as job:
        assert sum(1 for _ in zip(*job.consumers, strict=True)) == job.steps_per_epoch
    options = {**config(2), "peers": {"patience": "30 s"}}
    with foresee.Job(foresee.Files(paths), BATCH, 1, seed=5, config=options, rank=0, world_size=2) as alone:
        assert alone.stats()["peers"] is None
        next(alone)
        assert alone.stats()["peers"] is None
