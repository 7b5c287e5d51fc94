"""Tiers of a host: its ranks have the capacity together, and no sample is read or kept twice."""

import itertools
import time

import foresee
import pytest
from many import Ranks, check_epochs, make_files
from test_ranks import needs_strace
from test_warm import held_in

SIZE, SAMPLES, EPOCHS, RANKS = 4000, 480, 3, 4


@pytest.fixture
def paths(tmp_path):
    needs_strace()
    return make_files(tmp_path / "dataset", SAMPLES, SIZE)


def told(tier, transport="auto"):
    tier = {"scope": "host", **tier}
    peers = {"deadline": 60, "transport": transport}
    config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": peers}
    return {"batch_size": 8, "epochs": EPOCHS, "seed": 5, "config": config}


def minimum(percent):
    kept = SAMPLES * percent // 100 // RANKS * RANKS
    return SIZE * (SAMPLES + (EPOCHS - 1) * max(SAMPLES - kept, 0))


@pytest.mark.parametrize("percent", [60, 100, 200])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_ranks_of_a_host_keep_each_sample_once(paths, tmp_path, kind, percent):
    tier = {"kind": kind, "capacity": SAMPLES * SIZE * percent // 100}
    if kind == "disk":
        tier |= {"path": str(tmp_path / "cache"), "free_space_floor": 0}
    with Ranks(paths, RANKS, tmp_path, trace=True, check=False, job=told(tier)) as job:
        job.step_together()
        got = job.end()
        read = job.source_bytes()
    check_epochs(got, SAMPLES, EPOCHS)
    assert read == minimum(percent)
    if kind == "disk":
        held = [held_in(path) for path in (tmp_path / "cache").glob("*-slot*/index")]
        assert len(held) == RANKS
        assert not any(one & other for one, other in itertools.combinations(held, 2))
        assert sum(map(len, held)) == min(SAMPLES, SAMPLES * percent // 100)


def test_what_fills_an_epochs_tail_is_read_once(paths, tmp_path):
    """Ranks do not divide the dataset, so the samples at its beginning are used again at its end."""
    tier = {"kind": "memory", "capacity": 2 * SAMPLES * SIZE}
    few = paths[:-2]
    with Ranks(few, RANKS, tmp_path, trace=True, check=False, job=told(tier)) as job:
        job.step_together()
        got = job.end()
        read = job.source_bytes()
    check_epochs(got, len(few), EPOCHS)
    assert read == SIZE * len(few)


def test_whatever_the_number_of_ranks_all_is_found_and_the_capacity_kept(paths, tmp_path):
    """Also where the capacity is another: what fits then stays."""
    # What was changed less than 2 s before it is read is not trusted later.
    time.sleep(2.1)
    cache = tmp_path / "cache"
    # How many ranks, for how many samples there is room, and how many of them are not there yet.
    jobs = [
        (3, 490, 480),
        (4, 490, 0),
        (2, 490, 0),
        (8, 490, 0),
        (1, 490, 0),
        (5, 240, None),
        (3, 490, 240),
        (6, 490, 0),
    ]
    for number, (ranks, room, missing) in enumerate(jobs):
        tier = {"kind": "disk", "capacity": room * SIZE, "path": str(cache), "free_space_floor": 0}
        folder = tmp_path / f"job{number}"
        with Ranks(paths, ranks, folder, trace=True, check=False, job=told(tier)) as job:
            job.step_together()
            check_epochs(job.end(), SAMPLES, EPOCHS)
            if missing is not None:
                assert job.source_bytes() == SIZE * missing, f"{ranks} ranks"
        on_disk = sum(path.stat().st_blocks * 512 for path in cache.glob("*-slot*/data-*"))
        # The blocks at the ends of a part are not all its own.
        assert on_disk <= room * SIZE + 8 * (8 << 10), f"{ranks} ranks"


def test_what_cannot_be_shared_is_refused(tmp_path, folder, monkeypatch):
    paths = folder(8)
    tier = {"kind": "memory", "capacity": 10_000}
    with pytest.raises(foresee.ForeseeError, match=r'tier\[0\].scope is "host".*policy nopfs'):
        list(foresee.Job(foresee.Files(paths), **told(tier), policy="nopfs"))
    alone = told(tier, transport="none")
    with pytest.raises(foresee.ForeseeError, match=r"peers.transport"):
        list(foresee.Job(foresee.Files(paths), **alone, rank=0, world_size=2))
    with pytest.raises(foresee.ForeseeError, match="scope"):
        foresee.Job(foresee.Files(paths), **told({**tier, "scope": "global"}))
