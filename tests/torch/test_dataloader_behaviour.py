"""What torch's users rely on: order, length, samplers, drop_last, collation, errors, states. Compared with torch's loader."""

import warnings

import foresee
import pytest
import torch
from foresee.torch import DataLoader
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as Torchs


class Numbers(torch.utils.data.Dataset):
    """What torch's loader is given; foresee's has files of the same bytes."""

    def __init__(self, paths, labels):
        self.data = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
        self.labels = labels

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.labels[index]


@pytest.fixture
def both(rows):
    """Call it with a loader's arguments: torch's loader and ours. Callables make an argument for each."""

    def make(*args, **options):
        def given():
            return {
                name: value() if callable(value) and name != "collate_fn" else value for name, value in options.items()
            }

        return Torchs(Numbers(*rows), *args, **given()), DataLoader(foresee.Files(*rows), *args, **given())

    return make


def assert_same(expected, got):
    expected, got = list(expected), list(got)
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        assert len(one) == len(other) == 2
        for left, right in zip(one, other, strict=True):
            assert torch.equal(torch.as_tensor(left), torch.as_tensor(right))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 41])
def test_without_shuffle_the_order_is_that_of_the_dataset(both, batch_size, drop_last):
    theirs, ours = both(batch_size, drop_last=drop_last)
    assert len(theirs) == len(ours)
    for _ in range(2):
        assert_same(theirs, ours)


def test_a_batch_may_be_larger_than_the_dataset_unless_it_is_dropped(both, rows):
    assert_same(*both(50))
    with pytest.raises(ValueError, match="smaller batch"):
        DataLoader(foresee.Files(*rows), 50, drop_last=True)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("of_sampler", [False, True])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_distributed_sampler_is_followed_epoch_by_epoch(rows, rank, of_sampler, drop_last):
    dataset = Numbers(*rows)
    samplers = [DistributedSampler(dataset, 3, rank, seed=11, drop_last=of_sampler) for _ in range(2)]
    theirs = Torchs(dataset, 3, sampler=samplers[0], drop_last=drop_last)
    ours = DataLoader(foresee.Files(*rows), 3, sampler=samplers[1], drop_last=drop_last)
    assert len(theirs) == len(ours)
    for epoch in (0, 1, 5, 2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        assert_same(theirs, ours)


def test_a_forgotten_set_epoch_of_a_sampler_warns_once(rows):
    dataset = Numbers(*rows)
    loader = DataLoader(foresee.Files(*rows), 8, sampler=DistributedSampler(dataset, 1, 0))
    list(loader)
    with pytest.warns(UserWarning, match="epoch 0 begins again"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_epochs_advance_by_themselves_and_set_epoch_goes_elsewhere(rows):
    dataset = Numbers(*rows)
    sampler = DistributedSampler(dataset, 1, 0, seed=5)
    theirs, ours = Torchs(dataset, 8, sampler=sampler), DataLoader(foresee.Files(*rows), 8, shuffle=True, seed=5)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert_same(theirs, ours)
    for epoch in (7, 8, 20):
        sampler.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert_same(theirs, ours)
    ours.set_epoch(1)
    sampler.set_epoch(1)
    with pytest.warns(UserWarning, match="begins again"):
        assert_same(theirs, ours)


def test_the_loaders_sampler_is_torchs_and_sets_the_epoch(rows):
    loader = DataLoader(foresee.Files(*rows), 8, shuffle=True, seed=5)
    loader.sampler.set_epoch(4)
    expected = [rows[1][index] for index in loader.sampler]
    assert [label for _, labels in loader for label in labels.tolist()] == expected
    assert len(loader.batch_sampler) == len(loader) and loader.batch_size == 8


@pytest.mark.parametrize(
    "make",
    [
        lambda: range(40, -1, -1),
        lambda: [3, 3, 1, 40, 0],
        lambda: SequentialSampler(range(17)),
        lambda: RandomSampler(range(41), generator=torch.Generator().manual_seed(2)),
        lambda: RandomSampler(range(41), replacement=True, num_samples=70, generator=torch.Generator().manual_seed(2)),
        lambda: SubsetRandomSampler([5, 9, 2, 30], generator=torch.Generator().manual_seed(2)),
        lambda: WeightedRandomSampler([1.0] * 41, 25, generator=torch.Generator().manual_seed(2)),
        lambda: torch.tensor([4, 2, 0]),
    ],
)
def test_a_sampler_is_the_order_of_each_epoch(both, make):
    theirs, ours = both(4, sampler=make)
    assert len(theirs) == len(ours)
    for _ in range(3):
        assert_same(theirs, ours)


def test_a_sampler_draws_from_the_global_generator_as_with_torch(both):
    theirs, ours = both(4, sampler=lambda: RandomSampler(range(41)))
    torch.manual_seed(1)
    expected = [*theirs, *theirs]
    torch.manual_seed(1)
    assert_same(expected, [*ours, *ours])


def test_shuffle_with_a_generator_is_torchs(both):
    theirs, ours = both(4, shuffle=True, generator=lambda: torch.Generator().manual_seed(8))
    for _ in range(3):
        assert_same(theirs, ours)


class Uneven(Sampler):
    def __iter__(self):
        yield from ([1, 2, 3], [4], [5, 6, 7, 8], [0, 0])

    def __len__(self):
        return 4


@pytest.mark.parametrize(
    "make", [lambda: BatchSampler(SequentialSampler(range(41)), 6, False), Uneven, lambda: [[1, 2], [3, 4], [9]]]
)
def test_a_batch_sampler_gives_the_batches(both, make):
    theirs, ours = both(batch_sampler=make)
    assert len(theirs) == len(ours) and ours.batch_size is None
    for _ in range(2):
        assert_same(theirs, ours)


def test_without_batches_samples_come_one_by_one(both):
    theirs, ours = both(None)
    assert len(theirs) == len(ours) == 41
    assert_same(theirs, ours)


def test_a_collate_function_gets_the_list_of_samples(rows):
    seen = []

    def collate(samples):
        seen.append(samples)
        return sum(label for _, label in samples)

    sums = list(DataLoader(foresee.Files(*rows), 10, collate_fn=collate))
    assert sums == [sum(rows[1][first : first + 10]) for first in range(0, 41, 10)]
    assert [len(samples) for samples in seen] == [10, 10, 10, 10, 1]
    assert bytes(seen[0][3][0]) == rows[0][3].read_bytes()


def test_a_collate_function_gets_decoded_images(images):
    from foresee import transforms as T

    dataset = foresee.ImageFolder(images, transform=T.Resize((8, 9)))
    plain = [data.clone() for data, _ in DataLoader(dataset, 6)]

    def collate(samples):
        assert all(data.shape == (3, 8, 9) and isinstance(label, int) for data, label in samples)
        return torch.stack([data for data, _ in samples])

    for expected, got in zip(plain, DataLoader(dataset, 6, collate_fn=collate), strict=True):
        assert torch.equal(expected, got)


def test_samples_of_different_lengths_make_no_tensor(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(b"x" * (1 + len(str(path.name) * (path.name == "b"))))
    with pytest.raises(ValueError, match="give the dataset a transform, or the loader a collate_fn"):
        list(DataLoader(foresee.Files(paths), 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shuffle": True, "sampler": [0]}, "sampler: not with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler: not with"),
        ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler: not with"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None: not with drop_last"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"timeout": -1}, "timeout=-1"),
        ({"prefetch_factor": 2}, "prefetch_factor=2: only with"),
        ({"persistent_workers": True}, "persistent_workers=True: only with"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_contradictions_are_refused_as_torch_does(rows, options, said):
    with pytest.raises(ValueError, match=said):
        DataLoader(foresee.Files(*rows), **options)
    with pytest.raises(ValueError):
        Torchs(Numbers(*rows), **options)


@pytest.mark.parametrize("dataset", [[1, 2, 3], object(), iter([1])])
def test_what_has_no_files_is_refused(dataset):
    with pytest.raises(TypeError, match="`samples`"):
        DataLoader(dataset)


def test_an_index_outside_of_the_dataset_is_named(rows):
    with pytest.raises(ValueError, match="41"):
        list(DataLoader(foresee.Files(*rows), 2, sampler=[0, 41]))


def test_a_second_iteration_ends_the_first(rows):
    loader = DataLoader(foresee.Files(*rows), 4)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert_same([next(second)], [next(iter(DataLoader(foresee.Files(*rows), 4)))])
    with pytest.raises(foresee.ForeseeError, match="another one"):
        next(first)


def test_after_a_break_the_next_epoch_is_whole(rows):
    loader = DataLoader(foresee.Files(*rows), 4, shuffle=True)
    for _ in loader:
        break
    assert sorted(label for _, labels in loader for label in labels.tolist()) == sorted(rows[1])


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {}, {"sampler": [4, 2, 0, 1, 3, 9, 7]}, {"batch_sampler": Uneven()}]
)
@pytest.mark.parametrize("delivered", [0, 1, 2, None])
def test_a_state_goes_on_with_the_very_next_batch(rows, options, delivered):
    def make():
        size = {} if "batch_sampler" in options else {"batch_size": 3}
        return DataLoader(foresee.Files(*rows), **size, **options)

    loader = make()
    list(loader)
    taken = []
    for batch in loader if delivered != 0 else ():
        taken.append(batch)
        if len(taken) == delivered:
            break
    state = loader.state_dict()
    reference = make()
    list(reference)
    if delivered is None:
        list(reference)
        expected = list(reference)
    else:
        expected = list(reference)[delivered:]
    resumed = make()
    resumed.load_state_dict(state)
    assert_same(expected, resumed)
    assert len(list(resumed)) == len(resumed)


def test_set_epoch_keeps_the_place_of_a_state(rows):
    loader = DataLoader(foresee.Files(*rows), 3, shuffle=True)
    whole = list(loader)
    again = DataLoader(foresee.Files(*rows), 3, shuffle=True)
    iteration = iter(again)
    next(iteration), next(iteration)
    resumed = DataLoader(foresee.Files(*rows), 3, shuffle=True)
    resumed.load_state_dict(again.state_dict())
    resumed.set_epoch(0)
    assert_same(whole[2:], resumed)


def test_a_state_of_one_rank_goes_on_with_two(rows):
    loader = DataLoader(foresee.Files(*rows), 4, shuffle=True, rank=0, world_size=1, seed=2)
    iteration = iter(loader)
    next(iteration)
    expected = sorted(torch.cat([labels for _, labels in iteration]).tolist())
    iteration = iter(loader2 := DataLoader(foresee.Files(*rows), 4, shuffle=True, rank=0, world_size=1, seed=2))
    next(iteration)
    got = []
    for rank in range(2):
        part = DataLoader(foresee.Files(*rows), 2, shuffle=True, rank=rank, world_size=2, seed=2)
        part.load_state_dict(loader2.state_dict())
        got += [label for _, labels in part for label in labels.tolist()]
    assert sorted(got) == expected


def test_epochs_end_where_they_were_said_to(rows):
    loader = DataLoader(foresee.Files(*rows), 20, epochs=1)
    list(loader)
    with pytest.raises(ValueError, match="epochs=1"):
        iter(loader)


def test_epochs_without_end_cost_nothing(rows):
    loader = DataLoader(
        foresee.Files(*rows), 4, shuffle=True, config={"tier": [{"kind": "memory", "capacity": "1 MB"}]}
    )
    loader.set_epoch(1_000_000)
    next(iter(loader))
    stats = loader.stats()
    assert stats["elapsed_s"] < 5 and stats["source_minimum_bytes"] is None
    assert "epochs without end" in loader.summary()


def test_tensors_share_the_loaders_memory_and_give_it_back(images):
    from foresee import transforms as T

    dataset = foresee.ImageFolder(images, transform=T.Resize((16, 16)))
    loader = DataLoader(dataset, 4, config={"staging": {"capacity": 768 * 64}})
    start, size = loader.job.buffer.address, len(loader.job.buffer)
    for _ in range(5):
        for data, _ in loader:
            assert start <= data.data_ptr() < start + size
    assert loader.stats()["outside"] == 0


def test_a_closed_loader_says_so_and_closing_twice_is_fine(rows):
    loader = DataLoader(foresee.Files(*rows), 4)
    iteration = iter(loader)
    next(iteration)
    loader.close()
    loader.close()
    with pytest.raises(foresee.ForeseeError):
        next(iteration)
    with pytest.raises(foresee.ForeseeError, match="closed"):
        iter(loader)


def test_a_timeout_ends_a_wait(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000)
    slow = foresee.emulate(f"timeout{tmp_path.name}", mb_per_s=0.01)
    with (
        DataLoader(foresee.Files([path], throttle=slow), timeout=0.2) as loader,
        pytest.raises(foresee.ForeseeError, match="timeout"),
    ):
        next(iter(loader))


def test_images_changed_in_place_stay_as_they_are_for_the_next_epoch(images):
    from foresee import transforms as T

    dataset = foresee.ImageFolder(images, transform=T.Resize((6, 6)))
    tier = {"tier": [{"kind": "memory", "capacity": "4 MiB"}]}
    with DataLoader(dataset, 5, config=tier) as loader:
        first = [data.clone() for data, _ in loader]
        for data, _ in loader:
            data.zero_()
        assert all(torch.equal(data, before) for (data, _), before in zip(loader, first, strict=True))
