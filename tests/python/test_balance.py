"""Threads that ranks of a host share: who is stopped or killed strands none of them, and who goes on has some again. Who had
how many is written down, and done again."""

import itertools
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from many import Place, Ranks, check_epochs, make_files

SIZE, SAMPLES, BATCH, RANKS = 2000, 240, 8, 3
EPOCHS = 40
COMPUTE_S = 0.02
#: Of the staging buffer and the tier.
THREADS = 2 + 1


def options(epochs: int, threads: object, **balance: str) -> dict[str, Any]:
    tier = {"kind": "memory", "capacity": SAMPLES // RANKS * SIZE, "threads": 1}
    config = {"staging": {"capacity": "1 MiB", "threads": threads}, "tier": [tier], "peers": {"deadline": 1}}
    config["balance"] = balance
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


@pytest.mark.parametrize(("stopped", "killed"), [(1, 2), (0, 1)], ids=["others", "planners"])
def test_a_rank_that_is_stopped_or_killed_strands_no_threads(paths, tmp_path, stopped, killed):
    """Also where it is the one that plans for all: the lowest that lives."""
    by_rank = {str(rank): {"compute_s": COMPUTE_S} for rank in range(RANKS)}
    told = options(EPOCHS, f"{2 * RANKS} a host")
    with Ranks(paths, RANKS, tmp_path / "job", job=told, by_rank=by_rank) as job, ThreadPoolExecutor() as aside:

        def happen() -> None:
            job.wait_for_steps(20)
            job.kill(stopped, signal.SIGSTOP)
            time.sleep(1.5)
            job.kill(stopped, signal.SIGCONT)
            time.sleep(1.5)
            job.kill(killed)

        happening = aside.submit(happen)
        job.run_free()
        happening.result()
        got = job.end(lost=(killed,))
    assert not any(rank["wrong"] for rank in got)
    (watched,) = {0, 1, 2} - {stopped, killed}
    by_number = dict(zip([rank for rank in range(RANKS) if rank != killed], got, strict=True))
    seen = [ranks for _, ranks, _ in by_number[watched]["balance"]]
    changes = [ranks for ranks, _ in itertools.groupby(seen) if ranks]
    # All, without the stopped one, all again, without the killed one.
    assert changes[-4:] == [3, 2, 3, 2] or changes[-5:-1] == [3, 2, 3, 2], changes
    # The two that are left have what they brought, and nothing of it is lost.
    last = [[threads for _, ranks, threads in rank["balance"] if ranks == 2][-1] for rank in got]
    assert all(threads >= 1 for threads in last) and sum(last) <= 2 * THREADS, last


def test_a_rank_that_joins_late_takes_part(paths, tmp_path):
    late = Place(prefix=("sh", "-c", 'sleep 1.5; exec "$@"', "late"))
    by_rank = {str(rank): {"compute_s": COMPUTE_S} for rank in range(RANKS)}
    told = options(6, f"{2 * RANKS} a host")
    place = {2: late}
    with Ranks(
        paths, RANKS, tmp_path / "job", job=told, by_rank=by_rank, place=lambda rank: place.get(rank, Place())
    ) as job:
        job.step_together()
        got = job.end()
    check_epochs(got, SAMPLES, 6)
    for rank in got:
        assert RANKS in [ranks for _, ranks, _ in rank["balance"]]
        assert rank["stats"]["balance"]["members"] == list(range(RANKS))


def plan_of(text: str) -> list[list[Any]]:
    """Steps and threads of a plan as it is written."""
    changes = []
    for line in text.splitlines():
        step, threads = line.removeprefix("step ").split(": ")
        changes.append([int(step), [int(number) for number in threads.removesuffix(", decoding 0").split()]])
    return changes


def test_who_had_how_many_threads_is_written_and_done_again(paths, tmp_path):
    threads = f"{2 * RANKS} a host"
    by_rank = {str(rank): {"compute_s": COMPUTE_S} for rank in range(RANKS)}
    recorded = options(4, threads, record=str(tmp_path / "threads.txt"), every="100 ms")
    with Ranks(paths, RANKS, tmp_path / "made", job=recorded, by_rank=by_rank) as job:
        job.step_together()
        got = job.end()
    written = plan_of((tmp_path / "threads.rank0.txt").read_text())
    told = got[0]["stats"]["balance"]["threads_over_time"]
    assert written and written == [change for change in told if 0 not in change[1]]
    assert [path.name for path in tmp_path.glob("threads*")] == ["threads.rank0.txt"]

    first, second = [1, 1, RANKS * THREADS - 2], [RANKS * THREADS - 2, 1, 1]
    lines = [(0, first), (30, second)]
    text = "".join(f"step {step}: {' '.join(map(str, given))}, decoding 0\n" for step, given in lines)
    (tmp_path / "wanted.rank0.txt").write_text(text)
    replayed = options(8, threads, replay=str(tmp_path / "wanted.txt"))
    with Ranks(paths, RANKS, tmp_path / "again", job=replayed, by_rank=by_rank) as job:
        job.step_together()
        got = job.end()
    check_epochs(got, SAMPLES, 8)
    changes = got[0]["stats"]["balance"]["threads_over_time"]
    steps = {tuple(given): step for step, given in reversed(changes)}
    assert steps[tuple(first)] < 30 <= steps[tuple(second)], changes
    assert max(own for _, ranks, own in got[2]["balance"] if ranks == RANKS) == first[2]


def test_a_plan_that_cannot_be_followed_is_named(paths, tmp_path):
    (tmp_path / "bad.rank0.txt").write_text("step 0: 3 3 3, decoding 0\nstep 0: 4 4 1, decoding 0\n")
    told = options(1, f"{2 * RANKS} a host", replay=str(tmp_path / "bad.txt"))
    with Ranks(paths, RANKS, tmp_path / "job", job=told) as job:
        job.step_together()
        job.end(lost=tuple(range(RANKS)))
        assert f"plan of threads {tmp_path}/bad.rank0.txt: line 2: expected" in job.said(0)
