"""Files that somebody else changes while programs read them: nobody reads a wrong byte, or what a file was before it was opened."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from running import Runner, copier_process, rest

HERE = Path(__file__).parent
FILES = "16"
# Longer for figures that are reported.
SECONDS = float(os.environ.get("FORESEE_RUN_SECONDS", "3"))


@pytest.fixture(scope="module")
def changing(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("changing") / "changing"
    subprocess.run(["cc", "-O1", "-o", program, HERE / "changing.c"], check=True)
    return program


def kill_copier(run: Runner) -> None:
    if process := copier_process(run.cache):
        os.kill(process, signal.SIGKILL)


def remove_cache(run: Runner) -> None:
    # The last that is made before the program runs: a folder that goes before is said, and another story.
    if (run.cache / "copier.pid").exists():
        subprocess.run(["rm", "-rf", run.cache], check=False)


@pytest.fixture
def full_disk(tmp_path):
    """A cache folder with room for a few of the files."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system")
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "none", folder], check=True)
    yield folder / "cache"
    subprocess.run(["umount", "-l", folder], check=True)


def changed_and_read(changing: Path, tmp_path: Path, cache: Path | None = None, hazard=None, more: tuple = ()):
    """Readers under `foresee run`, and a writer who is not."""
    source, state = tmp_path / "source", tmp_path / "state"
    source.mkdir()
    subprocess.run([changing, "make", source, state, FILES], check=True)
    rest()
    run = Runner(source, tmp_path)
    run.cache = cache or run.cache
    length = str(int(SECONDS * 1000))
    over = threading.Event()

    def harm() -> None:
        while not over.wait(0.3):
            hazard(run)

    harming = threading.Thread(target=harm if hazard else over.wait)
    with subprocess.Popen([changing, "write", source, state, FILES, length, "1"], stdout=subprocess.PIPE) as writer:
        harming.start()
        try:
            done = run(changing, "read", source, state, FILES, length, "2", "8", more=more, timeout_s=SECONDS + 120)
        finally:
            over.set()
            harming.join()
        changes = writer.communicate(timeout=60)[0].decode().strip()
    print(f"{changes}, {done.stats.get('moved')} moved, {done.copies if done.stats else '?'} copies")
    assert (done.code, done.stdout, done.stderr) == (0, "right\n", "")
    assert writer.returncode == 0
    return run, done, state


def test_readers_see_each_change_that_was_closed_before_they_opened_a_file(changing, tmp_path):
    run, done, state = changed_and_read(changing, tmp_path)
    assert done.copies > 0 and done.tier()["opens"] > 0
    # And what was copied meanwhile is what the files are now.
    again = run(changing, "read", run.source, state, FILES, "1000", "3", "4")
    assert again.stdout == "right\n" and again.tier()["opens"] > 0


@pytest.mark.long
@pytest.mark.parametrize("hazard", [kill_copier, remove_cache])
def test_also_when_the_cache_is_harmed(changing, tmp_path, hazard):
    changed_and_read(changing, tmp_path, hazard=hazard)


@pytest.mark.long
def test_also_when_the_disk_is_full(changing, tmp_path, full_disk):
    _, done, _ = changed_and_read(changing, tmp_path, cache=full_disk)
    assert done.stats["skips"]["no room above the free-space floor"] + done.stats["skips"]["failed"] > 0


@pytest.mark.long
def test_also_when_the_cache_is_verified_and_cleared(changing, tmp_path):
    def keep(run: Runner) -> None:
        for action in ("verify", "clear"):
            subprocess.run([run.command, "cache", action, run.cache], capture_output=True, check=False)
            time.sleep(0.1)

    changed_and_read(changing, tmp_path, hazard=keep)
