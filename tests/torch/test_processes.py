"""Two real processes under torchrun, with gloo: the losses of torch's loader to the last bit, and caches that do not meet."""

import json
import os
import subprocess
import sys
from pathlib import Path

import foresee
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, pathlib, sys
import foresee, torch
from foresee.torch import DataLoader
from torch import nn
from torch.utils.data import Dataset, DistributedSampler

folder, out = map(pathlib.Path, sys.argv[1:])
paths = sorted(folder.iterdir())
labels = [number % 5 for number in range(len(paths))]
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()

class Rows(Dataset):
    def __len__(self):
        return len(paths)

    def __getitem__(self, index):
        return torch.frombuffer(bytearray(paths[index].read_bytes()), dtype=torch.uint8), labels[index]

def losses(epochs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(128, 5))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    told = []
    for epoch in epochs:
        for data, targets in epoch:
            loss = nn.functional.cross_entropy(model(data.view(-1, 3, 4, 4).float() / 255), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append(loss.item())
    return told

def of_torch():
    sampler = DistributedSampler(Rows(), shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(Rows(), 4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        yield loader

def of_foresee(seed):
    with DataLoader(foresee.Files(paths, labels), 4, shuffle=True, seed=seed, num_workers=2) as loader:
        yield loader
        yield loader

told = {"torch": losses(of_torch()), "foresee": losses(of_foresee(3)), "another seed": losses(of_foresee(4))}

# Each rank draws what it wants: its own half, in another order each epoch, from one folder of a disk tier.
class Half:
    epoch = -1
    def __iter__(self):
        self.epoch += 1
        order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter([index for index in order if index % 2 == rank])
    def __len__(self):
        return len(paths) // 2 + (rank == 0)

tier = {"tier": [{"kind": "disk", "path": str(out / "cache"), "capacity": "1 MB", "free_space_floor": 0}]}
numbered = foresee.Files(paths, range(len(paths)))
with DataLoader(numbered, 4, sampler=Half(), config=tier) as loader:
    told["epochs"] = [[index for _, got in loader for index in got.tolist()] for _ in range(3)]
    stats = loader.stats()
told |= {"rank": stats["rank"], "world": stats["world_size"], "read": stats["source_bytes"], "lost": stats["lost"]}
(out / f"{rank}.json").write_text(json.dumps(told))
torch.distributed.destroy_process_group()
"""


def run(*args):
    package = Path(foresee.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"},
        timeout=300,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def torchrun(*args):
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *args)


@pytest.fixture(scope="module")
def told(rows, tmp_path_factory):
    """What each of two ranks has to tell."""
    out = tmp_path_factory.mktemp("out")
    (out / "script.py").write_text(SCRIPT)
    torchrun(out / "script.py", rows[0][0].parent, out)
    return out, [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def test_losses_of_two_processes_are_those_of_torch_to_the_last_bit(told):
    for one in told[1]:
        assert one["foresee"] == one["torch"] and len(one["torch"]) == 12
        assert one["another seed"] != one["torch"]
    assert told[1][0]["torch"] != told[1][1]["torch"]


def test_a_sampler_gives_each_rank_its_own_order_and_cache(told):
    out, ranks = told
    for rank, one in enumerate(ranks):
        mine = [index for index in range(41) if index % 2 == rank]
        assert [sorted(epoch) for epoch in one["epochs"]] == [mine] * 3 and one["epochs"][0] != one["epochs"][1]
        assert (one["rank"], one["world"], one["lost"]) == (rank, 2, 0)
        # Read once, then from the disk.
        assert one["read"] == 48 * len(mine)
    names = sorted(path.name for path in (out / "cache").iterdir() if path.is_dir())
    assert [name.rpartition("-")[2] for name in names] == ["slot0", "slot1"]


def test_the_example_trains_on_two_processes_and_goes_on_with_one(images, tmp_path):
    path, saved = ROOT / "examples" / "train_imagenet.py", tmp_path / "state.pt"
    common = [path, images, "--size", 16, "--workers", 2, "--checkpoint", saved, "--checkpoint-steps", 3]
    said = torchrun(*common, "--batch-size", 4, "--epochs", 1)
    assert said.count("epoch 0") == 1 and torch.load(saved)["loader"]["epoch"] == 1
    said = run(*common, "--batch-size", 8, "--epochs", 2, "--resume")
    assert "epoch 1" in said and "epoch 0" not in said
