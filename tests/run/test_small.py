"""Small files: copied by who opens them, once, and right whatever happens to them at the source."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import content, needs_strace, rest, traced

READ_ALL = """
import hashlib, pathlib, sys
digest = hashlib.sha256()
for epoch in range(int(sys.argv[2])):
    for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.*")):
        with open(path, "rb") as file:
            digest.update(file.read())
print(digest.hexdigest())
"""


def read_all(source: Path, epochs: int = 1) -> tuple:
    return sys.executable, "-c", READ_ALL, source, str(epochs)


def test_a_second_epoch_is_read_from_copies(run, source):
    plain = run.plainly(*read_all(source, 3))
    done = run(*read_all(source, 3))
    assert (done.code, done.stdout, done.stderr) == (0, plain.stdout, "")
    assert done.copies == 40
    assert done.tier()["opens"] == 120 and done.source["opens"] == 0


def test_the_next_run_finds_what_was_copied(run, source):
    first = run(*read_all(source))
    again = run(*read_all(source))
    assert again.stdout == first.stdout and again.copies == 0
    assert (again.source["opens"], again.tier()["opens"]) == (0, 40)


@needs_strace
def test_the_source_is_opened_and_read_once(run, source, tmp_path):
    trace = tmp_path / "trace"
    done = run(*read_all(source, 3), trace=trace)
    seen = traced(trace, source)
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    assert done.code == 0
    assert seen == (40, total)


def test_what_does_not_fit_is_read_from_the_source_and_the_rest_is_kept(run, source):
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    plain = run.plainly(*read_all(source, 2))
    done = run(*read_all(source, 2), quota=f"{total // 2}B")
    assert done.stdout == plain.stdout
    assert done.tier()["copied_bytes"] <= total // 2
    # Files differ by 977 bytes at least; what is left over is less than the smallest that was not kept.
    assert total // 2 - done.tier()["copied_bytes"] < 40_000
    assert done.source["opens"] > 0 and done.stats["skips"]["no room in the quota"] > 0


def test_several_caches_are_filled_fastest_first(run, source):
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    done = run(*read_all(source, 2), quota=[f"{total // 3}B", "1GiB"])
    assert done.copies == 40 and done.source["opens"] == 0
    assert 0 < done.tier(0)["copied_bytes"] <= total // 3
    assert done.tier(0)["copied_bytes"] + done.tier(1)["copied_bytes"] == total
    again = run(*read_all(source), quota=[f"{total // 3}B", "1GiB"])
    assert again.copies == 0 and again.source["opens"] == 0


@pytest.mark.parametrize(
    "change",
    [
        "replaced",
        "same size and time",
        *(pytest.param(change, marks=pytest.mark.long) for change in ("rewritten", "truncated", "appended")),
    ],
)
def test_a_file_that_changed_is_read_anew(run, source, change):
    path = source / "class1" / "0001.bin"
    run(*read_all(source))
    before = path.stat()
    old = path.read_bytes()
    if change == "replaced":
        other = source / "other"
        other.write_bytes(old[::-1])
        other.rename(path)
    elif change == "rewritten":
        path.write_bytes(old[::-1])
    elif change == "truncated":
        os.truncate(path, 100)
    elif change == "appended":
        with path.open("ab") as file:
            file.write(b"more")
    else:
        path.write_bytes(old[::-1])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    plain = run.plainly(*read_all(source))
    soon = [run(*read_all(source)) for _ in range(2)]
    rest()
    later = run(*read_all(source))
    assert {each.stdout for each in (*soon, later)} == {plain.stdout}
    # The last one copies it, unless the others took so long that it had rested.
    assert sum(each.copies for each in (*soon, later)) == 1


def test_a_file_that_is_deleted_is_gone(run, source):
    run(*read_all(source))
    (source / "class1" / "0001.bin").unlink()
    done = run("cat", source / "class1" / "0001.bin")
    assert done.code == 1 and "No such file" in done.stderr
    assert run(*read_all(source)).stdout == run.plainly(*read_all(source)).stdout


def test_a_copy_of_what_a_file_was_is_removed_when_it_is_copied_again(run, source):
    path = source / "class1" / "0001.bin"
    run("cat", path)
    path.write_bytes(b"x" * 5000)
    rest()
    run("cat", path)
    copies = [each for each in (run.cache / "files").rglob("*") if each.is_file()]
    assert [each.stat().st_size for each in copies] == [5000]


def test_a_young_file_is_not_copied(run, source):
    path = source / "class0" / "young.bin"
    path.write_bytes(b"young")
    done = run("cat", path)
    assert (done.stdout, done.copies) == ("young", 0)
    assert done.stats["skips"]["changed a moment ago"] == 1


def test_writes_go_to_the_source(run, source):
    path = source / "class0" / "0000.bin"
    code = """
import os, sys
path = sys.argv[1]
first = open(path, "rb").read()
with open(path, "r+b") as file: file.write(b"WRITTEN")
assert open(path, "rb").read() == b"WRITTEN" + first[7:]
with open(path, "ab") as file: file.write(b"END")
assert open(path, "rb").read().endswith(b"END")
os.truncate(path, 3)
assert open(path, "rb").read() == b"WRI"
os.rename(path, path + ".new")
assert open(path + ".new", "rb").read() == b"WRI" and not os.path.exists(path)
os.unlink(path + ".new")
"""
    done = run(sys.executable, "-c", code, path)
    assert (done.code, done.stderr) == (0, "")
    assert not path.exists()
    assert done.stats["removed"] >= 1


def test_links_dots_relative_paths_and_open_folders_lead_to_the_same_copies(run, source, tmp_path):
    named = source / "class2" / "0002.bin"
    (tmp_path / "elsewhere").symlink_to(source)
    (source / "link.bin").symlink_to("class2/0002.bin")
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "inner").symlink_to(source / "class2")
    code = """
import os, sys
source, named = sys.argv[1:]
want = bytes.fromhex(sys.stdin.read())
def check(path, **options):
    number = os.open(path, os.O_RDONLY, **options)
    assert os.read(number, 1 << 20) == want, path
    os.close(number)
check(named)
check(source + "//class2/./0002.bin")
check(source + "/class1/../class2/0002.bin")
check(source + "/link.bin")
os.chdir(source + "/class1")
check("../class2/0002.bin")
os.chdir(source)
check("class2/0002.bin")
os.chdir(os.path.dirname(source))
check("source/class2/0002.bin")
top = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
folder = os.open("source", os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
check("class2/0002.bin", dir_fd=folder)
inner = os.open("class2", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
check("0002.bin", dir_fd=inner)
check("../class2/0002.bin", dir_fd=inner)
second = os.dup(inner)
check("0002.bin", dir_fd=second)
# A link that leads out of the folder that `..` is taken from: the text says source, the kernel does not.
out = os.path.dirname(source) + "/outer/inner/../../source/class2/0002.bin"
assert not os.path.exists(out) or open(out, "rb").read() == want
"""
    wanted = content(2, 1000 + 977 * 2)
    assert named.read_bytes() == wanted
    done = run(sys.executable, "-c", code, source, named, stdin=None, input=wanted.hex())
    assert (done.code, done.stderr) == (0, "")
    assert done.copies == 1
    assert done.tier()["opens"] >= 10 and done.source["opens"] == 0


def test_a_link_out_of_the_source_never_leads_to_a_wrong_copy(run, source, tmp_path):
    """Text says one file, the kernel another: the kernel is right."""
    away = tmp_path / "away" / "deep"
    away.mkdir(parents=True)
    (tmp_path / "away" / "0000.bin").write_bytes(b"the kernel's")
    (source / "class0" / "out").symlink_to(away)
    run("cat", source / "class0" / "0000.bin")
    done = run("cat", source / "class0" / "out" / ".." / "0000.bin")
    assert done.stdout == "the kernel's"


def test_a_source_may_be_named_by_a_link_and_used_by_its_real_path(run, source, tmp_path):
    link = tmp_path / "linked"
    link.symlink_to(source)
    run.source = link
    for name in (link, source):
        done = run(*read_all(name))
        assert done.source["opens"] == 0 and done.stdout == run.plainly(*read_all(source)).stdout


def test_descriptors_have_the_lowest_numbers_and_none_is_left_open(run, source):
    code = """
import os, sys
before = sorted(os.listdir("/proc/self/fd"))
paths = [os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names]
for path in paths:
    number = os.open(path, os.O_RDONLY)
    assert number == 3, number
    os.close(number)
os.close(0)
assert os.open(paths[0], os.O_RDONLY) == 0
os.close(0)
os.open("/dev/null", os.O_RDONLY)
assert sorted(os.listdir("/proc/self/fd")) == before
"""
    for _ in range(2):
        done = run(sys.executable, "-c", code, source)
        assert (done.code, done.stderr) == (0, "")


def test_errno_is_that_of_the_programs_own_call(run, source, tmp_path):
    program = tmp_path / "errno"
    (tmp_path / "errno.c").write_text(r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char **words) {
    char missing[4096];
    snprintf(missing, sizeof missing, "%s.none", words[1]);
    errno = 77;
    for (int time = 0; time < 2; time++) {
        int number = open(words[1], O_RDONLY);
        struct stat found;
        char byte;
        if (number < 0 || fstat(number, &found) || read(number, &byte, 1) != 1 || close(number) || errno != 77)
            return 1;
    }
    if (open(missing, O_RDONLY) != -1 || errno != ENOENT) return 2;
    if (open(words[1], O_RDONLY | O_DIRECTORY) != -1 || errno != ENOTDIR) return 3;
    if (fopen(missing, "r") || errno != ENOENT) return 4;
    if (close(999) != -1 || errno != EBADF) return 5;
    if (open(0, O_RDONLY) != -1 || errno != EFAULT) return 6;
    if (openat(999, "x", O_RDONLY) != -1 || errno != EBADF) return 7;
    return 0;
}
""")
    subprocess.run(["cc", "-o", program, tmp_path / "errno.c"], check=True)
    assert run(program, source / "class0" / "0000.bin").code == 0


def test_what_a_descriptor_is_of_is_the_file_that_was_opened(run, source):
    code = """
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        named = os.stat(path)
        number = os.open(path, os.O_RDONLY)
        for found in (os.fstat(number), os.stat(number), os.fstat(os.dup(number))):
            for field in ("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns",
                          "st_ctime_ns", "st_blocks", "st_blksize"):
                assert getattr(found, field) == getattr(named, field), (field, path)
        os.close(number)
"""
    for _ in range(2):
        done = run(sys.executable, "-c", code, source)
        assert (done.code, done.stderr) == (0, "")
        assert done.source["opens"] == 0


@pytest.mark.parametrize("words", [["cp"], ["cp", "-p"], ["install", "-m", "600"], ["cp", "--sparse=always"]])
def test_cp_and_install_copy_from_copies(run, source, tmp_path, words):
    for time in range(2):
        for number in range(4):
            path = source / f"class{number}" / f"{number:04}.bin"
            target = tmp_path / f"target-{time}-{number}"
            done = run(*words, path, target)
            assert (done.code, done.stderr) == (0, "")
            assert target.read_bytes() == path.read_bytes()
            assert done.copies == (1 if time == 0 else 0)
            if "-p" in words:
                assert target.stat().st_mtime_ns == path.stat().st_mtime_ns


def test_a_file_with_attributes_is_not_copied(run, source):
    path = source / "class0" / "0000.bin"
    try:
        os.setxattr(path, "user.note", b"x")
    except OSError:
        pytest.skip("needs a file system with extended attributes")
    rest()
    done = run("cat", path)
    assert done.copies == 0 and done.stats["skips"]["has extended attributes"] == 1


def test_copies_are_trusted_for_as_long_as_was_said(run, source):
    code = """
import subprocess, sys
path = sys.argv[1]
for _ in range(10): text = open(path, "rb").read()
subprocess.run(["/bin/sh", "-c", 'printf ANOTHER 1<>"$0"', path], env={}, check=True)
print(open(path, "rb").read() == text)
with open(path, "r+b") as file: file.write(b"PROGRAM")
print(open(path, "rb").read()[:7].decode())
"""
    path = source / "class0" / "0000.bin"
    done = run(sys.executable, "-c", code, path, more=("--validate", "once"))
    # What is changed behind its back is not seen; what the program changes by the same name is.
    assert done.stdout.split() == ["True", "PROGRAM"]
    assert done.stats["metadata_calls"] <= 5
    rest()
    done = run(sys.executable, "-c", code, path)
    assert done.stdout.split() == ["False", "PROGRAM"]


def test_the_digest_of_every_copy_is_checked(run, source):
    run(*read_all(source))
    copies = sorted(each for each in (run.cache / "files").rglob("*") if each.is_file())
    wanted = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in source.rglob("*.bin"))
    assert sorted(hashlib.sha256(copy.read_bytes()).hexdigest() for copy in copies) == wanted
