"""Ranks of a host share memory: no byte of a sample goes through a socket between them."""

import json
import re
import shutil

import pytest

SAMPLES, SIZE, RANKS, EPOCHS = 64, 40_000, 4, 3
#: What a call on a socket moved, as strace -y shows it, on one line or on two.
MOVED = re.compile(r"^(\d+) +\w+\(\d+<(?:socket|TCP|UNIX)[^>]*>.*= (\d+)$")
BEGUN = re.compile(r"^(\d+) +\w+\(\d+<(?:socket|TCP|UNIX)[^>]*>.*<unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>.*= (\d+)$")
CALLS = "trace=sendto,sendmsg,sendmmsg,recvfrom,recvmsg,recvmmsg,write,writev,read,readv,splice,sendfile"


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset" / "class"
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        (folder / f"{number:03}.jpg").write_bytes(number.to_bytes(4, "little") * (SIZE // 4))
    return folder.parent


def moved_by(log: str) -> list[int]:
    """Bytes of each call on a socket."""
    moved, begun = [], set()
    for line in log.splitlines():
        if found := MOVED.match(line):
            moved.append(int(found[2]))
        elif found := BEGUN.match(line):
            begun.add(found[1])
        elif (found := RESUMED.match(line)) and found[1] in begun:
            begun.discard(found[1])
            moved.append(int(found[2]))
    return moved


def bench(foresee, dataset, tmp_path, transport):
    """What the job said, and what went through sockets."""
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace: install Debian's package strace")
    log = tmp_path / f"strace-{transport}"
    kept = SAMPLES * SIZE * 102 // 100 // RANKS
    ran = foresee(
        *("bench", dataset, "--ranks", str(RANKS), "--epochs", str(EPOCHS), "--batch", "4"),
        *("--lockstep", "--memory", f"{kept} B", "--json"),
        env={"FORESEE_PEERS_TRANSPORT": transport, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        prefix=(strace, "-f", "-y", "-s", "0", "-e", CALLS, "-o", str(log)),
    )
    assert ran.code == 0, ran.stderr
    return json.loads(ran.stdout), moved_by(log.read_text())


def test_no_sample_goes_through_a_socket_between_ranks_of_a_host(foresee, dataset, tmp_path):
    said, moved = bench(foresee, dataset, tmp_path, "auto")
    origins = said["stats"]["origins"]
    assert origins["host_peer"]["bytes"] > 0
    assert "peer" not in origins or origins["peer"]["bytes"] == 0
    assert moved and max(moved) < SIZE
    # Requests, answers without a payload, what is gathered at the start, and reports at the end.
    assert sum(moved) < SAMPLES * SIZE // 4


def test_over_tcp_samples_do(foresee, dataset, tmp_path):
    said, moved = bench(foresee, dataset, tmp_path, "tcp")
    assert "host_peer" not in said["stats"]["origins"]
    # Each is sent and received.
    peers = said["stats"]["origins"]["peer"]["bytes"]
    assert sum(moved) > 2 * peers > SAMPLES * SIZE
