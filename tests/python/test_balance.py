"""Threads that ranks of a host share: who is stopped or killed strands none of them, and who goes on has some again."""

import itertools
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from many import Ranks, check_epochs, make_files

SIZE, SAMPLES, BATCH, RANKS = 2000, 240, 8, 3
EPOCHS = 40
COMPUTE_S = 0.02
#: Of the staging buffer and the tier.
THREADS = 2 + 1


def options(epochs: int, threads: object) -> dict[str, Any]:
    tier = {"kind": "memory", "capacity": SAMPLES // RANKS * SIZE, "threads": 1}
    config = {"staging": {"capacity": "1 MiB", "threads": threads}, "tier": [tier], "peers": {"deadline": 1}}
    return {"batch_size": BATCH, "epochs": epochs, "seed": 5, "config": config}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("balance") / "dataset", SAMPLES, SIZE)


def test_ranks_of_a_host_share_threads_unless_each_is_told_its_number(paths, tmp_path):
    for threads, is_shared in ((f"{2 * RANKS} a host", True), (2, False)):
        with Ranks(paths, RANKS, tmp_path / str(is_shared), job=options(3, threads)) as job:
            job.step_together()
            got = job.end()
        check_epochs(got, SAMPLES, 3)
        assert all(bool(rank["balance"]) == is_shared for rank in got), threads
        for _, ranks, own in itertools.chain.from_iterable(rank["balance"] for rank in got):
            assert ranks <= RANKS and 0 <= own <= THREADS * RANKS


def test_a_rank_that_is_stopped_or_killed_strands_no_threads(paths, tmp_path):
    by_rank = {str(rank): {"compute_s": COMPUTE_S} for rank in range(RANKS)}
    told = options(EPOCHS, f"{2 * RANKS} a host")
    with Ranks(paths, RANKS, tmp_path / "job", job=told, by_rank=by_rank) as job, ThreadPoolExecutor() as aside:

        def happen() -> None:
            job.wait_for_steps(20)
            job.kill(1, signal.SIGSTOP)
            time.sleep(1.5)
            job.kill(1, signal.SIGCONT)
            time.sleep(1.5)
            job.kill(2)

        happening = aside.submit(happen)
        job.run_free()
        happening.result()
        got = job.end(lost=(2,))
    assert not any(rank["wrong"] for rank in got)
    seen = [ranks for _, ranks, _ in got[0]["balance"]]
    changes = [ranks for ranks, _ in itertools.groupby(seen) if ranks]
    # All, without the stopped one, all again, without the killed one.
    assert changes[-4:] == [3, 2, 3, 2] or changes[-5:-1] == [3, 2, 3, 2], changes
    # The two that are left have what they brought, and nothing of it is lost.
    last = [[threads for _, ranks, threads in rank["balance"] if ranks == 2][-1] for rank in got]
    assert all(threads >= 1 for threads in last) and sum(last) <= 2 * THREADS, last
