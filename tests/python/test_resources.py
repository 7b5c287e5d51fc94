"""What a job takes and tells: reads of the source, memory, statistics, the trace."""

import json
import re
import shutil
import time
from pathlib import Path

import foresee
import pytest
from traced import read_bytes

RUN = """
import json, sys, foresee
options = json.loads(sys.argv[1])
job = foresee.Job(foresee.Files(sys.argv[2:]), **options)
for batch in job:
    for data in batch.data:
        memoryview(data)[0]
print(json.dumps(job.stats()))
"""


@pytest.mark.parametrize("percent", [0, 40, 100])
def test_the_source_is_read_no_more_than_the_minimum_seen_from_outside(script, folder, tmp_path, percent):
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace: install Debian's package strace")
    size, samples, epochs = 5000, 50, 4
    paths = folder(samples, size)
    capacity = size * samples * percent // 100
    options = {"batch_size": 7, "epochs": epochs, "config": {"tier": [{"kind": "memory", "capacity": capacity}]}}
    log = tmp_path / "strace"
    prefix = (strace, "-f", "-y", "-s", "0", "-e", "trace=open,openat,read,readv,pread64", "-o", str(log))
    ran = script(RUN, json.dumps(options), *paths, prefix=prefix)
    if "ptrace" in ran.stderr or "PTRACE" in ran.stderr:
        pytest.skip(f"strace may not: {ran.stderr.splitlines()[0]}")
    assert ran.returncode == 0, ran.stderr
    minimum = size * samples + (size * samples - capacity) * (epochs - 1)
    text = log.read_text()
    opens = len(re.findall(r'open(?:at)?\([^"]*"[^"]*\.bin"', text))
    read = read_bytes(log).total()
    stats = json.loads(ran.stdout)
    assert stats["source_minimum_bytes"] == stats["source_bytes"] == minimum
    assert opens == minimum // size
    assert read == minimum


MEMORY = """
import json, sys, foresee

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

options = json.loads(sys.argv[1])
before = resident_mb()
job = foresee.Job(foresee.Files(sys.argv[2:]), **options)
by_epoch = []
for epoch in range(job.epochs):
    for batch in job.epoch(epoch):
        for data in batch.data:
            bytes(data)
    by_epoch.append(resident_mb() - before)
print(json.dumps(by_epoch))
"""


def test_memory_stays_within_the_budget_and_does_not_grow(script, folder):
    paths = folder(100, size=100_000)
    config = {"staging": {"capacity": "2 MB"}, "tier": [{"kind": "memory", "capacity": "5 MB"}]}
    options = {"batch_size": 4, "epochs": 50, "config": config}
    ran = script(MEMORY, json.dumps(options), *paths)
    assert ran.returncode == 0, ran.stderr
    by_epoch = json.loads(ran.stdout)
    assert max(by_epoch) < 7 + 150
    assert by_epoch[-1] - by_epoch[9] < 3, by_epoch


STATS = {
    "batches", "bytes", "elapsed_s", "epoch", "first_batch_s", "hit_ratio", "lost", "not_kept", "origins", "outside",
    "policy", "rank", "retries", "samples", "skipped", "source_bytes", "source_minimum_bytes", "stall_by_s", "stall_s",
    "step", "threads", "world_size", "balance",
}  # fmt: skip


def test_stats_tell_where_samples_came_from(files):
    dataset = files(40, size=1000)
    config = {"tier": [{"kind": "memory", "capacity": 40_000}]}
    with foresee.Job(dataset, 8, 3, config=config) as job:
        assert job.stats().keys() >= STATS
        assert job.stats()["first_batch_s"] is None
        for _ in job:
            pass
        stats = job.stats()
        assert (stats["samples"], stats["batches"], stats["bytes"]) == (120, 15, 120_000)
        assert stats["source_bytes"] == stats["source_minimum_bytes"] == 40_000
        assert {name: reads["samples"] for name, reads in stats["origins"].items()} == {"source": 40, "tier1": 80}
        assert stats["hit_ratio"] == pytest.approx(2 / 3)
        assert stats["first_batch_s"] > 0
        json.dumps(stats)
        lines = job.summary().splitlines()
        assert lines[0] == "policy      foresee (rank 0 of 1)"
        assert any(line.startswith("delivered   120 samples") for line in lines)
    closed = job.stats()
    assert {**stats, "elapsed_s": 0} == {**closed, "elapsed_s": 0} and stats["elapsed_s"] <= closed["elapsed_s"]
    assert job.stats()["elapsed_s"] == closed["elapsed_s"]
    assert "delivered   120 samples" in job.summary()


def test_the_minimum_of_lists_counts_what_they_name_as_often_as_they_do(files):
    dataset = files(40, size=1000)
    config = {"tier": [{"kind": "memory", "capacity": 40_000}]}

    def told(lists, **options) -> tuple[int, int]:
        with foresee.Job(dataset, 5, len(lists), shuffle=lists, **options) as job:
            for _ in job:
                pass
            return job.stats()["source_minimum_bytes"], job.stats()["source_bytes"]

    few = [list(range(10)), list(range(5, 15)), list(range(10))]
    assert told(few, config=config) == (15_000, 15_000)
    assert told(few, config={"tier": []}) == (30_000, 30_000)
    minimum, read = told([[0, 0, 0, 1, 1] * 8, [2, 0, 2, 0, 2] * 8], config=config)
    assert minimum == 3_000 <= read


def test_a_job_that_did_not_go_the_whole_way_has_no_minimum(files):
    dataset = files(40, size=1000)
    with foresee.Job(dataset, 5, 6) as job:
        assert job.stats()["source_minimum_bytes"] == 240_000
        next(job)
        state = job.state_dict()
        for _ in job.epoch(4):
            pass
        assert job.stats()["source_minimum_bytes"] is None
    with foresee.Job(dataset, 5, 6) as job:
        job.load_state_dict(state)
        for _ in job:
            pass
        assert job.stats()["source_minimum_bytes"] == job.stats()["source_bytes"] == 235_000


def test_what_is_read_in_the_place_of_another_counts(folder):
    paths = [Path(path) for path in folder(20, 1000)]
    dataset = foresee.Files(paths)
    paths[3].unlink()
    with foresee.Job(dataset, 5, 2, on_error="skip") as job:
        for _ in job:
            pass
        stats = job.stats()
    assert (stats["skipped"], stats["source_bytes"], stats["source_minimum_bytes"]) == (2, 40_000, None)


def test_a_trace_tells_of_every_read_and_batch(files, tmp_path):
    trace = tmp_path / "trace.jsonl"
    with foresee.Job(files(20), 5, 2, config={"trace": {"path": str(trace)}}) as job:
        for _ in job:
            pass
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds.count("read"), kinds.count("batch"), kinds[-1]) == (40, 8, "end")
    assert events[-1]["end"]["samples"] == 40
    assert all(event["t_s"] >= 0 for event in events)


def test_a_cache_on_disk_is_warm_after_a_restart(files, tmp_path):
    dataset = files(40, size=1000)
    # What was kept of files that had just been written is not trusted later.
    time.sleep(2.1)
    tier = {"kind": "disk", "capacity": 40_000, "path": str(tmp_path / "cache"), "free_space_floor": 0}
    read = []
    for _ in range(2):
        with foresee.Job(dataset, 8, 2, config={"tier": [tier]}) as job:
            for _ in job:
                pass
            read.append(job.stats()["source_bytes"])
    assert read == [40_000, 0]
