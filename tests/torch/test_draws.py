"""Random augmentation: the same for a sample in an epoch whatever the number of threads and ranks, and after a resume."""

import itertools

import foresee
import numpy
import pytest
import torch
from foresee import transforms as T
from foresee.torch import DataLoader, sample_seed
from torchvision import datasets
from torchvision import transforms as tv
from torchvision.transforms import v2


def noisy(image):
    """Draws in ways of its own, as people do."""
    shift = torch.normal(torch.zeros(1), 1.0).item() + torch.distributions.Beta(2.0, 3.0).sample().item()
    other = numpy.random.default_rng(sample_seed()).random()
    return image + shift + other + torch.empty(1).exponential_().item() + torch.bernoulli(torch.tensor([0.5])).item()


PYTHON = {
    "v1": tv.Compose(
        [
            tv.RandomResizedCrop(12),
            tv.RandomHorizontalFlip(),
            tv.ColorJitter(0.4, 0.4, 0.4, 0.1),
            tv.RandomApply([tv.GaussianBlur(3)], 0.5),
            tv.RandomRotation(20),
            tv.ToTensor(),
            tv.RandomErasing(),
            noisy,
        ]
    ),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop((12, 12)),
            v2.RandomChoice([v2.RandomPosterize(3), v2.RandomInvert()]),
            v2.RandAugment(),
            v2.TrivialAugmentWide(),
            v2.ToDtype(torch.float32, scale=True),
            v2.GaussianNoise(),
            noisy,
        ]
    ),
}
NATIVE = T.Compose([T.RandomResizedCrop(12), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.ToTensor()])


@pytest.fixture(params=["v1", "v2", "native"])
def dataset(request, images):
    """Its labels say which sample it is."""
    if request.param == "native":
        paths = foresee.ImageFolder(images).paths()
        return foresee.Files(paths, range(len(paths)), transform=NATIVE)
    folder = datasets.ImageFolder(images, PYTHON[request.param])
    folder.samples = [(path, number) for number, (path, _) in enumerate(folder.samples)]
    return folder


def seen(loader, epochs=2):
    """Each sample's image in each epoch."""
    images = {}
    for epoch in range(epochs):
        for data, labels in loader:
            images |= {(epoch, label): image.clone() for image, label in zip(data, labels.tolist(), strict=True)}
    return images


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(image, other[key]) for key, image in one.items())


def test_the_number_of_threads_and_of_ranks_and_the_order_change_nothing(dataset):
    with DataLoader(dataset, 5, shuffle=True, seed=3) as loader:
        alone = seen(loader)
    assert len(alone) == 2 * 37 and not torch.equal(alone[0, 7], alone[1, 7])
    for workers in (1, 4):
        with DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=workers) as loader:
            assert same(alone, seen(loader))
    ranks = {}
    for rank in range(3):
        with DataLoader(dataset, 2, shuffle=True, seed=3, num_workers=2, rank=rank, world_size=3) as loader:
            part = seen(loader)
        assert all(torch.equal(image, ranks[key]) for key, image in part.items() if key in ranks)
        ranks |= part
    assert same(alone, ranks)
    with DataLoader(dataset, 5, sampler=range(36, -1, -1), seed=3, num_workers=2) as loader:
        assert same(alone, seen(loader))
    with DataLoader(dataset, 5, shuffle=True, seed=4) as loader:
        assert not same(alone, seen(loader))


def test_a_resume_goes_on_byte_for_byte(dataset):
    def make(workers):
        return DataLoader(dataset, 5, shuffle=True, seed=3, num_workers=workers)

    with make(2) as loader:
        whole = [data.clone() for _ in range(2) for data, _ in loader]
    with make(3) as loader:
        for _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
    with make(0) as loader:
        loader.load_state_dict(state)
        rest = [data.clone() for _ in range(2) for data, _ in loader]
    assert len(rest) == len(whole) - 3 and all(map(torch.equal, rest, whole[3:]))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generator_of_the_program_is_left_alone(images, workers):
    with DataLoader(datasets.ImageFolder(images, PYTHON["v2"]), 5, num_workers=workers) as loader:
        iteration = iter(loader)
        torch.manual_seed(5)
        list(iteration)
        drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def test_a_generator_that_a_transform_gives_is_used(images):
    def fixed(_):
        return torch.rand(2, generator=torch.Generator().manual_seed(1))

    first = next(iter(DataLoader(datasets.ImageFolder(images, fixed), 4)))[0]
    assert all(torch.equal(row, fixed(None)) for row in first)


def test_a_seed_of_a_sample_is_for_transforms_only():
    with pytest.raises(foresee.ForeseeError, match="transform"):
        sample_seed()
