"""Many ranks as real processes, through shared memory and over TCP: every sample once, order as without peers, the source at its
minimum, and faults that cost time, never data."""

import itertools
import shutil
import time

import pytest
from made import content
from many import ORIGINS, Ranks, check_epochs, make_files

SIZE, SAMPLES, EPOCHS, BATCH = 4000, 480, 3, 8
DEADLINE_S = 2


@pytest.fixture(params=ORIGINS)
def transport(request):
    return request.param


def options(ranks: int, percent: int, transport: str = "auto", **more):
    tier = {"kind": "memory", "capacity": SAMPLES * percent // 100 // ranks * SIZE}
    peers = {"deadline": DEADLINE_S, "transport": transport}
    config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": peers}
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
def test_every_sample_once_and_the_source_at_its_minimum(paths, tmp_path, ranks, percent, transport):
    needs_strace()
    told = options(ranks, percent, transport)
    with Ranks(paths, ranks, tmp_path, trace=True, check=False, job=told) as job:
        job.step_together()
        got = job.end()
        read = job.source_bytes_by_file()
    check_epochs(got, SAMPLES, EPOCHS)
    assert sum(read.values()) == minimum(ranks, percent)
    assert sum(rank["stats"]["source_bytes"] for rank in got) == sum(read.values())
    # What has a holder is read once, what has none in each epoch: nothing is read that a holder had.
    assert len(read) == SAMPLES
    assert set(read.values()) <= {SIZE, SIZE * EPOCHS}
    kept = min(SAMPLES, SAMPLES * percent // 100 // ranks * ranks)
    assert list(read.values()).count(SIZE) == kept
    asked, refused = (sum(rank["stats"]["peers"][what] for rank in got) for what in ("asked", "refused"))
    assert refused <= asked / 100
    # A rank that is done and leaves is no fault.
    assert not any(rank["stats"]["peers"]["faults"] for rank in got)


def test_what_is_handed_to_a_disk_is_not_read_again(paths, tmp_path, transport):
    told = options(4, 102, transport)
    disk = {"kind": "disk", "capacity": SAMPLES * SIZE // 2, "path": str(tmp_path / "cache"), "free_space_floor": 0}
    told["config"]["tier"] = [disk]
    with Ranks(paths, 4, tmp_path, job=told) as job:
        job.step_together()
        got = job.end()
    check_epochs(got, SAMPLES, EPOCHS)
    assert sum(rank["stats"]["stale"] for rank in got) == 0
    assert sum(rank["stats"]["source_bytes"] for rank in got) == SAMPLES * SIZE


def test_the_order_is_that_of_ranks_without_peers_and_bytes_are_the_files(paths, tmp_path, transport):
    with Ranks(paths, 4, tmp_path, job=options(4, 102, transport)) as job:
        job.step_together()
        got = job.end()
    check_epochs(got, SAMPLES, EPOCHS)
    with Ranks(paths, 4, tmp_path, job=options(4, 102, "none")) as job:
        job.step_together()
        without = job.end()
    assert [rank["steps"] for rank in got] == [rank["steps"] for rank in without]
    assert all(rank["stats"]["origins"][ORIGINS[transport]]["samples"] > 0 for rank in got)


def test_local_batches_are_the_same_sets_and_hardly_use_other_ranks(tmp_path, transport):
    """As it is used: local batches of 64, and enough steps for what is over and what is short to even out."""
    size, batch, steps = 2000, 64, 40
    samples = 4 * batch * steps
    paths = make_files(tmp_path / "dataset", samples, size)
    tier = {"kind": "memory", "capacity": samples * size * 51 // 50 // 4}
    peers = {"deadline": DEADLINE_S, "transport": transport}
    config = {"staging": {"capacity": "4 MiB"}, "tier": [tier], "peers": peers}
    told = {"batch_size": batch, "epochs": EPOCHS, "seed": 5, "config": config}

    def run(folder, **more):
        with Ranks(paths, 4, tmp_path / folder, job={**told, **more}) as job:
            job.step_together()
            got = job.end()
        check_epochs(got, samples, EPOCHS)
        from_others = (rank["stats"]["origins"].get(ORIGINS[transport], {"bytes": 0})["bytes"] for rank in got)
        return global_batches(got), sum(from_others)

    local_batches, local_bytes = run("local", assignment="local")
    batches, in_order_bytes = run("order")
    assert local_batches == batches
    # None in the first epoch: the first user of a sample holds it.
    assert local_bytes / (EPOCHS - 1) <= 0.06 * samples * size
    assert in_order_bytes / (EPOCHS - 1) > 0.5 * samples * size


def global_batches(got):
    """The samples of all ranks, step by step."""
    steps = zip(*(rank["steps"] for rank in got), strict=True)
    return [sorted(itertools.chain.from_iterable(step)) for step in steps]


def test_a_rank_three_times_slower_costs_no_source_reads(paths, tmp_path, transport):
    needs_strace()
    told = options(4, 102, transport)
    by_rank = {"1": {"compute_s": 0.09}} | {rank: {"compute_s": 0.03} for rank in "023"}
    with Ranks(paths, 4, tmp_path, trace=True, job=told, check=False, by_rank=by_rank) as job:
        job.run_free()
        got = job.end()
        read = job.source_bytes()
    check_epochs(got, SAMPLES, EPOCHS)
    assert minimum(4, 102) <= read <= 1.05 * minimum(4, 102)


def test_sizes_that_differ_cost_no_source_reads(tmp_path, transport):
    """Copies that come and go leave holes, which must not be where what stays is to lie."""
    needs_strace()
    folder = tmp_path / "dataset"
    folder.mkdir()
    paths = [folder / f"{sample:05}.bin" for sample in range(SAMPLES)]
    sizes = [500 + sample * 7919 % 20_011 for sample in range(SAMPLES)]
    for sample, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(content(sample, size))
    told = options(4, 102, transport)
    told["config"]["tier"][0]["capacity"] = sum(sizes) * 51 // 50 // 4
    told["config"]["staging"]["capacity"] = "4 MiB"
    told["epochs"] = 5
    with Ranks(paths, 4, tmp_path, trace=True, job=told, check=False) as job:
        job.run_free()
        got = job.end()
        read = job.source_bytes()
    check_epochs(got, SAMPLES, told["epochs"])
    least = got[0]["stats"]["job"]["source_minimum_bytes"]
    assert least <= read <= 1.02 * least


def check_survivors(got):
    """All of their streams was delivered, right by hash, and nobody waited much longer than a deadline or two."""
    for rank in got:
        assert not rank["wrong"]
        assert [len(epoch) for epoch in rank["epochs"]] == [SAMPLES // 4] * EPOCHS
        assert rank["waited_s"] < 3 * DEADLINE_S


def test_a_rank_that_dies_costs_time_and_no_sample(paths, tmp_path, transport):
    def at_step(step, job):
        if step == 20:
            job.kill(2)

    with Ranks(paths, 4, tmp_path, job=options(4, 102, transport)) as job:
        job.step_together(at_step=at_step)
        got = job.end(lost=(2,))
    check_survivors(got)
    assert all("2" in rank["stats"]["peers"]["faults"] for rank in got)


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
