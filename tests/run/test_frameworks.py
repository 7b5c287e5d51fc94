"""tf.data and DALI over record files, plainly and under `foresee run`. FORESEE_PROGRAM_PYTHON names a Python that has them."""

import hashlib
import os
import struct
import sys
import zlib
from pathlib import Path

import pytest
from running import Runner, has, needs_strace, rest, traced

PYTHON = os.environ.get("FORESEE_PROGRAM_PYTHON", sys.executable)
FILES, RECORDS, RECORD_BYTES, EPOCHS = 12, 100, 30_000, 3

TF_DATA = """
import hashlib, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
digest = hashlib.sha256()
for epoch in range(int(sys.argv[2])):
    paths = sorted(tf.io.gfile.glob(sys.argv[1] + "/*.tfrecord"))
    for record in tf.data.TFRecordDataset(paths):
        digest.update(record.numpy())
print(digest.hexdigest())
"""

DALI = """
import hashlib, os, sys
import numpy
from nvidia.dali import fn, pipeline_def
folder, epochs = sys.argv[1], int(sys.argv[2])
names = sorted(name for name in os.listdir(folder) if name.endswith(".bin"))
@pipeline_def(batch_size=4, num_threads=2, device_id=None)
def pipeline():
    data, label = fn.readers.file(file_root=folder, files=names, dont_use_mmap=len(sys.argv) > 3)
    return data
built = pipeline()
built.build()
digest = hashlib.sha256()
for _ in range(epochs * len(names) // 4):
    (batch,) = built.run()
    for index in range(len(batch)):
        digest.update(numpy.asarray(batch[index]).tobytes())
print(digest.hexdigest())
"""


def checksum(data: bytes) -> int:
    """TFRecord's masked CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (0x82F63B78 if index & 1 else 0)
    return index


TABLE = [_entry(index) for index in range(256)]


def records(path: Path, seed: int) -> None:
    parts = []
    for number in range(RECORDS):
        body = hashlib.shake_128(f"{seed}-{number}".encode()).digest(RECORD_BYTES if number else 100)
        length = struct.pack("<Q", len(body))
        parts += [length, struct.pack("<I", checksum(length)), body, struct.pack("<I", checksum(body))]
    path.write_bytes(b"".join(parts))


def compared(run: Runner, program: list, tmp_path: Path, total: int) -> None:
    plain = run.plainly(*program)
    assert plain.code == 0, plain.stderr
    trace = tmp_path / "trace"
    done = run(*program, trace=trace, timeout_s=300)
    assert (done.code, done.stdout) == (0, plain.stdout), done.stderr
    seen = traced(trace, run.source)
    print(
        f"{total} B, {EPOCHS} epochs: {seen.opens} opens and {seen.bytes} B at the source, {done.stats['moved']} moved"
    )
    again = run(*program, trace=trace, timeout_s=300)
    assert again.stdout == plain.stdout
    assert done.copies == FILES and traced(trace, run.source) == (0, 0)
    assert zlib.crc32(plain.stdout.encode()) == zlib.crc32(again.stdout.encode())


@pytest.mark.long
@needs_strace
def test_tf_data_reads_records_from_copies(tmp_path):
    if not has(PYTHON, "tensorflow"):
        pytest.skip("needs tensorflow: make bench-setup test-frameworks")
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        records(source / f"{number:03}.tfrecord", number)
    rest()
    total = sum(path.stat().st_size for path in source.iterdir())
    compared(Runner(source, tmp_path), [PYTHON, "-c", TF_DATA, source, str(EPOCHS)], tmp_path, total)


@pytest.mark.long
@needs_strace
@pytest.mark.parametrize("more", [[], ["read"]], ids=["mapped", "read"])
def test_dali_reads_files_from_copies(tmp_path, more):
    if not has(PYTHON, "nvidia.dali"):
        pytest.skip("needs DALI: make bench-setup test-frameworks")
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:03}.bin").write_bytes(hashlib.shake_128(str(number).encode()).digest(2_000_000))
    rest()
    compared(Runner(source, tmp_path), [PYTHON, "-c", DALI, source, str(EPOCHS), *more], tmp_path, FILES * 2_000_000)
