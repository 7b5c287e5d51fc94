"""Large files: fetched whole in the background while reads go on, and descriptors that are open move to the copies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import Runner, content, copier_process, needs_strace, rest, traced, until

HERE = Path(__file__).parent
# 2,000 for figures that are reported.
READERS = os.environ.get("FORESEE_RUN_READERS", "200")

# Reads a file in small pieces, each followed by some work; says what came from where by which inode the kernel shows.
SLOWLY = """
import hashlib, os, sys, time
digest = hashlib.sha256()
number = os.open(sys.argv[1], os.O_RDONLY)
while piece := os.read(number, 10_000):
    digest.update(piece)
    time.sleep(0.002)
print(digest.hexdigest(), os.readlink(f"/proc/self/fd/{number}"))
"""


def digest(path: Path) -> str:
    return subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout.split()[0]


def test_an_open_descriptor_moves_to_the_copy_once_that_is_complete(run_large, large):
    path = large / "0.rec"
    done = run_large(sys.executable, "-c", SLOWLY, path)
    found, where = done.stdout.split()
    assert (done.code, done.stderr, found) == (0, "", digest(path))
    assert where.startswith(str(run_large.cache.resolve()))
    assert done.stats["moved"] == 1 and done.copies == 1
    # It may be complete before the first read is made.
    assert done.source["bytes"] < 3_000_000
    assert done.source["bytes"] + done.tier()["bytes"] == 3_000_000


def test_reads_by_place_move_it_too(run_large, large):
    code = """
import os, sys, time
number = os.open(sys.argv[1], os.O_RDONLY)
for at in range(0, 3_000_000, 20_000):
    assert len(os.pread(number, 20_000, at)) == 20_000
    time.sleep(0.003)
"""
    done = run_large(sys.executable, "-c", code, large / "0.rec")
    assert done.code == 0 and done.stats["moved"] == 1 and done.tier()["reads"] > 0


def test_later_opens_get_the_copy(run_large, large):
    run_large(sys.executable, "-c", SLOWLY, large / "1.rec")
    again = run_large(sys.executable, "-c", SLOWLY, large / "1.rec")
    assert again.source["opens"] == 0 and again.stats["moved"] == 0 and again.source["bytes"] == 0


@pytest.mark.parametrize(
    "how",
    [
        "duplicated",
        "inherited",
        *(pytest.param(how, marks=pytest.mark.long) for how in ("locked", "made a stream", "not closed by exec")),
    ],
)
def test_what_others_may_count_on_stays_at_the_source(run_large, large, how):
    code = """
import fcntl, os, sys, time, subprocess
how = sys.argv[2]
number = os.open(sys.argv[1], os.O_RDONLY)
if how == "duplicated": os.dup(number)
if how == "locked": fcntl.flock(number, fcntl.LOCK_SH)
if how == "made a stream":
    import ctypes
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    libc.fdopen(number, b"r")
if how == "inherited":
    if os.fork() == 0: time.sleep(1.2); os._exit(0)
if how == "not closed by exec":
    import ctypes
    number = ctypes.CDLL(None).open(sys.argv[1].encode(), os.O_RDONLY)
end = time.monotonic() + 1
while time.monotonic() < end:
    assert os.read(number, 1000)
    time.sleep(0.001)
print(os.readlink(f"/proc/self/fd/{number}"))
"""
    done = run_large(sys.executable, "-c", code, large / "2.rec", how)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.strip() == str((large / "2.rec").resolve())
    assert done.stats["moved"] == 0


def test_the_place_is_shared_by_who_has_the_same_open_file(run_large, large):
    code = """
import os, sys, time
path, size = sys.argv[1], os.stat(sys.argv[1]).st_size
number = os.open(path, os.O_RDONLY)
os.read(number, 1000)
time.sleep(0.5)
second = os.dup(number)
assert os.lseek(second, 0, os.SEEK_CUR) == 1000
os.read(second, 500)
assert os.lseek(number, 0, os.SEEK_CUR) == 1500
if os.fork() == 0:
    os.read(number, 100)
    os._exit(0)
os.wait()
assert os.lseek(number, 0, os.SEEK_CUR) == 1600
"""
    done = run_large(sys.executable, "-c", code, large / "3.rec")
    assert (done.code, done.stderr) == (0, "")


def test_a_file_that_changed_since_it_was_opened_keeps_its_descriptor(run_large, large):
    code = """
import os, sys, time
path = sys.argv[1]
number = os.open(path, os.O_RDONLY)
with open(path, "r+b") as file: file.seek(2_000_000); file.write(b"CHANGED")
os.read(number, 1000)
time.sleep(0.7)
for _ in range(20): os.read(number, 1000); time.sleep(0.01)
assert os.pread(number, 7, 2_000_000) == b"CHANGED"
"""
    done = run_large(sys.executable, "-c", code, large / "4.rec")
    assert (done.code, done.stderr) == (0, "")
    assert done.stats["moved"] == 0


@needs_strace
def test_the_copying_process_reads_each_file_once_and_what_does_not_fit_not_at_all(run_large, large, tmp_path):
    code = """
import os, sys, time
for name in sorted(os.listdir(sys.argv[1])):
    number = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY)
    os.read(number, 1000)
    os.close(number)
time.sleep(1)
"""
    trace = tmp_path / "trace"
    done = run_large(sys.executable, "-c", code, large, quota="9100000B", trace=trace, timeout_s=60)
    assert done.code == 0 and done.copies == 3
    assert done.stats["skips"]["no room in the quota"] >= 3
    # strace follows the program and its copying process alike. Who copies has no descriptor but the program's.
    seen = traced(trace, large)
    assert seen.opens == 6
    # Which three of them fit is a matter of who comes first.
    assert (
        seen.bytes == 6 * 1000 + done.tier()["copied_bytes"] and 9_000_003 <= done.tier()["copied_bytes"] <= 9_000_012
    )


def is_sleep(process: subprocess.Popen) -> bool:
    """Whether a run has become its program: the copying process knows of it."""
    return Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n"


def test_the_copying_process_ends_with_its_last_run_and_keeps_no_stream(run_large, large):
    words = run_large.arguments()
    started = subprocess.run(
        [*words, "sh", "-c", "echo out; echo err >&2"], capture_output=True, timeout=30, check=True
    )
    # Whoever waits for the program's output does not wait for the copying process.
    assert (started.stdout, started.stderr) == (b"out\n", b"err\n")
    until(lambda: copier_process(run_large.cache) is None, "the copying process lives on")
    with subprocess.Popen([*words, "sleep", "60"]) as first, subprocess.Popen([*words, "sleep", "60"]) as second:
        until(lambda: is_sleep(first) and is_sleep(second), "the programs do not start")
        until(lambda: copier_process(run_large.cache) is not None, "there is no copying process")
        process = copier_process(run_large.cache)
        streams = {str(Path(f"/proc/{process}/fd/{number}").readlink()) for number in range(3)}
        first.kill()
        first.wait()
        time.sleep(1.0)
        alive = copier_process(run_large.cache)
        second.kill()
        second.wait()
    assert streams == {"/dev/null"} and alive == process
    until(lambda: copier_process(run_large.cache) is None, "the copying process lives on")
    assert not list((run_large.cache / "runs").iterdir())


def test_a_copying_process_that_is_killed_costs_copies_only(run_large, large):
    words = [*run_large.arguments(), sys.executable, "-c", SLOWLY, large / "0.rec"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        until(lambda: copier_process(run_large.cache) is not None, "there is no copying process")
        os.kill(copier_process(run_large.cache), signal.SIGKILL)
        found = program.communicate(timeout=60)[0].split()[0]
    assert (program.returncode, found) == (0, digest(large / "0.rec"))
    done = run_large(sys.executable, "-c", SLOWLY, large / "5.rec")
    assert done.stats["moved"] == 1


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("readers") / "readers"
    subprocess.run(["cc", "-O1", "-o", program, HERE / "readers.c", "-lpthread"], check=True)
    return program


def test_random_readers_read_no_wrong_byte_while_copies_complete(tmp_path, readers):
    source = tmp_path / "many"
    source.mkdir()
    for number in range(50):
        (source / f"{number}.rec").write_bytes(content(number, 3_000_000 + number))
    rest()
    done = Runner(source, tmp_path)(readers, source, "50", READERS, "1")
    print(f"{READERS} readers: {done.stats['moved']} descriptors moved, {done.copies} files copied")
    assert (done.code, done.stdout, done.stderr) == (0, "right\n", "")
    # How many descriptors moved depends on who is faster; that they do is tested above.
    assert done.copies > 0


def test_random_readers_read_on_when_the_cache_goes_away(run_large, large, readers):
    with subprocess.Popen([*run_large.arguments(), readers, large, "6", "150", "3"], stdout=subprocess.PIPE) as program:
        time.sleep(0.3)
        subprocess.run(["rm", "-rf", run_large.cache], check=False)
        out = program.communicate(timeout=60)[0]
    assert (program.returncode, out) == (0, b"right\n")


def test_random_readers_read_on_when_the_disk_is_full(large, tmp_path, readers):
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system")
    run = Runner(large, tmp_path)
    run.cache.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", run.cache], check=True)
    try:
        done = run(readers, large, "6", "60", "4")
        assert (done.code, done.stdout, done.stderr) == (0, "right\n", "")
        assert 0 < done.copies < 6
    finally:
        subprocess.run(["umount", "-l", run.cache], check=True)
