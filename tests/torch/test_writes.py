"""torch writes to what it is given as read-only: whatever it writes, nothing that a tier keeps ever changes."""

import faulthandler
import hashlib
import os
import signal
import sys
import traceback
import warnings

import foresee
import numpy
import pytest
import torch

SAMPLES = 300

#: Ways for torch to get at a sample; with those that share its memory, a write to what is kept in memory ends the process.
TAKERS = {
    "from_dlpack": torch.from_dlpack,
    "frombuffer": lambda sample: torch.frombuffer(sample, dtype=torch.uint8),
    "as_tensor": lambda sample: torch.as_tensor(numpy.asarray(sample)),
}


def content(sample: int, size: int) -> bytes:
    block = hashlib.sha256(str(sample).encode()).digest()
    return (block * (size // len(block) + 1))[:size]


@pytest.fixture
def files(tmp_path):
    def make(size: int):
        paths = [tmp_path / f"{number:03}.bin" for number in range(SAMPLES)]
        for number, path in enumerate(paths):
            path.write_bytes(content(number, size))
        return foresee.Files(paths, range(SAMPLES))

    return make


def in_child(act) -> int:
    """How a child ends that does so."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        warnings.simplefilter("ignore")
        code = 1
        try:
            act()
            code = 0
        finally:
            if code:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def delivered(job, one_by_one: bool):
    """All samples of a job, with their numbers."""
    if one_by_one:
        while (got := job.get()) is not None:
            yield got
    else:
        for batch in job:
            yield from zip(batch.data, batch.indices, strict=True)


def write_to_all(dataset, size: int, taker: str, config: dict, one_by_one: bool, **options) -> None:
    with foresee.Job(dataset, 20, 3, config=config, **options) as job:
        for sample, number in delivered(job, one_by_one):
            assert bytes(sample) == content(number, size), f"sample {number} was changed"
            TAKERS[taker](sample).zero_()


@pytest.mark.parametrize("one_by_one", [False, True], ids=["batch", "get"])
@pytest.mark.parametrize("taker", TAKERS)
def test_nobody_changes_what_is_kept_in_memory(files, taker, one_by_one):
    dataset = files(500)
    config = {"tier": [{"kind": "memory", "capacity": "1 MB"}]}
    ended = in_child(lambda: write_to_all(dataset, 500, taker, config, one_by_one))
    assert ended == (0 if taker == "from_dlpack" else -signal.SIGSEGV)


@pytest.mark.parametrize("taker", TAKERS)
def test_who_only_reads_shares_what_is_kept_in_memory(files, taker):
    config = {"tier": [{"kind": "memory", "capacity": "1 MB"}]}
    with warnings.catch_warnings(), foresee.Job(files(500), 20, 3, config=config) as job:
        warnings.simplefilter("ignore")
        for sample, number in delivered(job, one_by_one=False):
            tensor = TAKERS[taker](sample)
            assert tensor.numpy().tobytes() == content(number, 500)
            shared = tensor.data_ptr() == numpy.asarray(sample).ctypes.data
            assert shared == (taker != "from_dlpack")


@pytest.mark.parametrize("taker", TAKERS)
def test_nobody_changes_what_is_kept_on_disk(files, tmp_path, taker):
    # Large, so that one is written to disk while the trainer has it.
    size = 100_000
    tier = {"kind": "disk", "capacity": "40 MB", "path": str(tmp_path / "cache"), "free_space_floor": 0}
    write_to_all(files(size), size, taker, {"tier": [tier]}, one_by_one=True)


def test_nobody_changes_what_has_not_found_its_place_in_memory_yet(files):
    """Much is held, so that evicted samples are in the way of those that come."""
    config = {"tier": [{"kind": "memory", "capacity": 10_000}]}
    held = []
    with foresee.Job(files(500), 20, 8, policy="lobster", config=config) as job:
        for sample, number in delivered(job, one_by_one=False):
            assert bytes(sample) == content(number, 500), f"sample {number} was changed"
            held.append(torch.from_dlpack(sample).zero_())
            held.append(sample)
            del held[:-100]


def test_labels_of_a_dataset_are_not_to_be_changed(rows):
    paths, labels = rows
    dataset = foresee.Files(paths, labels)
    for numbers in (dataset.labels, dataset.sizes):
        torch.from_dlpack(numbers).zero_()
    assert dataset.labels == labels
    assert dataset.sizes == [48] * len(paths)
    for batch in foresee.Job(dataset, 5, 2):
        expected = [labels[index] for index in batch.indices]
        assert batch.labels == expected
        torch.from_dlpack(batch.labels).zero_()
