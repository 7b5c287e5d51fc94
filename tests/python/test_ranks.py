"""Many ranks as real processes over TCP: every sample once, order as without peers, the source at its minimum, and faults that
cost time, never data."""

import itertools
import shutil
import signal
import threading
import time

import pytest
from many import Ranks, check_epochs, make_files

SIZE, SAMPLES, EPOCHS, BATCH = 4000, 480, 3, 8
DEADLINE_S = 2


def options(ranks: int, percent: int, **more):
    tier = {"kind": "memory", "capacity": SAMPLES * percent // 100 // ranks * SIZE}
    config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": {"deadline": DEADLINE_S}}
    return {"batch_size": BATCH, "epochs": EPOCHS, "seed": 5, "config": config, **more}


def minimum(ranks: int, percent: int) -> int:
    kept = SAMPLES * percent // 100 // ranks * ranks
    return SIZE * (SAMPLES + (EPOCHS - 1) * max(SAMPLES - kept, 0))


@pytest.fixture
def paths(tmp_path):
    return make_files(tmp_path / "dataset", SAMPLES, SIZE)


def needs_strace():
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")


@pytest.mark.parametrize(("ranks", "percent"), [(4, 60), (4, 102), (4, 150), (8, 102)])
def test_every_sample_once_and_the_source_at_its_minimum(paths, tmp_path, ranks, percent):
    needs_strace()
    with Ranks(paths, ranks, tmp_path, trace=True, check=False, job=options(ranks, percent)) as job:
        job.step_together()
        got = job.end()
        read = job.source_bytes()
    check_epochs(got, SAMPLES, EPOCHS)
    assert read == minimum(ranks, percent)
    assert sum(rank["stats"]["source_bytes"] for rank in got) == read


def test_the_order_is_that_of_ranks_without_peers_and_bytes_are_the_files(paths, tmp_path):
    with Ranks(paths, 4, tmp_path, job=options(4, 102)) as job:
        job.step_together()
        got = job.end()
    check_epochs(got, SAMPLES, EPOCHS)
    alone = options(4, 102)
    alone["config"]["peers"] = {"transport": "none"}
    with Ranks(paths, 4, tmp_path, job=alone) as job:
        job.step_together()
        without = job.end()
    assert [rank["steps"] for rank in got] == [rank["steps"] for rank in without]
    assert all(rank["stats"]["origins"]["peer"]["samples"] > 0 for rank in got)


def test_local_batches_are_the_same_sets_and_hardly_use_the_network(paths, tmp_path):
    with Ranks(paths, 4, tmp_path, job=options(4, 102, assignment="local")) as job:
        job.step_together()
        got = job.end()
    check_epochs(got, SAMPLES, EPOCHS)
    with Ranks(paths, 4, tmp_path, job=options(4, 102)) as job:
        job.step_together()
        dealt = job.end()
    assert global_batches(got) == global_batches(dealt)
    peers = [sum(rank["stats"]["origins"].get("peer", {"bytes": 0})["bytes"] for rank in run) for run in (got, dealt)]
    assert peers[0] < peers[1] / 3


def global_batches(got):
    """The samples of all ranks, step by step."""
    steps = zip(*(rank["steps"] for rank in got), strict=True)
    return [sorted(itertools.chain.from_iterable(step)) for step in steps]


def test_a_rank_three_times_slower_costs_no_source_reads(paths, tmp_path):
    by_rank = {"1": {"compute_s": 0.03}} | {rank: {"compute_s": 0.01} for rank in "023"}
    with Ranks(paths, 4, tmp_path, job=options(4, 102), by_rank=by_rank) as job:
        job.run_free()
        got = job.end()
    check_epochs(got, SAMPLES, EPOCHS)
    assert sum(rank["stats"]["source_bytes"] for rank in got) <= 1.05 * minimum(4, 102)


def check_survivors(got):
    """All of their streams was delivered, right by hash, and nobody waited much longer than a deadline or two."""
    for rank in got:
        assert not rank["wrong"]
        assert [len(epoch) for epoch in rank["epochs"]] == [SAMPLES // 4] * EPOCHS
        assert rank["waited_s"] < 3 * DEADLINE_S


def test_a_rank_that_dies_costs_time_and_no_sample(paths, tmp_path):
    def at_step(step, job):
        if step == 20:
            job.kill(2)

    with Ranks(paths, 4, tmp_path, job=options(4, 102)) as job:
        job.step_together(at_step=at_step)
        got = job.end(lost=(2,))
    check_survivors(got)
    assert all("2" in rank["stats"]["peers"]["faults"] for rank in got)


def test_a_rank_that_stops_for_a_while_costs_time_and_no_sample(paths, tmp_path):
    by_rank = {str(rank): {"compute_s": 0.05} for rank in range(4)}
    with Ranks(paths, 4, tmp_path, job=options(4, 102), by_rank=by_rank) as job:
        stop = threading.Timer(2, job.kill, (2, signal.SIGSTOP))
        go_on = threading.Timer(2 + 3 * DEADLINE_S, job.kill, (2, signal.SIGCONT))
        stop.start()
        go_on.start()
        job.run_free()
        got = job.end()
    check_survivors([rank for at, rank in enumerate(got) if at != 2])
    assert [len(epoch) for epoch in got[2]["epochs"]] == [SAMPLES // 4] * EPOCHS
    assert not got[2]["wrong"]


def test_a_job_of_one_rank_only_does_not_hang(paths, tmp_path):
    """Validation on rank 0, say: the others never come."""
    told = options(2, 102)
    told["config"]["peers"] |= {"patience": 1}
    began_s = time.monotonic()
    with Ranks(paths, 2, tmp_path, job=told) as job:
        job.kill(1)
        job.step_together()
        (got,) = job.end(lost=(1,))
    assert len(got["steps"]) == EPOCHS * SAMPLES // 2 // BATCH
    assert time.monotonic() - began_s < 30
    assert "goes on alone" in job.said(0)


def test_a_restart_resumes_exactly(paths, tmp_path):
    with Ranks(paths, 4, tmp_path, job=options(4, 102), stop_after=22) as job:
        job.step_together()
        first = job.end()
    with Ranks(paths, 4, tmp_path, job=options(4, 102), state=first[0]["state"]) as job:
        job.step_together()
        rest = job.end()
    both = [
        {"epochs": [before + after for before, after in zip(one["epochs"], other["epochs"], strict=True)], "wrong": []}
        for one, other in zip(first, rest, strict=True)
    ]
    check_epochs(both, SAMPLES, EPOCHS)
