"""Tiers of a host: its ranks have the capacity together, and no sample is read or kept twice."""

import itertools

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
