"""`foresee cache` on the folders of `foresee run`, and what becomes of folders that were left in disorder."""

import json
import os
import subprocess
import sys

import pytest
from running import content, copier_process, rest, until
from test_small import read_all

NOBODY = 65534


def kept(run, action: str, code: int = 0, *more: str) -> dict:
    words = [run.command, "cache", action, run.cache, "--json", *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def copies(run) -> list:
    return sorted(path for path in (run.cache / "files").rglob("*") if path.is_file())


def test_status_verify_and_clear(run, source):
    run(*read_all(source))
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    until(lambda: copier_process(run.cache) is None, "the copying process lives on")
    status = kept(run, "status")
    (part,) = status["parts"]
    assert (status["kind"], status["foreign"], part["in_use_by"]) == ("copies", [], None)
    assert (part["entries"], part["held_bytes"], status["held_bytes"]) == (40, total, total)
    assert part["disk_bytes"] >= total
    verified = kept(run, "verify")
    assert verified["whole"] and verified["parts"][0]["checked"] == 40
    (run.cache / "thesis.tex").write_text("mine")
    cleared = kept(run, "clear")
    assert cleared["freed_bytes"] == part["disk_bytes"] and cleared["foreign"] == ["thesis.tex"]
    assert kept(run, "status")["held_bytes"] == 0 and (run.cache / "thesis.tex").read_text() == "mine"
    # It is still a cache, with room for all.
    again = run(*read_all(source), quota=f"{total}B")
    assert again.copies == 40


def test_verify_removes_what_is_damaged_since_programs_compare_nothing(run, source):
    plain = run.plainly(*read_all(source))
    run(*read_all(source))
    copy = copies(run)[0]
    held = copy.read_bytes()
    copy.chmod(0o600)
    copy.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    verified = kept(run, "verify", 1)
    assert verified["parts"][0]["damaged"] == [copy.name] and not copy.exists()
    done = run(*read_all(source))
    assert (done.stdout, done.copies) == (plain.stdout, 1)
    assert kept(run, "verify")["whole"]


def test_status_names_the_copying_process_and_text_says_the_same(run, source):
    run("cat", source / "class0" / "0000.bin")
    until(lambda: copier_process(run.cache) is None, "the copying process lives on")
    with subprocess.Popen([*run.arguments(), "sleep", "60"]) as other:
        until(lambda: copier_process(run.cache) is not None, "there is no copying process")
        process = copier_process(run.cache)
        user = kept(run, "status")["parts"][0]["in_use_by"]
        said = subprocess.run([run.command, "cache", "status", run.cache], capture_output=True, text=True, check=True)
        # What programs use can go: they read the source again.
        cleared = kept(run, "clear")
        other.kill()
    assert user == str(process)
    assert f"process {user}" in said.stdout and "files" in said.stdout
    assert cleared["parts"][0]["left"] is None and not copies(run)


# Four processes read all files in orders of their own until a file says that it is enough, and compare.
READERS = """
import os, pathlib, random, sys
folder, enough = pathlib.Path(sys.argv[1]), sys.argv[2]
want = {path: path.read_bytes() for path in sorted(folder.rglob("*.bin"))}
children = []
for seed in range(4):
    child = os.fork()
    if child == 0:
        order, bad = list(want), 0
        while not os.path.exists(enough):
            random.Random(seed).shuffle(order)
            bad += sum(path.read_bytes() != want[path] for path in order)
        os._exit(bad != 0)
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def test_a_folder_is_checked_and_emptied_while_programs_fill_and_read_it(run, source, tmp_path):
    enough = tmp_path / "enough"
    words = [*run.arguments(), sys.executable, "-c", READERS, source, enough]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as readers:
        until(lambda: (run.cache / "files").exists() and copies(run), "nothing was copied")
        freed, checked = 0, 0
        for turn in range(12):
            if turn % 3 == 2:
                freed += kept(run, "clear")["freed_bytes"]
            else:
                # Copies come and go meanwhile; none is taken for damaged.
                verified = kept(run, "verify")
                assert verified["whole"]
                checked += verified["parts"][0]["checked"]
        enough.touch()
        said = readers.communicate(timeout=60)
    assert (readers.returncode, *said) == (0, "", "")
    assert freed > 0 and checked > 0
    until(lambda: copier_process(run.cache) is None, "the copying process lives on")
    # What the ledger says is what is there: a cache of just this size takes all files.
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    held = sum(path.stat().st_size for path in copies(run))
    assert int.from_bytes((run.cache / "ledger").read_bytes()[:8], "little") == held
    done = run(*read_all(source), quota=f"{total}B")
    assert done.source["opens"] == 0 and kept(run, "verify")["whole"]


def test_a_folder_that_others_may_write_to_needs_trust(run, source):
    run("cat", source / "class0" / "0000.bin")
    run.cache.chmod(0o777)
    words = [run.command, "cache", "status", run.cache]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and "--trust-folder" in done.stderr
    assert kept(run, "status", 0, "--trust-folder")["parts"][0]["entries"] == 1


def test_copies_that_did_not_reach_the_disk_before_the_machine_went_down_are_read_anew(run, source):
    plain = run.plainly(*read_all(source))
    run(*read_all(source))
    until(lambda: copier_process(run.cache) is None, "the copying process lives on")
    lost, zeroed = copies(run)[:2]
    lost.chmod(0o600)
    lost.write_bytes(b"")
    zeroed.chmod(0o600)
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    # The start of the machine that the folder was used on last is a word of the ledger.
    with (run.cache / "ledger").open("r+b") as ledger:
        ledger.seek(6 * 8)
        ledger.write(b"another!")
    done = run(*read_all(source))
    assert (done.stdout, done.copies) == (plain.stdout, 2)
    assert kept(run, "verify")["whole"]


def test_what_files_were_makes_room_for_what_they_are(run, source):
    """As when a storage is mounted anew and has another number: all copies are of no use, and the cache is full of them."""
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    run(*read_all(source), quota=f"{total}B")
    for path in source.rglob("*.bin"):
        path.write_bytes(path.read_bytes()[::-1])
    rest()
    done = run(*read_all(source), quota=f"{total}B")
    assert (done.stdout, done.copies) == (run.plainly(*read_all(source)).stdout, 40)
    streams = run("sh", "-c", f"cat {source}/*/* >/dev/null; md5sum {source}/*/*", quota=f"{total}B")
    assert streams.source["opens"] == 0


def test_what_was_left_in_a_second_cache_is_tidied_once_nobody_uses_it(run, source):
    quotas = ["1000B", "1GiB"]
    run(*read_all(source), quota=quotas)
    until(lambda: copier_process(run.cache) is None, "the copying process lives on")
    second = run.folder / "cache1"
    half = second / "files" / "ab" / ("ab" * 16 + ".part")
    half.write_bytes(b"half")
    used = int.from_bytes((second / "ledger").read_bytes()[:8], "little")
    with (second / "ledger").open("r+b") as ledger:
        ledger.write((used + 5000).to_bytes(8, "little") + (1).to_bytes(8, "little"))
    run("true", quota=quotas)
    assert not half.exists()
    assert int.from_bytes((second / "ledger").read_bytes()[:8], "little") == used


def test_what_is_told_in_a_file_is_as_good_and_the_command_line_wins(run, source, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        f'source = "{source}"\nfree_floor = "1 MiB"\ncopy_threads = 3\n[[cache]]\npath = "{tmp_path / "told"}"\nquota = "1 GiB"\n'
    )

    def ran(*more: str) -> dict:
        stats = tmp_path / "stats.json"
        words = [run.command, "run", "--config", file, "--stats-json", stats, *more, "--", *read_all(source)]
        subprocess.run(words, check=True, capture_output=True)
        return json.loads(stats.read_text())

    assert ran()["origins"][1]["copies"] == 40 and (tmp_path / "told" / "ledger").exists()
    assert ran("--cache", str(tmp_path / "given"), "--quota", "1kB")["origins"][1]["copies"] == 1
    file.write_text('[[cache]]\npath = "x"\n')
    for text, said in (('[[cache]]\npath = "x"\n', "quota: missing"), ("", "--source")):
        file.write_text(text)
        words = [run.command, "run", "--config", file, "--", "touch", tmp_path / "ran"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_reads_that_a_copy_cannot_serve_leave_it_alone(run, source):
    """Past the page cache, or of a file that is made if it is not there."""
    path = source / "class0" / "0000.bin"
    run("cat", path)
    code = """
import os, sys
for flags in (os.O_SYNC, os.O_CREAT, os.O_DIRECT):
    try: os.close(os.open(sys.argv[1], os.O_RDONLY | flags))
    except OSError: assert flags == os.O_DIRECT
"""
    done = run(sys.executable, "-c", code, path)
    assert (done.code, done.stats["removed"], len(copies(run))) == (0, 0, 1)


@pytest.mark.parametrize("way", ["pass_fds", "stdin"])
def test_a_started_program_shares_the_place_in_a_large_file(run_large, large, way):
    """Python starts programs by vfork, which nobody sees; the descriptor must not move away from the child's."""
    code = """
import os, subprocess, sys, time
number = os.open(sys.argv[1], os.O_RDONLY)
code = "import os, sys, time; time.sleep(1.2); os.read(int(sys.argv[1]), 500)"
given = {"pass_fds": [number]} if sys.argv[2] == "pass_fds" else {"stdin": number}
told = number if sys.argv[2] == "pass_fds" else 0
child = subprocess.Popen([sys.executable, "-c", code, str(told)], **given)
os.read(number, 1000)
time.sleep(0.6)
os.read(number, 100)
child.wait()
assert os.lseek(number, 0, os.SEEK_CUR) == 1600, os.lseek(number, 0, os.SEEK_CUR)
want = open(sys.argv[1] + ".want", "rb").read()
assert os.read(number, 100) == want[1600:1700]
"""
    path = large / "0.rec"
    (large / "0.rec.want").write_bytes(content(0, 3_000_000))
    done = run_large(sys.executable, "-c", code, path, way)
    assert (done.code, done.stderr) == (0, "")


def test_a_program_that_vfork_starts_leaves_its_parents_descriptors_alone(run, source):
    code = """
import os, subprocess, sys
one, other = (os.open(path, os.O_RDONLY) for path in sys.argv[1:3])
before = os.fstat(other)
high = os.dup2(one, 200)
child = subprocess.run(["/bin/true"], stdin=one, pass_fds=[high], check=True)
assert os.fstat(other) == before and os.fstat(other).st_ino == os.stat(sys.argv[2]).st_ino
assert os.fstat(one).st_ino == os.fstat(high).st_ino == os.stat(sys.argv[1]).st_ino
"""
    done = run(sys.executable, "-c", code, source / "class0" / "0000.bin", source / "class1" / "0001.bin")
    assert (done.code, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives a folder away")
def test_the_folder_of_another_user_is_refused(run, source):
    run("cat", source / "class0" / "0000.bin")
    os.chown(run.cache, NOBODY, NOBODY)
    done = subprocess.run([run.command, "cache", "clear", run.cache], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"belongs to user {NOBODY}" in done.stderr and len(copies(run)) == 1
