"""Lightning and accelerate, on one and two real processes: the loader is made before there is a world, each rank trains on
its share, and together they train on every sample exactly once an epoch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import foresee
import pytest

SAMPLES, EPOCHS = 240, 3

#: The loader is made, asked for its length and state, and looked into before anybody knows of ranks.
COMMON = """
import json, os, pathlib, sys
import foresee, torch
from foresee.torch import DataLoader

folder, out, processes, strategy = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
paths = sorted(folder.iterdir())
class Noted:
    def __init__(self):
        self.epochs, self.lengths, self.sizes = [], [], []
    def tell(self, rank, **more):
        told = {"epochs": self.epochs, "lengths": self.lengths, "sizes": self.sizes, **more}
        (out / f"{rank}.json").write_text(json.dumps(told))

def make():
    loader = DataLoader(foresee.Files(paths, range(len(paths))), 4, shuffle=True, seed=5, num_workers=2)
    assert len(loader) == 60 and len(loader.sampler) == 240 and loader.job.world_size == 1
    loader.state_dict()
    if "looked" in sys.argv:
        assert len(next(iter(loader))[1]) == 4
        loader.set_epoch(0)
    return loader
"""

LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.noted = torch.nn.Linear(8, 1), Noted()
    def on_train_epoch_start(self):
        self.noted.epochs.append([])
        self.noted.lengths.append(len(self.trainer.train_dataloader))
    def training_step(self, batch, number):
        data, labels = batch
        self.noted.epochs[-1] += labels.tolist()
        self.noted.sizes.append(len(labels))
        return self.layer(data.float()).mean()
    def on_train_end(self):
        self.noted.tell(self.global_rank, batches=self.trainer.num_training_batches)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

if __name__ == "__main__":
    loader = make()
    trainer = lightning.Trainer(accelerator="cpu", devices=processes, strategy=strategy, max_epochs=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=out)
    trainer.fit(Model(), loader)
"""

ACCELERATE = """
import accelerate

def train(loader):
    accelerator = accelerate.Accelerator(cpu=True)
    layer = torch.nn.Linear(8, 1)
    prepared, model, optimizer = accelerator.prepare(loader, layer, torch.optim.SGD(layer.parameters(), 0.01))
    assert prepared is loader
    noted = Noted()
    for epoch in range(3):
        noted.epochs.append([])
        noted.lengths.append(len(prepared))
        for data, labels in prepared:
            accelerator.backward(model(data.float()).mean())
            optimizer.step()
            optimizer.zero_grad()
            noted.epochs[-1] += labels.tolist()
            noted.sizes.append(len(labels))
    noted.tell(accelerator.process_index, batches=len(prepared))
    accelerator.end_training()

if __name__ == "__main__":
    loader = make()
    if processes == 1:
        train(loader)
    else:
        accelerate.notebook_launcher(train, (loader,), num_processes=2, mixed_precision="no")
"""


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    root = tmp_path_factory.mktemp("numbered")
    for number in range(SAMPLES):
        (root / f"{number:03}.bin").write_bytes(bytes([number] * 8))
    return root


def told(script, folder, out, processes, strategy, *more):
    """What each rank noted."""
    out.mkdir()
    (out / "script.py").write_text(COMMON + script)
    package = Path(foresee.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, *map(str, (out / "script.py", folder, out, processes, strategy, *more))],
        env={**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        timeout=600,
        capture_output=True,
        check=False,
        encoding="utf-8",
        cwd=out,
    )
    assert ended.returncode == 0, ended.stderr
    assert more or "begins again" not in ended.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(processes)]


def orders(processes, rank):
    """The samples of a rank in each epoch, as torch's sampler deals them."""
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(SAMPLES), processes, rank, shuffle=True, seed=5)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield list(sampler)


def assert_shared(ranks):
    """Each rank has its share, in torch's order, and all of them together have each sample once."""
    for rank, one in enumerate(ranks):
        assert one["epochs"] == list(orders(len(ranks), rank))
        steps = SAMPLES // len(ranks) // 4
        assert one["lengths"] == [steps] * EPOCHS and one["batches"] == steps and set(one["sizes"]) == {4}
    for epoch in range(EPOCHS):
        assert sorted(sample for one in ranks for sample in one["epochs"][epoch]) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("processes", "strategy", "more"),
    [(1, "auto", ()), (2, "ddp", ()), (2, "ddp", ("looked",)), (2, "ddp_spawn", ()), (2, "ddp_fork", ("looked",))],
)
def test_each_rank_of_lightning_trains_on_its_share(numbered, tmp_path, processes, strategy, more):
    pytest.importorskip("lightning")
    assert_shared(told(LIGHTNING, numbered, tmp_path / "out", processes, strategy, *more))


@pytest.mark.parametrize("processes", [1, 2])
def test_each_rank_of_accelerate_trains_on_its_share(numbered, tmp_path, processes):
    pytest.importorskip("accelerate")
    assert_shared(told(ACCELERATE, numbered, tmp_path / "out", processes, "-", *(["looked"] if processes == 2 else [])))
