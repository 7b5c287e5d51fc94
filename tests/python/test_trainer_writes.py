"""The trainer's thread writes no file of a tier: it would wait for the disk."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import PACKAGE

RANKS = 4
RUN = """
import json, sys, threading, foresee
options = json.loads(sys.argv[1])
print(threading.get_native_id(), flush=True)
with foresee.Job(foresee.Files(sys.argv[2:]), **options) as job:
    for batch in job:
        for data in batch.data:
            memoryview(data)[0]
    print(json.dumps(job.stats()))
"""

# Calls that write to a file that is open, as strace -y shows them, and the path of the file.
WRITE = re.compile(
    r"^(\d+) +(?:p?writev?2?|pwrite64|ftruncate|fallocate|fsync|fdatasync|copy_file_range)\(\d+<([^>]*)>"
)
# Calls that change a file by its name.
CHANGE = re.compile(r'^(\d+) +(?:rename|renameat2?|unlink|unlinkat|truncate)\([^"]*"([^"]*)"')


def writers(log: str, cache: str) -> dict[str, int]:
    """How often each thread changed a file below a folder."""
    found: dict[str, int] = {}
    for line in log.splitlines():
        match = WRITE.match(line) or CHANGE.match(line)
        if match and match[2].startswith(cache):
            found[match[1]] = found.get(match[1], 0) + 1
    return found


def test_the_trainers_thread_writes_no_file_of_a_tier(folder, tmp_path):
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("no strace: install Debian's package strace")
    size, samples = 2000, 240
    paths = folder(samples, size)
    cache = tmp_path / "cache"
    tier = {"kind": "disk", "path": str(cache), "capacity": size * samples * 30 // 100 // RANKS}
    options = {"batch_size": 4, "epochs": 5, "seed": 3, "config": {"tier": [tier]}}
    script = tmp_path / "script.py"
    script.write_text(RUN)
    calls = "write,writev,pwrite64,pwritev,pwritev2,ftruncate,fallocate,fsync,fdatasync,copy_file_range"
    names = "rename,renameat,renameat2,unlink,unlinkat,truncate"
    ranks = []
    for rank in range(RANKS):
        place = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS}
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), **{key: str(value) for key, value in place.items()}}
        prefix = [strace, "-f", "-y", "-s", "0", "-e", f"trace={calls},{names}", "-o", str(tmp_path / f"strace{rank}")]
        command = [*prefix, sys.executable, str(script), json.dumps(options), *map(str, paths)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=120)
        if "ptrace" in err.lower():
            pytest.skip(f"strace may not: {err.splitlines()[0]}")
        assert process.returncode == 0, err
        trainer, stats = out.splitlines()
        assert json.loads(stats)["samples"] == samples * 5 // RANKS
        wrote = writers((tmp_path / f"strace{rank}").read_text(), str(cache))
        assert sum(wrote.values()) > samples // RANKS, "a tier was written to"
        assert trainer not in wrote
