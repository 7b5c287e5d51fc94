"""Four real processes under torchrun that keep each other's samples: every sample once an epoch, in the order of ranks that
are alone, and the source read as little as it can be, as strace counts it."""

import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import foresee
import pytest
from traced import read_bytes, strace

ROOT = Path(__file__).resolve().parents[2]
RANKS, SAMPLES, SIZE, EPOCHS = 4, 96, 3000, 3
#: Two epochs: a loader without a known end reads as far ahead as it has room for.
STAGING = 2 * SAMPLES * SIZE
#: What samples that come from other ranks are counted as, by how ranks reach each other.
ORIGINS = {"auto": "host_peer", "tcp": "peer"}

SCRIPT = """
import hashlib, json, pathlib, sys
import foresee, torch
from foresee.torch import DataLoader
from torch.utils.data import DistributedSampler

folder, out, how, initialised = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "yes"
paths = sorted(folder.iterdir())
config = json.loads(sys.argv[5])
if initialised:
    torch.distributed.init_process_group("gloo")

def barrier():
    if initialised:
        torch.distributed.barrier()

def of_job(dataset):
    with foresee.Job(dataset, 4, 3, seed=3, config=config) as job:
        for epoch in range(3):
            yield [noted(data, label) for batch in job.epoch(epoch) for data, label in zip(batch.data, batch.labels)]
        told["stats"] = job.stats()

def of_loader(dataset):
    sampler = DistributedSampler(dataset, shuffle=True, seed=3) if how == "sampler" else None
    options = {"sampler": sampler} if sampler else {"shuffle": True}
    if how == "epochs":
        options["epochs"] = 3
    with DataLoader(dataset, 4, num_workers=2, config=config, seed=3, **options) as loader:
        for epoch in range(3):
            (sampler or loader).set_epoch(epoch)
            epoch = []
            for data, labels in loader:
                epoch += [noted(bytes(row.tolist()), label) for row, label in zip(data, labels.tolist())]
                barrier()
            yield epoch
        told["stats"] = loader.stats()

def noted(data, label):
    return [hashlib.sha256(data).hexdigest(), int(label)]

told = {}
dataset = foresee.Files(paths, range(len(paths)))
told["epochs"] = list((of_job if how == "job" else of_loader)(dataset))
(out / f"{told['stats']['rank']}.json").write_text(json.dumps(told))
if initialised:
    torch.distributed.destroy_process_group()
"""

GRADIENTS = """
import json, pathlib, sys
import foresee, torch

folder, out, assignment, config = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(3000, 1, dtype=torch.float64)
sums = []
dataset = foresee.Files(sorted(folder.iterdir()))
with foresee.Job(dataset, 8, 3, seed=3, config=config, assignment=assignment) as job:
    for batch in job:
        model.zero_grad()
        data = torch.stack([torch.tensor(list(bytes(sample)), dtype=torch.float64) / 255 for sample in batch.data])
        model(data).square().sum().backward()
        torch.distributed.all_reduce(model.weight.grad)
        sums.append(model.weight.grad.flatten()[:100].tolist())
if job.rank == 0:
    out.write_text(json.dumps(sums))
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Files of one size, each with its own bytes."""
    folder = tmp_path_factory.mktemp("samples")
    for number in range(SAMPLES):
        text = hashlib.sha256(str(number).encode()).digest()
        (folder / f"{number:03}.bin").write_bytes((text * SIZE)[:SIZE])
    return folder


def torchrun(*args, prefix=(), ranks=RANKS, **variables):
    package = Path(foresee.__file__).parents[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, *args]
    return subprocess.run(
        [*prefix, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", **variables},
        timeout=300,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )


def config_of(part):
    """Each rank keeps its part of ``part`` times the dataset, in whole samples."""
    each = -(-int(part * SAMPLES) // RANKS)
    return {"staging": {"capacity": STAGING}, "tier": [{"kind": "memory", "capacity": each * SIZE}]}


def run(samples, out, how, initialised="yes", part=1.02, prefix=(), **variables):
    out.mkdir()
    script = out / "script.py"
    script.write_text(SCRIPT)
    ran = torchrun(script, samples, out, how, initialised, json.dumps(config_of(part)), prefix=prefix, **variables)
    assert ran.returncode == 0, ran.stderr
    return ran, [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]


def check_whole(samples, told):
    expected = {
        number: hashlib.sha256(path.read_bytes()).hexdigest() for number, path in enumerate(sorted(samples.iterdir()))
    }
    for epoch in range(EPOCHS):
        got = [pair for one in told for pair in one["epochs"][epoch]]
        assert all(expected[label] == digest for digest, label in got)
        assert collections.Counter(label for _, label in got) == collections.Counter(range(SAMPLES))


@pytest.mark.parametrize(("how", "initialised"), [("shuffle", "yes"), ("sampler", "yes"), ("job", "no")])
def test_every_sample_comes_once_an_epoch_in_the_order_of_ranks_that_are_alone(samples, tmp_path, how, initialised):
    _, alone = run(samples, tmp_path / "alone", how, initialised, FORESEE_PEERS_TRANSPORT="none")
    for transport, origin in ORIGINS.items():
        ran, told = run(samples, tmp_path / transport, how, initialised, FORESEE_PEERS_TRANSPORT=transport)
        check_whole(samples, told)
        assert "alone" not in ran.stderr and "no peers" not in ran.stderr, ran.stderr
        peers = [one["stats"]["origins"].get(origin, {}).get("bytes", 0) for one in told]
        assert all(peers), "each rank was served by others"
        assert [one["epochs"] for one in told] == [one["epochs"] for one in alone]


def test_batches_dealt_by_holder_sum_up_to_the_same_gradients(samples, tmp_path):
    script = tmp_path / "gradients.py"
    script.write_text(GRADIENTS)
    config = {"staging": {"capacity": STAGING}, "tier": [{"kind": "memory", "capacity": SAMPLES // 2 * SIZE}]}
    sums = {}
    for assignment in ("order", "local"):
        out = tmp_path / assignment
        ran = torchrun(script, samples, out, assignment, json.dumps(config), ranks=2)
        assert ran.returncode == 0, ran.stderr
        sums[assignment] = json.loads(out.read_text())
    assert len(sums["local"]) == EPOCHS * SAMPLES // 16
    for one, other in zip(sums["order"], sums["local"], strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_the_source_is_read_once_as_strace_counts_it(samples, tmp_path):
    if not shutil.which("strace"):
        pytest.skip("no strace: install Debian's package strace")
    log = tmp_path / "strace"
    prefix = (*strace(), "-o", str(log))
    try:
        ran, told = run(samples, tmp_path / "out", "epochs", prefix=prefix)
    except AssertionError as failed:
        if "ptrace" in str(failed).lower():
            pytest.skip("strace may not trace here")
        raise
    check_whole(samples, told)
    read = read_bytes(log).total()
    minimum = SAMPLES * SIZE
    assert minimum <= read <= 1.01 * minimum, ran.stderr
    assert sum(one["stats"]["source_bytes"] for one in told) == read


GOES_ON = """
import json, pathlib, sys
import foresee, torch
from foresee.torch import DataLoader
from torch.utils.data import DistributedSampler

folder, out, how, config = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
torch.distributed.init_process_group("gloo")
dataset = foresee.Files(sorted(folder.iterdir()))
sampler = DistributedSampler(dataset, shuffle=True, seed=3) if how == "sampler" else None
order = {"sampler": sampler} if sampler else {"shuffle": True, "seed": 3}
with DataLoader(dataset, 4, num_workers=2, config=config, **order) as loader:
    for epoch in range(5):
        (sampler or loader).set_epoch(epoch)
        for _ in loader:
            torch.distributed.barrier()
    torch.distributed.barrier()
    stats = loader.stats()
    (out / f"{stats['rank']}.json").write_text(json.dumps(stats))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["shuffle", "sampler"])
def test_a_loader_without_a_known_end_reads_each_sample_once(tmp_path, how):
    """It reads far ahead, with copies of what is used again soonest: they must not take the room of what lives there."""
    number, size = 400, 30_000
    folder, out = tmp_path / "samples", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    for sample in range(number):
        (folder / f"{sample:03}.bin").write_bytes(bytes([sample % 251]) * size)
    script = tmp_path / "script.py"
    script.write_text(GOES_ON)
    tier = {"kind": "memory", "capacity": 102 * size}
    config = {"staging": {"capacity": number // 2 * size}, "tier": [tier]}
    ran = torchrun(script, folder, out, how, json.dumps(config))
    assert ran.returncode == 0, ran.stderr
    stats = [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert sum(one["source_bytes"] for one in stats) == number * size, stats
    assert sum(one["not_kept"] + one["peers"]["refused"] for one in stats) == 0


VALIDATES = """
import pathlib, sys, time
import foresee, torch
from foresee.torch import DataLoader

paths = sorted(pathlib.Path(sys.argv[1]).iterdir())
config = {"tier": [{"kind": "memory", "capacity": "1 MB"}], "peers": {"patience": "2 s"}}
torch.distributed.init_process_group("gloo")
if torch.distributed.get_rank() == 0:
    began = time.monotonic()
    with DataLoader(foresee.Files(paths), 4, config=config) as loader:
        seen = sum(len(labels) for _, labels in loader)
    print("seen", seen, time.monotonic() - began < 15, flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_a_loader_of_one_rank_alone_waits_a_while_and_goes_on(samples, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(VALIDATES)
    ran = torchrun(script, samples)
    assert ran.returncode == 0, ran.stderr
    assert f"seen {SAMPLES // RANKS} True" in ran.stdout
    assert "goes on alone" in ran.stderr


def test_the_example_trains_on_images_that_it_makes_up():
    ran = torchrun(ROOT / "examples" / "train_ddp.py", "--epochs", 2)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("epoch") == 2
    served = [float(found) for found in re.findall(r", ([\d.]+) MB of other ranks", ran.stdout)]
    assert len(served) == RANKS and all(served), ran.stdout
