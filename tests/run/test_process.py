"""How programs run under `foresee run`: exit status, signals, what cannot be preloaded, forks, many at once."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import Runner, copier_process, rest, until

# 3,000 for figures that are reported.
FORKS = os.environ.get("FORESEE_RUN_FORKS", "300")


@pytest.mark.parametrize("more", [(), ("--stats",)])
def test_exit_status_is_the_programs(run, more):
    for code in (0, 1, 3, 255):
        done = subprocess.run(
            [*run.arguments("1GiB", *more), "sh", "-c", f"exit {code}"], capture_output=True, check=False
        )
        assert done.returncode == code
    done = subprocess.run(
        [*run.arguments("1GiB", *more), "sh", "-c", "kill -TERM $$"], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("more", [(), ("--stats",)])
def test_signals_reach_the_program(run, more, tmp_path):
    ready = tmp_path / "ready"
    code = f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
pathlib.Path({str(ready)!r}).touch()
time.sleep(30)
"""
    with subprocess.Popen(
        [*run.arguments("1GiB", *more), sys.executable, "-c", code], stderr=subprocess.DEVNULL
    ) as program:
        until(ready.exists, "the program did not start")
        program.send_signal(signal.SIGUSR1)
        assert program.wait(timeout=10) == 7


def test_the_programs_streams_are_its_own(run):
    done = run("sh", "-c", "cat; echo err >&2", stdin=None, input="words\n")
    assert (done.stdout, done.stderr) == ("words\n", "err\n")


def test_a_program_that_is_not_there(run):
    done = run("no-such-program")
    assert done.code == 127 and done.stderr.count("\n") == 1 and "no-such-program" in done.stderr
    done = run(run.source)
    assert done.code == 126


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--source", "/no/such/folder", "--cache", "c", "--quota", "1GB"], "/no/such/folder"),
        (["--source", ".", "--cache", "c"], "--quota"),
        (["--source", ".", "--cache", "c", "--quota", "much"], "is not a size"),
        (["--source", ".", "--cache", "c", "--cache", "d", "--quota", "1GB"], "give a --quota for each --cache"),
        (["--source", ".", "--cache", "c", "--quota", "1GB", "--free-floor", "x"], "--free-floor"),
        (["--source", ".", "--cache", "c", "--quota", "1GB", "--validate", "never"], "--validate"),
        (["--source", "/", "--cache", "c", "--quota", "1GB"], "everything"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_run(run, tmp_path, words, said):
    done = subprocess.run(
        [run.command, "run", *words, "--", "touch", "ran"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_cache_folder_that_is_somebodys_is_refused_and_the_program_runs(run, tmp_path):
    run.cache.mkdir()
    (run.cache / "thesis.tex").write_text("x")
    done = run("cat", run.source / "class0" / "0000.bin")
    assert done.code == 0 and "is not empty" in done.stderr and done.stderr.count("\n") == 1
    assert [each.name for each in run.cache.iterdir()] == ["thesis.tex"]
    run.cache = run.source / "cache"
    done = run("cat", run.source / "class0" / "0000.bin")
    assert done.code == 0 and "is in the source" in done.stderr


def test_what_is_preloaded_already_stays_first(run, tmp_path):
    other = tmp_path / "other.so"
    (tmp_path / "other.c").write_text("int other_is_here = 1;\n")
    subprocess.run(["cc", "-shared", "-o", other, tmp_path / "other.c"], check=True)
    env = {**os.environ, "LD_PRELOAD": str(other)}
    done = run("sh", "-c", "echo $LD_PRELOAD", env=env)
    first, second = done.stdout.strip().split(":")
    assert first == str(other) and second.endswith("libforesee_preload.so")


def built(folder: Path, *options: str) -> Path:
    source = folder / "program.c"
    source.write_text(
        '#include <stdio.h>\nint main(int c, char **w) { FILE *f = fopen(w[1], "r"); int n = 0;'
        ' while (f && fgetc(f) != EOF) n++; printf("%d\\n", n); return 5; }\n'
    )
    program = folder / "program"
    subprocess.run([*options, "-o", program, source], check=True)
    return program


def test_a_static_program_runs_from_the_source_and_that_is_said(run, tmp_path):
    program = built(tmp_path, "cc", "-static")
    done = run(program, run.source / "class0" / "0000.bin")
    assert (done.code, done.stdout) == (5, "1000\n")
    assert "is linked statically" in done.stderr and done.stderr.count("\n") == 1
    # Started by another program, nobody can see it; it reads the source.
    done = run("sh", "-c", f"{program} {run.source}/class0/0000.bin")
    assert (done.code, done.stdout, done.stderr) == (5, "1000\n", "")


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl: apt-get install musl-tools")
def test_a_musl_program_runs_from_the_source_and_that_is_said(run, tmp_path):
    program = built(tmp_path, "musl-gcc")
    done = run(program, run.source / "class0" / "0000.bin")
    assert (done.code, done.stdout) == (5, "1000\n")
    assert "not by glibc's" in done.stderr and done.stderr.count("\n") == 1
    done = run("sh", "-c", f"{program} {run.source}/class0/0000.bin")
    assert (done.code, done.stdout, done.stderr) == (5, "1000\n", "")


def test_a_setuid_program_runs_from_the_source_and_that_is_said(run, tmp_path):
    program = built(tmp_path, "cc")
    program.chmod(0o4755)
    done = run(program, run.source / "class0" / "0000.bin")
    assert (done.code, done.stdout) == (5, "1000\n")
    assert "another user's rights" in done.stderr


def test_an_emptied_environment_runs_from_the_source(run):
    path = run.source / "class0" / "0000.bin"
    done = run("env", "-i", "/usr/bin/md5sum", path)
    assert (done.code, done.stdout) == (0, run.plainly("md5sum", path).stdout) and done.copies == 0


def test_forks_under_load_neither_hang_nor_leak(run):
    """Threads open and copy files all the time while the process forks; each child opens a file, too."""
    code = """
import os, sys, threading
paths = [os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names]
want = {path: open(path, "rb").read() for path in paths[:5]}
over = False
def reads(seed):
    turn = seed
    while not over:
        number = os.open(paths[turn % len(paths)], os.O_RDONLY)
        os.read(number, 100)
        os.close(number)
        turn += 7
threads = [threading.Thread(target=reads, args=[seed]) for seed in range(3)]
for thread in threads: thread.start()
bad = 0
for turn in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        path = paths[turn % 5]
        number = os.open(path, os.O_RDONLY)
        good = os.read(number, 1 << 20) == want[path]
        os.close(number)
        open_now = [name for name in os.listdir("/proc/self/fd")]
        inner = [os.readlink(f"/proc/self/fd/{name}") for name in open_now if os.path.exists(f"/proc/self/fd/{name}")]
        os._exit(0 if good and not any(".part" in each for each in inner) else 1)
    bad += os.waitpid(child, 0)[1] != 0
over = True
for thread in threads: thread.join()
sys.exit(bad != 0)
"""
    total = sum(path.stat().st_size for path in run.source.rglob("*.bin"))
    # Half of the files do not fit, so that there is something to be tried at each open.
    done = run(sys.executable, "-W", "ignore", "-c", code, run.source, FORKS, quota=f"{total // 2}B", timeout_s=600)
    assert (done.code, done.stderr) == (0, "")


def test_processes_on_one_cold_cache_copy_each_file_once(run):
    code = """
import os, sys
paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names)
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        for path in paths:
            with open(path, "rb") as file: assert len(file.read()) == os.stat(path).st_size
        os._exit(0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""
    done = run(sys.executable, "-c", code, run.source)
    assert (done.code, done.stderr) == (0, "")
    assert done.copies == 40
    assert len([each for each in (run.cache / "files").rglob("*") if each.is_file()]) == 40
    assert not list(run.cache.rglob("*.part"))


def test_what_a_killed_process_reserved_is_free_again(run):
    code = "import os, sys\nfor _ in range(3): open(sys.argv[1]).close()\nos.kill(os.getpid(), 9)"
    run(sys.executable, "-c", code, run.source / "class0" / "0000.bin")
    claim = run.cache / "files" / "ab" / ("ab" * 16 + ".part")
    claim.write_bytes(b"half")
    ledger = (run.cache / "ledger").read_bytes()
    # As a process leaves it that was killed between reserving and publishing: 5,000 bytes, one under way.
    used = int.from_bytes(ledger[:8], "little")
    with (run.cache / "ledger").open("r+b") as file:
        file.write((used + 5000).to_bytes(8, "little") + (1).to_bytes(8, "little"))
    until(lambda: not (run.cache / "copier").exists(), "the copying process lives on")
    run("true")
    ledger = (run.cache / "ledger").read_bytes()
    assert int.from_bytes(ledger[:8], "little") == used == 1000 and ledger[8:16] == bytes(8)
    assert not claim.exists()


def test_a_claim_of_a_killed_process_does_not_keep_others_from_copying(run):
    """A claim under a file's own key, of nobody, is taken away, and the file is copied by the first or the second that wants it."""
    path = run.source / "class0" / "0000.bin"
    run("cat", path)
    copy = next(each for each in (run.cache / "files").rglob("*") if each.is_file())
    # While another run uses the folder, nobody tidies it up at the start of one.
    with subprocess.Popen([*run.arguments(), "sleep", "60"]) as other:
        until(lambda: copier_process(run.cache) is not None, "there is no copying process")
        copy.rename(copy.with_suffix(".part"))
        rest()
        ran = [run("md5sum", path) for _ in range(2)]
        other.kill()
    plain = run.plainly("md5sum", path)
    assert [each.stdout for each in ran] == [plain.stdout] * 2
    assert sum(each.copies for each in ran) == 1


def test_the_cache_of_another_user_is_of_no_use(source, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    run = Runner(source, tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            pytest.skip("other users cannot come here")
    done = run("setpriv", "--reuid", "65534", "--clear-groups", "cat", source / "class0" / "0000.bin")
    assert done.code == 0 and done.copies == 0


def test_the_time_to_the_first_read_is_told(run):
    done = run("sh", "-c", f"sleep 0.3; cat {run.source}/class0/0000.bin")
    assert 0.3 <= done.stats["first_read_s"] <= done.stats["took_s"]
    started = time.monotonic()
    assert run("true").stats["first_read_s"] is None and time.monotonic() - started < 30


def test_the_library_needs_no_newer_c_library_than_2_28(run):
    """What a program brings may be older than what the library was linked with."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf: install Debian's package binutils")
    library = run.command.parent / "libforesee_preload.so"
    shown = subprocess.run(["readelf", "-V", "-W", library], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"Name: GLIBC_([\d.]+)", shown)}
    assert versions and max(versions) <= (2, 28)
