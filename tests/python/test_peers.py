"""Where ranks meet, by what launchers leave in the environment; and ranks that do, without torch."""

import collections
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import foresee
import pytest
from foresee import _peers
from many import ORIGINS

PACKAGE = Path(foresee.__file__).parents[1]
SETTINGS = {"port": None, "secret": None}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu5", "gpu5"),
        ("gpu5,gpu7", "gpu5"),
        ("node[01-03,07],gpu5", "node01"),
        ("node[7,9]", "node7"),
        ("r[1-2]n[03,07-09]", "r1n03"),
        ("node-a[1-2]-ib", "node-a1-ib"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list_of_slurm(nodes, first):
    assert _peers.first_host(nodes) == first


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, ("10.0.0.1", 29501)),
        ({"MASTER_ADDR": "10.0.0.1"}, ("10.0.0.1", 29501)),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "1000"}, ("127.0.0.1", 1001)),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "65535"}, ("127.0.0.1", 65534)),
        ({"MASTER_ADDR": "::1", "MASTER_PORT": "1000"}, ("::1", 1001)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, ("127.0.0.1", 2)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, ("a", 2)),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "1234567", "SLURM_STEP_NODELIST": "n[3-4]"},
            ("n3", 24567),
        ),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n3", "SLURM_STEP_NUM_NODES": "1"},
            ("127.0.0.1", 20007),
        ),
        # Only srun starts ranks.
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[3-4]"}, None),
        ({}, None),
    ],
)
def test_where_variables_say_that_ranks_meet(environment, expected):
    meeting = _peers.meeting_of(SETTINGS, 4, "launch", environment)
    assert (meeting and meeting[:2]) == expected


def test_a_configured_port_holds_also_where_nothing_else_is_known():
    assert _peers.meeting_of({**SETTINGS, "port": 9}, 4, "", {"MASTER_ADDR": "a", "MASTER_PORT": "1"})[:2] == ("a", 9)
    assert _peers.meeting_of({**SETTINGS, "port": 9}, 4, "", {})[:2] == ("127.0.0.1", 9)


def test_a_restart_is_another_launch():
    once = {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert _peers.launch_id(once) != _peers.launch_id({**once, "TORCHELASTIC_RESTART_COUNT": "1"})
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    assert _peers.launch_id(step) != _peers.launch_id({**step, "SLURM_RESTART_COUNT": "1"})
    assert _peers.launch_id({"MASTER_ADDR": "a", "MASTER_PORT": "1"}) == "a:1"


RANK = """
import hashlib, json, sys, time
import foresee
config = json.loads(sys.argv[1])
with foresee.Job(foresee.Files(sys.argv[2:]), 4, 3, seed=1, config=config) as job:
    epochs = []
    for epoch in range(3):
        epochs.append([[int(index), bytes(data)[0]] for batch in job.epoch(epoch) for index, data in zip(batch.indices, batch.data)])
    stats = job.stats()
print(json.dumps({"epochs": epochs, "stats": stats}))
"""


def free_port():
    """One that is free now; the next one is taken, so that it must be too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture
def ranks(tmp_path):
    """Starts ranks in processes of their own; ends those that a test leaves behind."""
    started = []

    def start(code, *args, world=2, **variables):
        script = tmp_path / "rank.py"
        script.write_text(code)
        for rank in range(world):
            env = {**os.environ, "PYTHONPATH": str(PACKAGE), "RANK": str(rank), "WORLD_SIZE": str(world), **variables}
            started.append(
                subprocess.Popen(
                    [sys.executable, script, *map(str, args)],
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    encoding="utf-8",
                )
            )
        return started

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate()


def ended(started, timeout_s=60):
    told = [one.communicate(timeout=timeout_s) for one in started]
    for one, (_, err) in zip(started, told, strict=True):
        assert one.returncode == 0, err
    return [(json.loads(out), err) for out, err in told]


def memory(samples):
    return {"tier": [{"kind": "memory", "capacity": samples * 1000}]}


def launch():
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


@pytest.mark.parametrize("transport", ORIGINS)
def test_ranks_of_a_plain_environment_serve_each_other(ranks, folder, transport):
    paths = folder(40, 1000)
    told = ended(ranks(RANK, json.dumps(memory(20)), *paths, **launch(), FORESEE_PEERS_TRANSPORT=transport))
    for epoch in range(3):
        got = [pair for one, _ in told for pair in one["epochs"][epoch]]
        assert collections.Counter(index for index, _ in got) == collections.Counter(range(40))
        assert all(paths[index].read_bytes()[0] == first for index, first in got)
    assert [err for _, err in told] == ["", ""]
    assert sum(one["stats"]["source_bytes"] for one, _ in told) == 40_000
    assert all(one["stats"]["origins"][ORIGINS[transport]]["bytes"] > 0 for one, _ in told)


def test_ranks_on_several_hosts_need_a_secret_and_are_told_how_to_give_one(ranks, folder):
    variables = {**launch(), "MASTER_ADDR": socket.gethostname() if socket.gethostname() != "localhost" else "0.0.0.0"}
    told = ended(ranks(RANK, json.dumps(memory(20)), *folder(8, 1000), **variables))
    for rank, (_, err) in enumerate(told):
        said = err.splitlines()
        assert said[0].startswith(f"rank {rank} of 2: no peers: there is no secret, which ranks on several hosts need")
        assert "set FORESEE_PEERS_SECRET to the same on all ranks" in said[0]
        assert said[1:] == [f"rank {rank} of 2 runs alone: it reads what it needs by itself, nothing from other ranks"]


def test_ranks_with_a_secret_that_can_be_guessed_are_refused(ranks, folder):
    (one, *_) = started = ranks(
        RANK, json.dumps(memory(20)), *folder(8, 1000), **launch(), FORESEE_PEERS_SECRET="short"
    )
    _, err = one.communicate(timeout=60)
    assert one.returncode == 1
    assert err.splitlines()[-1].startswith("foresee._errors.ConfigError: FORESEE_PEERS_SECRET: a secret of 5 bytes")
    assert len(started) == 2


def test_a_rank_that_waits_for_others_hears_ctrl_c(ranks, folder):
    code = RANK.replace("import foresee\n", "import os, foresee\nif os.environ['RANK'] == '1': sys.exit()\n")
    one, _ = ranks(code, json.dumps(memory(20)), *folder(8, 1000), **launch())
    time.sleep(2)
    began = time.monotonic()
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and time.monotonic() - began < 5


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(ranks, folder):
    code = RANK.replace("import foresee\n", "import os, foresee\nif os.environ['RANK'] == '1': sys.exit(print('{}'))\n")
    config = {**memory(8), "peers": {"patience": "1 s"}}
    (told, err), _ = ended(ranks(code, json.dumps(config), *folder(8, 1000), **launch()))
    assert "(missing: rank 1)" in err and "this one goes on alone" in err
    assert [len(epoch) for epoch in told["epochs"]] == [4, 4, 4]


def test_a_job_without_a_tier_or_with_peers_switched_off_meets_nobody(ranks, folder):
    paths = folder(8, 1000)
    for config, variables in (({}, {}), (memory(20), {"FORESEE_PEERS_TRANSPORT": "none"})):
        started = ranks(RANK, json.dumps(config), *paths, **launch(), **variables)
        for _, err in ended(started[-2:]):
            assert err.count("\n") == 1 and "runs alone" in err


def test_a_child_that_was_forked_has_no_peers(ranks, folder):
    code = """
import json, os, sys
import foresee
job = foresee.Job(foresee.Files(sys.argv[2:]), 4, 2, seed=1, config=json.loads(sys.argv[1]))
first = next(job)
if (child := os.fork()) == 0:
    left = sum(len(batch.data) for batch in job)
    os._exit(0 if left == 36 else 1)
_, status = os.waitpid(child, 0)
left = sum(len(batch.data) for batch in job)
job.close()
print(json.dumps([left, os.waitstatus_to_exitcode(status)]))
"""
    told = ended(ranks(code, json.dumps(memory(20)), *folder(40, 1000), **launch()))
    assert [one for one, _ in told] == [[36, 0], [36, 0]]
