"""A storage of which the kernel remembers what it was told, for an hour: what others change there shows all the same."""

from pathlib import Path

import pytest
from running import Runner, rest

ROOT = Path(__file__).resolve().parents[2]
FILES = 8
SIZE = 30_000


def content(number: int, version: int = 0) -> bytes:
    return bytes([number + 100 * version]) * SIZE


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A folder, and the same as a slow storage."""
    yield from emulated(monkeypatch, tmp_path, 0)


@pytest.fixture
def slow_to_answer(monkeypatch, tmp_path):
    """The same, where each read takes a second: programs that are started soon one after the other meet."""
    yield from emulated(monkeypatch, tmp_path, 1000)


def emulated(monkeypatch, tmp_path, delay_ms):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import transparent_emulated

    if lacking := transparent_emulated.missing():
        pytest.skip(lacking)
    files = tmp_path / "files"
    files.mkdir()
    for number in range(FILES):
        (files / f"{number}.bin").write_bytes(content(number))
    rest()
    with transparent_emulated.emulated(tmp_path, files, delay_ms) as source:
        yield source


def shown(run: Runner, source: Path, **options):
    """The first byte of each file, and how many there are of it, as a program sees them."""
    code = """
import os, sys
for name in sorted(os.listdir(sys.argv[1])):
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        text = file.read()
    print(text[0], text.count(text[0]))
"""
    done = run("/usr/bin/env", "python3", "-c", code, source, **options)
    assert (done.code, done.stderr) == (0, "")
    return done, [int(line.split()[0]) for line in done.stdout.splitlines() if line.endswith(f" {SIZE}")]


def test_files_are_read_once_and_the_storage_is_asked_before_a_copy_is_handed_out(slow, tmp_path):
    run = Runner(slow.source, tmp_path)
    before = slow.counted()
    first, bytes_seen = shown(run, slow.source)
    assert bytes_seen == list(range(FILES)) and first.copies == FILES
    again, bytes_seen = shown(run, slow.source)
    assert bytes_seen == list(range(FILES)) and again.source["opens"] == 0
    assert slow.counted().bytes - before.bytes == FILES * SIZE
    assert first.stats["metadata_calls"] == 0 and again.stats["metadata_calls"] == FILES


def test_what_others_change_is_read_anew_whatever_the_kernel_remembers(slow, tmp_path):
    run = Runner(slow.source, tmp_path)
    for number in range(FILES):
        # The kernel asks, and remembers.
        (slow.source / f"{number}.bin").stat()
    for number in range(0, FILES, 2):
        (slow.files / f"{number}.bin").write_bytes(content(number, 1))
    rest()
    now = [number + 100 * (number % 2 == 0) for number in range(FILES)]
    # Nothing was copied before: copies are of what the kernel remembers. Half of them are of files that are not so any more.
    first, bytes_seen = shown(run, slow.source)
    assert bytes_seen == now and first.copies == FILES
    second, bytes_seen = shown(run, slow.source)
    assert bytes_seen == now and second.copies == FILES // 2 and second.tier()["opens"] == FILES
    assert len(list((tmp_path / "cache" / "files").glob("*/" + "?" * 32))) == FILES, (
        "copies of what files were are gone"
    )
    for number in range(FILES):
        (slow.files / f"{number}.bin").write_bytes(content(number, 2))
    rest()
    third, bytes_seen = shown(run, slow.source)
    assert bytes_seen == [number + 200 for number in range(FILES)] and third.tier()["opens"] == FILES


def test_who_waited_for_the_copy_of_another_asks_the_storage_again(slow_to_answer, tmp_path):
    slow = slow_to_answer
    run = Runner(slow.source, tmp_path)
    read = "import sys; [open(path, 'rb').read() for path in sys.argv[1:]]"
    first, second = slow.source / "0.bin", slow.source / "1.bin"
    # How long copies take is known from this one.
    done = run("/usr/bin/env", "python3", "-c", read, first)
    assert (done.code, done.stderr, done.copies) == (0, "", 1)
    both = 'python3 -c "$0" "$1" & sleep 0.4; python3 -c "$0" "$1" && wait'
    before = slow.counted()
    done = run("/bin/sh", "-c", both, read, second)
    assert (done.code, done.stderr, done.copies) == (0, "", 1)
    assert slow.counted().bytes - before.bytes == SIZE
    assert done.tier()["opens"] == 2 and done.stats["awaited"] == 1
    # Before it waited, and when it had.
    assert done.stats["metadata_calls"] == 2
