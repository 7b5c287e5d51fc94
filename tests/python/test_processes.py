"""Forks, threads, signals and ends of programs: nothing hangs, nothing comes twice."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import foresee
import pytest
from made import content, rest


def in_child(method, job):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=rest, args=(job, queue))
    child.start()
    indices = queue.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    return indices


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("started", [False, True])
def test_a_job_goes_on_in_a_child_from_where_it_stood(files, method, started):
    config = {"tier": [{"kind": "memory", "capacity": "1 MB"}]}
    with foresee.Job(files(40), 4, 3, seed=2, config=config) as job:
        if started:
            next(job), next(job)
        indices = in_child(method, job)
        assert len(indices) == 120 - 8 * started
        assert indices == rest(job)


def test_a_child_goes_on_with_batches_of_another_world(files):
    dataset = files(40)
    state = foresee.Job(dataset, 4, 2, seed=2, tail="exact", rank=0, world_size=2).state_dict()
    with foresee.Job(dataset, 4, 2, seed=2, tail="exact") as job:
        job.load_state_dict(state)
        assert len(next(job)) == 8
        assert in_child("fork", job) == rest(job)


def test_a_child_may_drop_and_end_with_what_it_inherited(files):
    with foresee.Job(files(40), 4, 3) as job:
        batch = next(job)
        child = os.fork()
        if child == 0:
            whole = bytes(batch.data[0]) == content(batch.indices[0])
            del batch, job
            os._exit(0 if whole else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(rest(job)) == 116


def test_what_a_child_inherited_stays_as_it_was_whatever_the_parent_keeps_then(files):
    """The parent evicts it and could use its memory for other samples."""
    config = {"tier": [{"kind": "memory", "capacity": 20_000}]}
    go, went = os.pipe()
    with foresee.Job(files(200, size=500), 4, 10, policy="lobster", config=config) as job:
        held = [next(job) for _ in range(60)][-8:]
        child = os.fork()
        if child == 0:
            os.close(went)
            os.read(go, 1)
            samples = [pair for batch in held for pair in zip(batch.data, batch.indices, strict=True)]
            os._exit(0 if all(bytes(data) == content(index, 500) for data, index in samples) else 1)
        del held
        indices = [index for batch in job for index in batch.indices]
        assert len(indices) == 2000 - 240
    os.close(went)
    assert os.waitpid(child, 0)[1] == 0
    os.close(go)


def test_children_that_exit_normally_do_not_hang(script, folder):
    paths = folder(40)
    code = """
import os, sys, foresee
job = foresee.Job(foresee.Files(sys.argv[1:]), 4, 3)
next(job)
child = os.fork()
if child:
    sys.exit(os.waitpid(child, 0)[1])
sys.exit(0 if sum(len(batch) for batch in job) == 116 else 1)
"""
    ran = script(code, *paths, timeout_s=20)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_signal_handler_may_fork_while_a_batch_is_awaited(script, folder):
    paths = folder(40, size=2_000)
    code = """
import os, signal, sys, foresee
children = []
def fork(*_):
    child = os.fork()
    children[:] = [*children, child] if child else []
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
    elif len(children) == 4:
        signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, fork)
slow = foresee.emulate(f"forks-{os.getpid()}", mb_per_s=0.2)
job = foresee.Job(foresee.Files(sys.argv[1:], throttle=slow), 4, 1)
next(job)
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
steps = [batch.step for batch in job]
ends = [os.waitpid(child, 0)[1] for child in children]
os._exit(0 if steps == list(range(1, 10)) and not any(ends) else 1)
"""
    ran = script(code, *paths, timeout_s=20)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_threads_that_share_a_job_get_each_batch_once(files):
    got = [[], [], []]
    with foresee.Job(files(60), 3, 4, seed=1) as job:
        threads = [threading.Thread(target=lambda part=part: part.extend(job)) for part in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    places = [(batch.epoch, batch.step) for part in got for batch in part]
    assert sorted(places) == [(epoch, step) for epoch in range(4) for step in range(20)]
    for batch in (batch for part in got for batch in part):
        assert [bytes(data) for data in batch.data] == [content(index) for index in batch.indices]


def test_threads_that_share_an_epoch_get_its_batches_and_no_others(files):
    wrong = []

    def take(part, epoch):
        try:
            part.extend((batch.epoch, batch.step) for batch in epoch)
        except Exception as error:  # noqa: BLE001  whatever it is
            wrong.append(error)

    for seed in range(30):
        with foresee.Job(files(24), 3, 4, seed=seed) as job:
            for epoch in range(1, 4):
                parts = [[], [], []]
                shared = job.epoch(epoch)
                threads = [threading.Thread(target=take, args=(part, shared)) for part in parts]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(60)
                assert wrong == []
                assert sorted(place for part in parts for place in part) == [(epoch, step) for step in range(8)]


def test_an_epoch_that_other_threads_have_finished_is_empty(files):
    taken, wrong = [], []

    def take(job, pause_s):
        try:
            for epoch in range(4):
                for batch in job.epoch(epoch):
                    taken.append((epoch, batch.epoch, batch.step))
                    time.sleep(pause_s)
        except Exception as error:  # noqa: BLE001  whatever it is
            wrong.append(error)

    with foresee.Job(files(24), 3, 4) as job:
        threads = [threading.Thread(target=take, args=(job, pause_s)) for pause_s in (0.2, 0.001, 0.001)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert sorted(taken) == [(epoch, epoch, step) for epoch in range(4) for step in range(8)]


def test_other_threads_run_while_one_waits(files):
    slow = foresee.emulate(f"waits-{os.getpid()}", mb_per_s=0.002)
    turns = 0
    with foresee.Job(files(5, size=200, throttle=slow), 5, 1) as job:
        waiter = threading.Thread(target=next, args=(job,))
        waiter.start()
        while waiter.is_alive():
            turns += 1
            time.sleep(0.01)
    assert turns > 10


def test_two_jobs_in_turns_do_not_harm_each_other(files):
    dataset = files(60)
    train, validate = foresee.Job(dataset, 6, 2, seed=1), foresee.Job(dataset, 6, 2, shuffle=False)
    for one, other in zip(train, validate, strict=True):
        for batch in (one, other):
            assert [bytes(data) for data in batch.data] == [content(index) for index in batch.indices]


WAIT = """
import signal, sys, foresee
# What a shell starts in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
slow = foresee.emulate(sys.argv[1], mb_per_s=0.001)
job = foresee.Job(foresee.Files(sys.argv[3:], throttle=slow), 4, 1)
print("ready", flush=True)
if sys.argv[2] == "with":
    with job:
        next(job)
elif sys.argv[2] == "read":
    slow.read(sys.argv[3])
else:
    next(job)
"""


@pytest.mark.parametrize("how", ["plain", "with", "read"])
def test_ctrl_c_ends_a_program_that_waits(folder, tmp_path, how):
    paths = folder(8, size=100_000)
    path = tmp_path / "wait.py"
    path.write_text(WAIT)
    command = [sys.executable, path, f"ctrl-c-{os.getpid()}-{how}", how, *paths]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert program.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=20)
    assert time.monotonic() - began < 2
    assert program.returncode in (-signal.SIGINT, 130) and said.strip().endswith(b"KeyboardInterrupt")


@pytest.mark.parametrize("last", ["job = None", "pass", "keep = job.get()", "sys.exit(0)"])
def test_a_program_ends_at_once_without_closing(script, folder, tmp_path, last):
    code = f"""
import sys, time, foresee
slow = foresee.emulate(sys.argv[1], mb_per_s=1.0)
job = foresee.Job(foresee.Files(sys.argv[2:], throttle=slow), 1, 5)
batch = next(job)
view = memoryview(batch.data[0])
print(time.time(), flush=True)
{last}
"""
    ran = script(code, f"ends-{tmp_path.name}", *folder(8, size=100_000), timeout_s=20)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert time.time() - float(ran.stdout) < 2.5


def test_warnings_of_the_loader_reach_the_logger(files, caplog):
    dataset = files(10)
    state = foresee.Job(dataset, 5, 1, seed=0).state_dict()
    job = foresee.Job(dataset, 2, 1, seed=0)
    job.load_state_dict(state)
    assert any(
        record.name == "foresee" and record.levelname == "WARNING" and "global batches of 5" in record.getMessage()
        for record in caplog.records
    )


def test_a_rank_without_peers_says_so_once(script, folder):
    code = """
import sys, foresee
dataset = foresee.Files(sys.argv[1:])
for rank in range(2):
    next(foresee.Job(dataset, 2, 1, rank=rank, world_size=2))
"""
    ran = script(code, *folder(4))
    said = "rank 0 of 2 runs alone: it reads what it needs by itself, nothing from other ranks\n"
    assert (ran.returncode, ran.stderr) == (0, said)


def test_a_throttle_slows_other_loaders_down(folder):
    (path,) = folder(1, size=20_000)
    slow = foresee.emulate(f"others-{os.getpid()}", mb_per_s={1: 0.1, 2: 0.2})
    began = time.monotonic()
    assert slow.read(path) == content(0, 20_000)
    slow.charge(10_000)
    assert time.monotonic() - began >= 0.29
    with pytest.raises(FileNotFoundError):
        slow.read(path.with_name("none"))


# What is registered first is called last: by then everything is closed, and threads have had time to say so.
LEFT_BEHIND = """
import atexit, sys, threading, time
atexit.register(time.sleep, 0.5)
import foresee
slow = foresee.emulate(sys.argv[1], mb_per_s=0.05)
job = foresee.Job(foresee.Files(sys.argv[3:], throttle=slow), 2, 50)
ways = {
    "job": lambda: list(job),
    "epoch": lambda: list(job.epoch(1)),
    "get": lambda: list(iter(job.get, None)),
    "progress": lambda: list(foresee.progress(job)),
}
threading.Thread(target=ways[sys.argv[2]], daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize("way", ["job", "epoch", "get", "progress"])
def test_a_daemon_thread_that_iterates_when_the_program_ends_says_nothing(script, folder, tmp_path, way):
    ran = script(LEFT_BEHIND, f"left-{tmp_path.name}", way, *folder(8, size=3_000), timeout_s=30)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_job_is_of_the_world_that_is_there_when_its_first_batch_is_asked_for(files, monkeypatch):
    dataset = files(40)
    with foresee.Job(dataset, 4, 2) as job:
        assert (job.rank, job.world_size, job.steps_per_epoch, len(job)) == (0, 1, 10, 20)
        state = job.state_dict()
        copy = pickle.loads(pickle.dumps(job))
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with foresee.Job(dataset, 4, 2, rank=1, world_size=2) as other:
            expected = rest(other)
        assert (job.rank, job.world_size, job.steps_per_epoch) == (1, 2, 5) and state["global_batch"] == 4
        first = list(next(job).indices)
        monkeypatch.setenv("RANK", "0")
        assert job.rank == 1 and first + rest(job) == expected
    monkeypatch.setenv("RANK", "1")
    assert rest(copy) == expected


def test_a_seed_that_is_made_is_that_of_the_world(files, monkeypatch):
    from foresee import _launch

    jobs = [foresee.Job(files(10), 2, 1, seed=None) for _ in range(2)]
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert [job.seed for job in jobs] == [_launch.make_seed(2)] * 2
