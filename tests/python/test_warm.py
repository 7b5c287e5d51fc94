"""Disk tiers outlive a job: what the last job kept, whoever read it, the next one does not read again, however many ranks it has."""

import re
import shutil
import time
from collections import Counter

import foresee
import pytest
from many import Ranks, check_epochs, make_files

SIZE, SAMPLES, EPOCHS, BATCH = 4000, 240, 2, 8
TOTAL = SIZE * SAMPLES
#: A look at a sample by its name, as strace shows it.
LOOK = re.compile(r'^\d+ +(?:stat|lstat|newfstatat|statx)\(.*?"(?:[^"]*/)?(\d+\.bin)"', re.MULTILINE)


@pytest.fixture(params=["auto", "tcp"])
def transport(request):
    return request.param


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")
    paths = make_files(tmp_path_factory.mktemp("source") / "dataset", SAMPLES, SIZE)
    # What was changed less than 2 s before it is read is not trusted later.
    time.sleep(2.1)
    return paths


class Jobs:
    """Jobs on one cache folder, with three or four ranks; K >= S also with three of them."""

    def __init__(self, paths, folder, transport):
        self.paths, self.folder, self.transport = paths, folder, transport
        self.cache = folder / "cache"
        self.number = 0
        self.source_bytes = 0
        self.looks: Counter[str] = Counter()

    def run(self, ranks: int, **options):
        capacity = SAMPLES * 102 // 100 // 3 * SIZE
        tier = {"kind": "disk", "capacity": capacity, "path": str(self.cache), "free_space_floor": 0}
        # Nobody is given up on a machine that is slow: who is would be read from the source.
        peers = {"deadline": 60, "transport": self.transport}
        config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": peers}
        told = {"batch_size": BATCH, "epochs": EPOCHS, "seed": 5 + self.number, "config": config, **options}
        self.number += 1
        folder = self.folder / f"job{self.number}"
        traced = "read,readv,pread64,stat,lstat,newfstatat,statx"
        with Ranks(self.paths, ranks, folder, trace=True, traced=traced, check=False, job=told) as job:
            job.step_together()
            got = job.end()
            self.source_bytes = job.source_bytes()
            self.looks = Counter(name for log in job.logs for name in LOOK.findall(log.read_text()))
        check_epochs(got, SAMPLES, EPOCHS)
        assert sum(rank["stats"]["source_bytes"] for rank in got) == self.source_bytes
        return got

    def slots(self):
        return {path.name.rsplit("-", 1)[1]: path for path in self.cache.iterdir() if "-slot" in path.name}


@pytest.fixture
def jobs(paths, tmp_path, transport):
    return Jobs(paths, tmp_path, transport)


@pytest.mark.parametrize("ranks", [3, 4])
def test_the_same_ranks_read_nothing_again(jobs, ranks):
    jobs.run(ranks)
    assert jobs.source_bytes == TOTAL
    jobs.run(ranks)
    assert jobs.source_bytes == 0


def test_a_file_is_looked_at_once_a_job_by_who_holds_it(jobs):
    """And once by each rank when its dataset is made."""
    ranks = 3
    jobs.run(ranks)
    copies = Counter(sample for path in jobs.slots().values() for sample in held_in(path / "index"))
    jobs.run(ranks)
    assert jobs.source_bytes == 0
    assert len(jobs.looks) == SAMPLES
    for name, looks in jobs.looks.items():
        assert ranks < looks <= ranks + copies[int(name.removesuffix(".bin"))]
    assert sum(jobs.looks.values()) <= (ranks + 1.03) * SAMPLES


def test_one_more_rank_reads_nothing_again(jobs):
    jobs.run(3)
    jobs.run(4)
    assert jobs.source_bytes == 0


def test_what_was_damaged_is_replaced_whoever_comes_upon_it(jobs):
    ranks = 3
    jobs.run(ranks)
    damaged = 0
    for path in jobs.slots().values():
        data = next(path.glob("data-*"))
        content = bytearray(data.read_bytes())
        for at in range(0, len(held_in(path / "index")) * SIZE, 10 * SIZE):
            content[at + 50] ^= 1
            damaged += 1
        # In place: what is behind it stays allocated.
        with data.open("r+b") as file:
            file.write(content)
    # Each use of a sample may come upon it before the first that did has replaced it, at the latest in the next job.
    jobs.run(ranks)
    assert damaged * SIZE <= jobs.source_bytes <= EPOCHS * damaged * SIZE
    jobs.run(ranks)
    jobs.run(ranks)
    assert jobs.source_bytes == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_one_rank_less_reads_no_more_than_the_lost_tier_held(jobs, is_lost):
    """Its tier is on a host that is there no more, or it is found where it was and adopted as far as there is room."""
    jobs.run(4)
    slots = jobs.slots()
    held = {slot: held_in(path / "index") for slot, path in slots.items()}
    elsewhere = set().union(*(held[slot] for slot in held if slot != "slot3"))
    lost_bytes = SIZE * len(held["slot3"] - elsewhere)
    assert 0 < lost_bytes < TOTAL / 2
    if is_lost:
        shutil.rmtree(slots["slot3"])
    jobs.run(3)
    assert jobs.source_bytes <= lost_bytes
    if is_lost:
        assert jobs.source_bytes == lost_bytes
    jobs.run(3)
    assert jobs.source_bytes == 0


def test_what_two_tiers_hold_is_held_whichever_comes_first(paths, tmp_path):
    def read(*names):
        tiers = [
            {"kind": "disk", "capacity": 2 * TOTAL, "path": str(tmp_path / name), "free_space_floor": 0}
            for name in names
        ]
        with foresee.Job(foresee.Files(paths), BATCH, EPOCHS, seed=3, config={"tier": tiers}) as job:
            for _ in job:
                pass
            return job.stats()["source_bytes"]

    assert [read("one"), read("other")] == [TOTAL, TOTAL]
    assert [read("one", "other"), read("other", "one")] == [0, 0]


def held_in(index):
    """The samples that an index says are held, as crates/runtime/src/tier/disk/log.rs writes them."""
    record, header = 88, 56
    held = set()
    data = index.read_bytes()
    for at in range(header, len(data) - record + 1, record):
        kind = int.from_bytes(data[at : at + 4], "little")
        sample = int.from_bytes(data[at + 4 : at + 8], "little")
        held.discard(sample) if kind == 3 else held.add(sample)
    return held
