"""`foresee bench --ranks`: what ranks read of the source by the kernel's account, under the policies that keep anything."""

import json
import shutil

import pytest
from traced import read_bytes, strace

RANKS, SAMPLES, SIZE, EPOCHS = 4, 320, 3000, 3


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset" / "class"
    folder.mkdir(parents=True)
    for sample in range(SAMPLES):
        (folder / f"{sample:04}.jpg").write_bytes(bytes([sample % 251]) * SIZE)
    return folder.parent


def bench(foresee, dataset, tmp_path, policy):
    """The numbers of a run, and the source bytes by strace."""
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")
    log = tmp_path / f"strace-{policy}"
    trace = (*strace(), "-o", str(log))
    memory = SAMPLES * SIZE * 51 // 50 // RANKS
    options = ("--ranks", str(RANKS), "--lockstep", "--batch", "8", "--epochs", str(EPOCHS), "--policy", policy)
    sizes = ("--staging", "1 MiB", "--memory", f"{memory} B")
    done = foresee("bench", dataset, *options, *sizes, "--json", prefix=trace)
    assert done.code == 0, done.stderr
    return json.loads(done.stdout), read_bytes(log, "/dataset/").total()


def test_source_bytes_by_strace_are_those_reported_and_foresee_reads_the_fewest(foresee, dataset, tmp_path):
    by_policy = {policy: bench(foresee, dataset, tmp_path, policy) for policy in ("foresee", "nopfs", "lobster")}
    for policy, (numbers, traced) in by_policy.items():
        assert numbers["source_bytes"] == traced, policy
        assert sum(rank["samples"] for rank in numbers["ranks"]) == SAMPLES * EPOCHS
        assert len(numbers["ranks"]) == RANKS
    ours, least = by_policy["foresee"][1], SAMPLES * SIZE
    assert ours == least == by_policy["foresee"][0]["source_minimum_bytes"]
    # Its ranks choose each for itself: some samples are held twice, others by nobody.
    assert least < by_policy["nopfs"][1] < EPOCHS * least
    print({policy: round(traced / least, 3) for policy, (_, traced) in by_policy.items()})
