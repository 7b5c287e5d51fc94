"""Files are brought in the order in which they will be opened, where that is known."""

import hashlib
import subprocess
import sys

import pytest
from running import TORCH_PYTHON, Runner, content, has, rest

# Opens files in the order that it is given, epoch by epoch, with some work in between.
IN_ORDER = """
import pathlib, sys, time
source, order, work_s = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
time.sleep(0.5)
for line in pathlib.Path(order).read_text().splitlines():
    if line:
        (source / line).read_bytes()
        time.sleep(work_s)
"""


ORDERS = """
import torch
for epoch in range(3):
    print(*torch.randperm(8, generator=torch.Generator().manual_seed(5 + epoch)).tolist())
"""


@pytest.fixture
def order(source, tmp_path):
    """Three epochs over the 40 files, each in another order."""
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.bin"))
    lists = [sorted(names, key=lambda name: hashlib.md5(f"{epoch}{name}".encode()).digest()) for epoch in range(3)]
    path = tmp_path / "order"
    path.write_text("\n\n".join("\n".join(each) for each in lists) + "\n")
    return path


def test_files_come_before_they_are_opened_and_the_source_is_read_no_more_than_it_must(run, source, order):
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    quota = total * 6 // 10
    largest = max(path.stat().st_size for path in source.rglob("*.bin"))
    program = [sys.executable, "-c", IN_ORDER, source, order, "0.01"]
    done = run(*program, quota=f"{quota}B", more=("--order", order))
    assert (done.code, done.stderr) == (0, "")
    assert done.stats["off_order"] == 0 and done.stats["ahead"] > 40
    assert done.tier()["opens"] >= 110
    # What is kept leaves room for a window of half the quota at most; files differ in size.
    window = min(max(quota // 16, 32 * largest), quota // 2)
    least = total + 2 * (total - (quota - window))
    assert done.tier()["copied_bytes"] + done.source["bytes"] <= least + 4 * largest


def test_what_a_program_copied_before_it_was_followed_is_kept(run, source, order):
    """It opens all files once while they are still being listed; there is room for all of them."""
    code = """
import pathlib, sys, time
source, order = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
for number, line in enumerate(line for line in order.read_text().splitlines() if line):
    (source / line).read_bytes()
    if number >= 39: time.sleep(0.01)
    if number == 39: time.sleep(0.7)
"""
    total = sum(path.stat().st_size for path in source.rglob("*.bin"))
    done = run(sys.executable, "-c", code, source, order, quota=f"{3 * total}B", more=("--order", order))
    assert (done.code, done.stderr, done.stats["off_order"]) == (0, "", 0)
    assert done.tier()["copied_bytes"] + done.source["bytes"] == total


def test_another_order_than_was_said_ends_it_in_one_line(run, source, order, tmp_path):
    backwards = tmp_path / "backwards"
    lines = [line for line in order.read_text().splitlines() if line]
    backwards.write_text("\n".join(lines[:3] * 60) + "\n")
    program = [sys.executable, "-c", IN_ORDER, source, backwards, "0.002"]
    done = run(*program, more=("--order", order))
    assert done.code == 0
    assert done.stderr.count("\n") == 1 and "another order" in done.stderr
    assert done.stats["off_order"] >= 64


@pytest.mark.long
def test_the_order_of_torchs_sampler_is_known(tmp_path):
    """With one epoch of torch's order for eight files and seed 5, as torch.randperm gives it."""
    source = tmp_path / "train"
    for number in range(8):
        path = source / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number, 5000))
    rest()
    paths = sorted(str(path.relative_to(source)) for path in source.rglob("*.jpg"))
    if not has(TORCH_PYTHON, "torch"):
        pytest.skip("needs torch")
    said = subprocess.run([TORCH_PYTHON, "-c", ORDERS], check=True, capture_output=True, text=True).stdout
    orders = [[int(word) for word in line.split()] for line in said.splitlines()]
    order = tmp_path / "order"
    order.write_text("\n".join(paths[index] for each in orders for index in each) + "\n")
    run = Runner(source, tmp_path)
    program = [sys.executable, "-c", IN_ORDER, source, order, "0.01"]
    more = ("--sampler", "torch-distributed", "--seed", "5", "--epochs", "3")
    done = run(*program, more=more)
    assert (done.code, done.stderr, done.stats["off_order"], done.stats["ahead"]) == (0, "", 0, 8)
    assert done.source["opens"] == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--order", "/no/such/list"), "/no/such/list"),
        (("--sampler", "torch-distributed"), "--epochs"),
        (("--sampler", "other", "--epochs", "1"), "other"),
    ],
)
def test_an_order_that_cannot_be_had_is_said_in_one_line(run, more, said):
    done = run("sleep", "0.5", more=more)
    assert said in done.stderr and done.stderr.count("\n") == 1
