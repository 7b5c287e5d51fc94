"""Signal handlers that raise at any moment: what was not handed over was not delivered, and comes next."""

import contextlib
import itertools
import os

import foresee
import pytest
from alarms import Alarm, Alarms
from made import content

SAMPLES, BATCH, EPOCHS = 60, 4, 3
SIZE = 2_000


def slow_files(files, name, **options):
    slow = foresee.emulate(f"{name}-{os.getpid()}", mb_per_s=1.0)
    return files(SAMPLES, size=SIZE, throttle=slow, **options)


def seen(batch):
    assert [bytes(data) for data in batch.data] == [content(index, SIZE) for index in batch.indices]
    return batch.epoch, batch.step


def in_order(epochs=EPOCHS):
    return [(epoch, step) for epoch in range(epochs) for step in range(SAMPLES // BATCH)]


def stood_at(job, got):
    """A state counts what arrived."""
    state = job.state_dict()
    assert state["epoch"] * (SAMPLES // BATCH) + state["step"] == len(got) and state["index"] == 0


WAYS = {
    "job": lambda job, _: job,
    "epoch": lambda job, got: job.epoch(min(len(got) * BATCH // SAMPLES, EPOCHS - 1)),
    "progress": lambda job, _: foresee.progress(job),
}


@pytest.mark.parametrize("policy", ["foresee", "naive"])
@pytest.mark.parametrize("way", WAYS)
def test_alarms_in_a_loop_lose_and_repeat_nothing(files, way, policy):
    got = []
    with (
        foresee.Job(slow_files(files, f"loop-{way}"), BATCH, EPOCHS, seed=4, policy=policy) as job,
        Alarms(1) as alarms,
    ):
        armed = alarms.armed
        while len(got) < len(job):
            with contextlib.suppress(Alarm):
                armed[0] = True
                for batch in WAYS[way](job, got):
                    armed[0] = False
                    got.append(seen(batch))
                    armed[0] = True
            armed[0] = False
            stood_at(job, got)
    assert got == in_order()
    assert alarms.raised > 20


# What `next()` and `get()` return a loop has at once; an assignment would come after one more look at signals, in which what
# was returned can be lost (docs/python.md).


def test_next_after_an_alarm_is_what_the_alarm_kept_back(files):
    got = []
    with foresee.Job(slow_files(files, "next"), BATCH, EPOCHS, seed=4) as job, Alarms(2, longest_s=0.03) as alarms:
        each = itertools.repeat(job)
        while len(got) < len(job):
            with contextlib.suppress(Alarm):
                alarms.armed[0] = True
                for batch in map(next, each):
                    alarms.armed[0] = False
                    got.append(seen(batch))
                    break
            alarms.armed[0] = False
            stood_at(job, got)
    assert got == in_order()
    assert alarms.raised > 10


def test_samples_one_by_one_outlive_alarms(files):
    dataset = slow_files(files, "get")
    expected = [index for batch in foresee.Job(dataset, BATCH, 1, seed=4) for index in batch.indices]
    got = []
    with foresee.Job(dataset, BATCH, 1, seed=4) as job, Alarms(3, longest_s=0.02) as alarms:
        samples = iter(job.get, None)
        while len(got) < SAMPLES:
            with contextlib.suppress(Alarm):
                alarms.armed[0] = True
                for data, label in samples:
                    alarms.armed[0] = False
                    assert bytes(data) == content(label // 3, SIZE)
                    got.append(label // 3)
                    break
            alarms.armed[0] = False
            state = job.state_dict()
            assert state["step"] * BATCH + state["index"] == len(got) or (len(got) == SAMPLES and state["epoch"] == 1)
        assert job.get() is None
    assert got == expected
    assert alarms.raised > 5


def test_a_batch_that_an_alarm_kept_back_is_there_sample_by_sample(files):
    dataset = slow_files(files, "mixed")
    expected = [index for batch in foresee.Job(dataset, 20, 1, seed=4) for index in batch.indices]
    got = []
    with foresee.Job(dataset, 20, 1, seed=4) as job, Alarms(5, longest_s=0.02) as alarms:
        with contextlib.suppress(Alarm):
            alarms.armed[0] = True
            next(job)
        assert alarms.raised == 1
        while (sample := job.get()) is not None:
            got.append(sample[1] // 3)
    assert got == expected
