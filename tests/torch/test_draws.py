"""Random augmentation: the same for a sample in an epoch whatever the number of threads and ranks, and after a resume."""

import itertools

import foresee
import numpy
import pytest
import torch
import torch.nn.functional as F
from foresee import transforms as T
from foresee.torch import DataLoader, sample_seed
from torch import nn
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


ONES = torch.ones(2, 3, 6, 6)


def attended():
    row = torch.ones(2, 4)
    return nn.MultiheadAttention(4, 2, dropout=0.5)(row, row, row)[0].detach()


#: What people may call in a transform that draws: functions that take no generator, those that call others, all shapes.
DRAWN = {
    "dropout": lambda: F.dropout(ONES),
    "nn.Dropout": lambda: nn.Dropout()(ONES),
    "dropout1d": lambda: F.dropout1d(ONES[0]),
    "dropout2d": lambda: F.dropout2d(ONES),
    "dropout3d": lambda: F.dropout3d(ONES.view(2, 6, 3, 2, 3)),
    "alpha_dropout": lambda: F.alpha_dropout(ONES, training=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(ONES, training=True),
    "torch.dropout_": lambda: torch.dropout_(ONES.clone(), 0.5, True),
    "torch.feature_dropout": lambda: torch.feature_dropout(ONES, 0.5, True),
    "torch.native_dropout": lambda: torch.native_dropout(ONES, 0.5, True)[0],
    "with gradients": lambda: F.dropout(ONES.clone().requires_grad_()).detach(),
    "inference": lambda: torch.inference_mode()(lambda: F.dropout(ONES))().clone(),
    "inference of rrelu": lambda: torch.inference_mode()(lambda: F.rrelu(-ONES, training=True))().clone(),
    "rrelu": lambda: F.rrelu(-ONES, training=True),
    "rrelu_": lambda: torch.rrelu_(-ONES, training=True),
    "gumbel_softmax": lambda: F.gumbel_softmax(ONES),
    "attention": lambda: F.scaled_dot_product_attention(ONES, ONES, torch.rand(2, 3, 6, 6), dropout_p=0.5),
    "a layer with attention": attended,
    "init.uniform_": lambda: nn.init.uniform_(torch.empty(9)),
    "init.trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(9)),
    "init.kaiming_normal_": lambda: nn.init.kaiming_normal_(torch.empty(3, 3)),
    "init.orthogonal_": lambda: nn.init.orthogonal_(torch.empty(3, 3)),
    "a layer": lambda: nn.Linear(3, 3).weight.detach(),
    "lstm": lambda: nn.LSTM(3, 3, 2, dropout=0.5)(torch.ones(4, 2, 3))[0].detach(),
    "rand": lambda: torch.rand(3),
    "rand out": lambda: torch.rand(3, out=torch.empty(3)),
    "randn": lambda: torch.randn(3, dtype=torch.float64),
    "randint": lambda: torch.randint(10**6, (5,)),
    "randint of two": lambda: torch.randint(5, 10**6, (5,)),
    "randperm": lambda: torch.randperm(30),
    "rand_like": lambda: torch.rand_like(ONES),
    "randn_like": lambda: torch.randn_like(ONES),
    "randint_like": lambda: torch.randint_like(ONES, 10**6),
    "multinomial": lambda: torch.multinomial(torch.ones(10**4), 4),
    "poisson": lambda: torch.poisson(100 * ONES),
    "binomial": lambda: torch.binomial(100 * ONES, ONES / 2),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "bernoulli": lambda: torch.bernoulli(ONES / 2),
    "in place": lambda: torch.cat([torch.empty(9).random_(), torch.empty(9).cauchy_(), torch.empty(9).log_normal_()]),
    "in place too": lambda: torch.cat([torch.empty(9).exponential_(), torch.empty(9).geometric_(0.01)]),
    "Gamma": lambda: torch.distributions.Gamma(2.0, 3.0).sample((2,)),
    "Dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3)).sample(),
    "svd_lowrank": lambda: torch.svd_lowrank(torch.arange(64.0).view(8, 8))[0],
    "Sobol": lambda: torch.quasirandom.SobolEngine(2, scramble=True).draw(3),
    "vmap": lambda: torch.func.vmap(lambda one: one + torch.rand(()), randomness="different")(ONES),
}


@pytest.fixture(scope="module")
def drawn(images):
    """What each of these draws for eight samples in two epochs, by the number of workers; and what the program draws then."""
    folder = datasets.ImageFolder(images, lambda _: {name: draw() for name, draw in DRAWN.items()})
    folder.samples = folder.samples[:8]

    def of_loader(workers):
        torch.manual_seed(5)
        with DataLoader(folder, 8, seed=3, num_workers=workers) as loader:
            epochs = [data for _ in range(2) for data, _ in loader]
        return {name: torch.stack([one[name] for one in epochs]) for name in DRAWN}, torch.rand(3)

    return {workers: of_loader(workers) for workers in (0, 3)}


@pytest.mark.parametrize("name", DRAWN)
def test_whatever_draws_is_keyed_by_epoch_and_sample(drawn, name):
    alone, several = (drawn[workers][0][name] for workers in (0, 3))
    assert torch.equal(alone, several)
    assert not torch.equal(alone[0], alone[1])
    assert len({tuple(one.flatten().tolist()) for one in alone[0]}) > 1


def test_whatever_draws_leaves_the_programs_generator_alone(drawn):
    torch.manual_seed(5)
    for _ in range(2):
        # What torch's loader draws for its workers, once an epoch.
        torch.empty((), dtype=torch.int64).random_()
    expected = torch.rand(3)
    assert all(torch.equal(after, expected) for _, after in drawn.values())


def test_every_operator_of_torch_that_draws_can_be_given_a_generator_or_is_an_accelerators():
    from foresee import _draws

    # Attention picks a kernel here, and draws by dropout.
    accelerators = ("cudnn", "miopen", "mps", "flash", "efficient", "mem_eff", "triton", "overrideable", "sdp_choice")
    left = set()
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, kind = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not hasattr(torch.ops.aten, packet):
            continue
        operator = getattr(getattr(torch.ops.aten, packet), kind or "default", None)
        if operator is None or not _draws._draws(operator) or _draws._with_generator(operator) is not None:
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
            left.add(operator.name())
    left = {name for name in left if not any(word in name for word in accelerators)}
    # The first draws nothing, the second is what no function calls.
    assert left == {"aten::_nested_tensor_softmax_with_shape", "aten::native_dropout.out"}, "torch draws in other ways"


def test_a_transform_that_draws_does_not_keep_other_threads_from_running_compiled_code(images):
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode

    inside = []

    def chosen(_):
        # A function in Python that torch lets others override is where operators are looked at.
        return torch.overrides.handle_torch_function(noted, (ONES,), ONES)

    def noted(tensor):
        inside.append((torch._C._len_torch_dispatch_stack(), is_in_torch_dispatch_mode()))
        return F.dropout(tensor)

    list(DataLoader(datasets.ImageFolder(images, chosen), 8, num_workers=2))
    assert set(inside) == {(1, False)}


def test_a_generator_that_a_transform_gives_is_used(images):
    def fixed(_):
        return torch.rand(2, generator=torch.Generator().manual_seed(1))

    first = next(iter(DataLoader(datasets.ImageFolder(images, fixed), 4)))[0]
    assert all(torch.equal(row, fixed(None)) for row in first)


def test_a_seed_of_a_sample_is_for_transforms_only():
    with pytest.raises(foresee.ForeseeError, match="transform"):
        sample_seed()
