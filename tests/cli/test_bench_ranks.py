"""`foresee bench --ranks`: what ranks read of the source by the kernel's account, under the policies that keep anything."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

RANKS, SAMPLES, SIZE, EPOCHS = 4, 320, 3000, 3
READ = re.compile(
    r"(?:read|readv|pread64)\(\d+<[^>]*/dataset/[^>]*>.*= (\d+)$|<\.\.\. (?:read|readv|pread64) resumed>.*= (\d+)$"
)
BEGUN = re.compile(r"^(\d+) +(?:read|readv|pread64)\(\d+<[^>]*/dataset/[^>]*>.*<unfinished \.\.\.>$")
LINE = re.compile(r"^(\d+) +")


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset" / "class"
    folder.mkdir(parents=True)
    for sample in range(SAMPLES):
        (folder / f"{sample:04}.jpg").write_bytes(bytes([sample % 251]) * SIZE)
    return folder.parent


def read_bytes(log: Path) -> int:
    """Bytes of samples that were read by all processes, as strace saw it."""
    begun: Counter[str] = Counter()
    total = 0
    for text in log.read_text().splitlines():
        process = LINE.match(text)[1]
        if BEGUN.match(text):
            begun[process] += 1
        elif found := READ.search(text):
            whole, rest = found.groups()
            if whole is not None:
                total += int(whole)
            elif begun[process]:
                begun[process] -= 1
                total += int(rest)
    return total


def bench(foresee, dataset, tmp_path, policy):
    """The numbers of a run, and the source bytes by strace."""
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")
    log = tmp_path / f"strace-{policy}"
    trace = ("strace", "-f", "-y", "-s", "0", "-e", "trace=read,readv,pread64", "-o", str(log))
    memory = SAMPLES * SIZE * 51 // 50 // RANKS
    options = ("--ranks", str(RANKS), "--lockstep", "--batch", "8", "--epochs", str(EPOCHS), "--policy", policy)
    sizes = ("--staging", "1 MiB", "--memory", f"{memory} B")
    done = foresee("bench", dataset, *options, *sizes, "--json", prefix=trace)
    assert done.code == 0, done.stderr
    return json.loads(done.stdout), read_bytes(log)


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
