"""Files that change between two jobs: what a tier on disk holds of them is not what they are."""

import json
import os
import subprocess
import time

import pytest

SIZE, SAMPLES = 3000, 12
#: What was read from a file sooner than that after it had changed is never trusted.
RESTED_S = 2.1


@pytest.fixture
def place(tmp_path):
    """A dataset that has rested, and a configuration with one tier on disk."""
    for sample in range(SAMPLES):
        path = tmp_path / "data" / "class" / f"{sample:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([sample]) * SIZE)
    (tmp_path / "foresee.toml").write_text(
        f'[[tier]]\nkind = "disk"\npath = "{tmp_path / "cache"}"\ncapacity = "1 MB"\nfree_space_floor = 0\n'
        '[catalog]\npath = ""\n'
    )
    time.sleep(RESTED_S)
    return tmp_path


def stats(foresee, place, name=None):
    """What a job counts; on a host of that name, if one is given."""
    prefix = ("unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh") if name else ()
    ran = foresee("bench", place / "data", "--batch", "4", "--config", place / "foresee.toml", "--json", prefix=prefix)
    assert ran.code == 0, ran.stderr
    return json.loads(ran.stdout)["stats"]


def rewrite_with_the_same_times(path):
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"x" * SIZE)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


def test_a_file_rewritten_in_place_is_read_anew_whatever_the_host_is_called_now(place, foresee):
    can = subprocess.run(["unshare", "--uts", "hostname", "elsewhere"], check=False, capture_output=True, text=True)
    if can.returncode:
        pytest.skip(f"this host cannot be given another name: {can.stderr.strip()}")
    assert stats(foresee, place)["stale"] == 0
    assert stats(foresee, place, "elsewhere")["stale"] == 0
    rewrite_with_the_same_times(place / "data" / "class" / "005.jpg")
    assert stats(foresee, place, "elsewhere")["stale"] == 1
