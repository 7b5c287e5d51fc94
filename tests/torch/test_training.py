"""A training run with foresee's loader is the one with torch's: the same losses to the last bit."""

import itertools
import runpy
import sys
from pathlib import Path

import foresee
import pytest
import torch
from foresee.torch import DataLoader
from torch.utils.data import Dataset, DistributedSampler

ROOT = Path(__file__).resolve().parents[2]


class Rows(Dataset):
    """Files as torch users write them: images of 3 x 4 x 4 bytes."""

    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        data = torch.frombuffer(bytearray(Path(self.paths[index]).read_bytes()), dtype=torch.uint8)
        return data, self.labels[index]


def losses(epochs):
    """Trains a small net with dropout, which draws from torch's generator as the loader does."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 5),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    told = []
    for epoch in epochs:
        for data, labels in epoch:
            loss = torch.nn.functional.cross_entropy(net(data.view(-1, 3, 4, 4).float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append(loss.item())
    return told


def of_torch(rows, rank, world, **options):
    dataset = Rows(*rows)
    sampler = DistributedSampler(dataset, world, rank, shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(dataset, 4, sampler=sampler, **options)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        yield loader


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2)])
def test_losses_are_those_of_torch_to_the_last_bit(rows, rank, world):
    expected = losses(of_torch(rows, rank, world))
    with DataLoader(foresee.Files(*rows), 4, shuffle=True, seed=3, rank=rank, world_size=world) as loader:
        got = losses(itertools.repeat(loader, 2))
    assert got == expected and len(got) == 2 * len(loader)


def test_the_workers_of_torch_change_nothing(rows):
    expected = losses(of_torch(rows, 0, 1, num_workers=2))
    with DataLoader(foresee.Files(*rows), 4, shuffle=True, seed=3, num_workers=3) as loader:
        assert losses(itertools.repeat(loader, 2)) == expected


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("options", [{"num_workers": 2, "persistent_workers": True}, {"num_workers": 2}, {}])
def test_workers_that_persist_are_seeded_as_often_as_torchs(rows, options, own):
    def generator():
        return torch.Generator().manual_seed(4) if own else None

    theirs = generator()
    loader = torch.utils.data.DataLoader(Rows(*rows), 4, sampler=range(41), generator=theirs, **options)
    expected = losses(itertools.repeat(loader, 3))
    ours = generator()
    with DataLoader(foresee.Files(*rows), 4, sampler=range(41), generator=ours, **options) as loader:
        assert losses(itertools.repeat(loader, 3)) == expected
    assert not own or torch.equal(theirs.get_state(), ours.get_state())


@pytest.mark.parametrize("cut", [0, 3, 11])
def test_a_generator_goes_on_after_a_resume_with_workers_that_persist(rows, cut):
    def make():
        own = torch.Generator().manual_seed(4)
        options = {"shuffle": True, "num_workers": 2, "persistent_workers": True}
        return DataLoader(foresee.Files(*rows), 4, generator=own, **options)

    with make() as loader:
        whole = [labels.tolist() for _ in range(3) for _, labels in loader]
    with make() as loader:
        for _ in itertools.islice(loader, cut):
            pass
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        rest = [labels.tolist() for _ in range(4) for _, labels in loader]
    assert rest[: len(whole) - cut] == whole[cut:]


def test_a_run_that_is_cut_goes_on_with_the_same_losses(images):
    from foresee import transforms as T

    steps = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])
    dataset = foresee.ImageFolder(images, transform=steps)
    with DataLoader(dataset, 5, shuffle=True, seed=9) as loader:
        whole = [(data.clone(), labels.clone()) for _ in range(2) for data, labels in loader]
    with DataLoader(dataset, 5, shuffle=True, seed=9, num_workers=2) as loader:
        for _, _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
    with DataLoader(dataset, 5, shuffle=True, seed=9, epochs=2) as loader:
        loader.load_state_dict(state)
        rest = [(data.clone(), labels.clone()) for _ in range(2) for data, labels in loader]
    assert len(rest) == len(whole) - 3
    for (data, labels), (expected, targets) in zip(rest, whole[3:], strict=True):
        assert torch.equal(data, expected) and torch.equal(labels, targets)


def test_the_example_trains_and_resumes(images, tmp_path, monkeypatch, capsys):
    path = ROOT / "examples" / "train_imagenet.py"
    common = [str(images), "--val", str(images), "--size", "16", "--batch-size", "8", "--workers", "2"]
    saved = str(tmp_path / "state.pt")
    monkeypatch.setattr(sys, "argv", [str(path), *common, "--epochs", "1", "--checkpoint", saved])
    runpy.run_path(str(path), run_name="__main__")
    monkeypatch.setattr(sys, "argv", [str(path), *common, "--epochs", "2", "--checkpoint", saved, "--resume"])
    runpy.run_path(str(path), run_name="__main__")
    told = capsys.readouterr().out
    assert "epoch 0" in told and "epoch 1" in told and told.count("epoch 0") == 1


def test_the_example_goes_on_in_mid_epoch_as_if_it_had_not_been_stopped(images, tmp_path, monkeypatch):
    path = ROOT / "examples" / "train_imagenet.py"
    save = torch.save

    def run(name, *more):
        common = [str(images), "--size", "16", "--batch-size", "4", "--workers", "2", "--epochs", "2"]
        given = [str(path), *common, "--checkpoint", str(tmp_path / name), "--checkpoint-steps", "3", *more]
        monkeypatch.setattr(sys, "argv", given)
        runpy.run_path(str(path), run_name="__main__")
        return torch.load(tmp_path / name)

    whole = run("whole.pt")
    saves = itertools.count(1)

    def stop(state, target):
        # After 3, 6, 9 steps, at the end of the epoch of 10, and after 12.
        if next(saves) == 6:
            raise KeyboardInterrupt
        save(state, target)

    monkeypatch.setattr(torch, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        run("cut.pt")
    monkeypatch.setattr(torch, "save", save)
    assert [torch.load(tmp_path / "cut.pt")["loader"][name] for name in ("epoch", "step")] == [1, 2]
    resumed = run("cut.pt", "--resume")
    assert resumed["loader"] == whole["loader"]
    assert all(torch.equal(weights, whole["model"][name]) for name, weights in resumed["model"].items())
