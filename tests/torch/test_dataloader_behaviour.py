"""What torch's users rely on: order, length, samplers, drop_last, collation, errors, states. Compared with torch's loader."""

import io
import json
import pickle
import threading
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


@pytest.mark.parametrize("index", [41, -1, 2**40])
def test_an_index_outside_of_the_dataset_is_named(rows, index):
    with pytest.raises(ValueError, match=str(index)):
        list(DataLoader(foresee.Files(*rows), 2, sampler=[0, index]))


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
    # The last step has one sample for two ranks: one gets one again.
    assert set(expected) <= set(got) and len(got) == len(expected) + 1


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
    assert stats["source_minimum_bytes"] is None
    assert "its minimum is not known" in loader.summary()


def test_tensors_share_the_loaders_memory_and_give_it_back(images):
    from foresee import transforms as T

    dataset = foresee.ImageFolder(images, transform=T.Resize((16, 16)))
    # Three batches: one in the trainer's hands, one whole, one on its way. The last one of an epoch is shorter.
    loader = DataLoader(dataset, 4, shuffle=True, num_workers=3, config={"staging": {"capacity": 3 * 4 * 768}})
    start, size = loader.job.buffer.address, len(loader.job.buffer)
    for _ in range(20):
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_workers": 1.5}, "num_workers=1.5"),
        ({"timeout": "soon"}, "timeout='soon'"),
        ({"num_workers": 1, "multiprocessing_context": object()}, "multiprocessing_context="),
        ({"sampler": 3}, "sampler=3"),
        ({"batch_sampler": 3}, "batch_sampler=3"),
        ({"sampler": ["a"]}, "sampler: 'a' is no number"),
        ({"sampler": [1.5]}, "sampler: 1.5 is no number"),
        ({"generator": 3}, "generator=3"),
        ({"batch_size": "4"}, "batch_size='4'"),
        ({"batch_size": None, "sampler": [[0, 1], [2, 3]]}, "is no number of a sample"),
    ],
)
def test_what_has_the_wrong_type_is_named(rows, options, said):
    with pytest.raises(TypeError, match=said) as raised:
        list(DataLoader(foresee.Files(*rows), **options))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["batch_size", "sampler", "batch_sampler", "drop_last", "dataset"])
def test_what_was_given_cannot_be_set_afterwards(rows, name):
    loader = DataLoader(foresee.Files(*rows), 4)
    with pytest.raises(ValueError, match=f"{name}: cannot be set"):
        setattr(loader, name, 1)


def test_pinning_without_an_accelerator_warns_as_torch_does(both):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    theirs, ours = both(4, pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory"):
        expected = list(theirs)
    with pytest.warns(UserWarning, match="pin_memory=True: there is no accelerator"):
        got = list(ours)
    assert_same(expected, got)
    assert not got[0][0].is_pinned()


def test_a_function_for_workers_that_nobody_calls_warns(rows):
    with pytest.warns(UserWarning, match="worker_init_fn: not called"):
        DataLoader(foresee.Files(*rows), num_workers=2, worker_init_fn=print)


def test_settings_of_worker_processes_are_accepted(both):
    options = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "multiprocessing_context": "spawn"}
    ours = both(4, **options, in_order=False)[1]
    assert_same(both(4)[0], ours)
    assert DataLoader[list[torch.Tensor]] is not None


class Counted(Sampler):
    """Draws from its own generator, and knows its epoch as DistributedSampler does."""

    def __init__(self, shuffle=True):
        self.epoch, self.shuffle = 0, shuffle

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(41, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        yield from order if self.shuffle else range(41)

    def __len__(self):
        return 41


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_sampler_whose_epoch_nobody_sets_warns_once(rows, in_batches):
    sampler = Counted()
    given = {"batch_sampler": BatchSampler(sampler, 4, False)} if in_batches else {"sampler": sampler, "batch_size": 4}
    loader = DataLoader(foresee.Files(*rows), **given)
    list(loader)
    with pytest.warns(UserWarning, match="the same order again"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
        list(plain := DataLoader(foresee.Files(*rows), sampler=Counted(shuffle=False)))
        list(plain)
    loader.set_epoch(9)
    assert sampler.epoch == 9


def test_batches_of_a_batch_sampler_may_change_from_epoch_to_epoch(both):
    class Changing:
        def __init__(self):
            self.epoch = 0

        def __iter__(self):
            self.epoch += 1
            size = [4, 4, 7, 4][self.epoch - 1]
            yield from (list(range(first, min(first + size, 41))) for first in range(0, 41, size))

        def __len__(self):
            return 11

    theirs, ours = both(batch_sampler=Changing)
    for _ in range(4):
        assert_same(theirs, ours)


@pytest.mark.parametrize("delivered", [0, 2, None])
@pytest.mark.parametrize("kind", ["shuffle", "random", "weighted", "batches"])
def test_a_state_holds_what_generators_draw_next(rows, kind, delivered):
    def make():
        generator = torch.Generator().manual_seed(4)
        if kind == "shuffle":
            return DataLoader(foresee.Files(*rows), 6, shuffle=True, generator=generator)
        if kind == "weighted":
            drawn = WeightedRandomSampler([1.0] * 41, 41, generator=generator)
            return DataLoader(foresee.Files(*rows), 6, sampler=drawn, generator=generator)
        drawn = RandomSampler(range(41), generator=generator)
        if kind == "random":
            return DataLoader(foresee.Files(*rows), 6, sampler=drawn)
        return DataLoader(foresee.Files(*rows), batch_sampler=BatchSampler(drawn, 6, False))

    loader = make()
    list(loader)
    iteration = iter(loader)
    before = list(iteration) if delivered is None else [next(iteration) for _ in range(delivered)]
    state = json.loads(json.dumps(loader.state_dict()))
    expected = [*iteration, *loader, *loader]
    resumed = make()
    resumed.load_state_dict(state)
    epochs = 2 if delivered is None else 3
    assert len(before) + len(expected) == 3 * 7
    assert_same(expected, [batch for _ in range(epochs) for batch in resumed])


class Resumable(Sampler):
    """A sampler with a state, as torchdata's: another iteration goes on where the state stands."""

    def __init__(self):
        self.yielded, self.begin = 0, None

    def __iter__(self):
        self.yielded, self.begin = self.begin or 0, None
        for index in range(self.yielded, 41):
            self.yielded += 1
            yield index

    def __len__(self):
        return 41

    def state_dict(self):
        return {"yielded": self.yielded}

    def load_state_dict(self, state):
        self.begin = state["yielded"]


@pytest.mark.parametrize("delivered", [3, 11])
def test_a_sampler_with_a_state_loses_nothing(rows, delivered):
    loader = DataLoader(foresee.Files(*rows), 4, sampler=Resumable())
    whole = list(loader)
    iteration = iter(loader)
    for _ in range(delivered):
        next(iteration)
    if delivered == len(whole):
        assert next(iteration, None) is None
    resumed = DataLoader(foresee.Files(*rows), 4, sampler=Resumable())
    resumed.load_state_dict(loader.state_dict())
    if delivered < len(whole):
        assert_same(whole[delivered:], resumed)
    assert_same(whole, resumed)


def test_a_state_of_a_sampler_goes_on_with_its_batches_and_then_with_ours(rows):
    loader = DataLoader(foresee.Files(*rows), 4, sampler=range(41))
    iteration = iter(loader)
    for _ in range(3):
        next(iteration)
    resumed = DataLoader(foresee.Files(*rows), 8, sampler=range(41))
    resumed.load_state_dict(loader.state_dict())
    assert_same(list(iteration), resumed)
    assert_same(list(DataLoader(foresee.Files(*rows), 8)), resumed)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (7, "give what state_dict"),
        ({}, "give what state_dict"),
        ({"epoch": 1}, "give what state_dict"),
        ({"epoch": "one", "step": 0}, "state..epoch"),
        ({"epoch": 0, "step": -1}, "state..step"),
        ({"epoch": 0, "step": 0}, "one run has a sampler"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "batches": 5}, "state..batches"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "batches": [["x"]]}, "state..batches"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "loader_seed": 9}, "seed=9"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "generators": ["00"]}, "1 generators then"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "generators": 5}, "state..generators"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "generators": ["x"]}, "state..generators"),
        ({"epoch": 0, "step": 9, "shuffle": "sampler", "batches": [[1]]}, "state..step"),
        ({"epoch": 0, "step": 0, "shuffle": "sampler", "global_batch": "4"}, "state..global_batch"),
    ],
)
def test_what_is_no_state_is_refused_in_one_line(rows, state, said):
    loader = DataLoader(foresee.Files(*rows), 4, sampler=[0, 1, 2, 3, 4])
    with pytest.raises((ValueError, TypeError), match=said) as raised:
        loader.load_state_dict(state)
    assert isinstance(raised.value, foresee.ForeseeError) and "\n" not in str(raised.value)
    assert len(list(loader)) == 2


def test_a_state_of_another_seed_is_refused_also_without_shuffle(rows):
    loader = DataLoader(foresee.Files(*rows), 4, seed=1)
    with pytest.raises(ValueError, match="seed=1"):
        DataLoader(foresee.Files(*rows), 4, seed=2).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [5, 3, 1, 0, 2, 4]}])
def test_a_loader_can_be_pickled_and_goes_on_where_it_stood(rows, options):
    loader = DataLoader(foresee.Files(*rows), 2, seed=None, **options)
    list(loader)
    iteration = iter(loader)
    next(iteration)
    with pytest.raises(TypeError, match="pickle the loader"):
        pickle.dumps(iteration)
    copy = pickle.loads(pickle.dumps(loader))
    assert_same(list(iteration), copy)
    assert_same(loader, copy)


def test_a_loader_goes_on_in_a_forked_child(rows, images):
    import multiprocessing

    from torchvision import datasets
    from torchvision import transforms as tv

    folder = datasets.ImageFolder(images, tv.Compose([tv.Resize((4, 4)), tv.ToTensor()]))
    loader = DataLoader(folder, 5, shuffle=True, num_workers=2)
    iteration = iter(loader)
    next(iteration)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child():
        try:
            next(iteration)
        except foresee.ForeseeError as wrong:
            theirs.send(str(wrong))
        theirs.send(sorted(label for _, labels in loader for label in labels.tolist()))

    process = context.Process(target=child, daemon=True)
    process.start()
    assert ours.poll(60) and "belongs to the process that forked" in ours.recv()
    assert ours.poll(60) and ours.recv() == sorted(folder.targets)
    process.join(60)
    assert process.exitcode == 0 and len(list(iteration)) == 7


def test_an_exception_in_the_loop_leaves_the_loader_as_after_a_break(rows):
    loader = DataLoader(foresee.Files(*rows), 4, shuffle=True)
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    assert sorted(label for _, labels in loader for label in labels.tolist()) == sorted(rows[1])
    assert loader.state_dict()["epoch"] == 2


def test_progress_shows_a_loader_without_a_length_and_one_that_goes_on(rows):
    class Endless:
        def __iter__(self):
            return iter([[1, 2], [3, 4], [5]])

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    assert len(list(foresee.progress(DataLoader(foresee.Files(*rows), batch_sampler=Endless()), file=out))) == 3
    last = out.getvalue().split("\r")[-1]
    assert last.startswith("3  ") and "source 100%" in last and " 0 samples/s" not in last
    loader = DataLoader(foresee.Files(*rows), 4, shuffle=True)
    iteration = iter(loader)
    next(iteration), next(iteration)
    loader.load_state_dict(loader.state_dict())
    out = Terminal()
    assert len(list(foresee.progress(loader, file=out))) == 9
    assert out.getvalue().split("\r")[-1].startswith("11/11  ")


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_state_after_each_batch_goes_on_with_the_next_one(rows, drop_last, sampled):
    def make():
        order = {"sampler": list(range(41))} if sampled else {"shuffle": True}
        return DataLoader(foresee.Files(rows[0], range(41)), 4, drop_last=drop_last, epochs=3, **order)

    def labels(batches):
        return [got.tolist() for _, got in batches]

    loader = make()
    states, whole = [], []
    for epoch in range(3):
        for _, got in loader:
            whole.append((epoch, got.tolist()))
            states.append(loader.state_dict())
    for at, state in enumerate(states, 1):
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        # What is left of its epoch, nothing after the last batch, then the epochs after it.
        for epoch in range(states[at - 1]["epoch"], 3):
            assert labels(resumed) == [batch for which, batch in whole[at:] if which == epoch]


def test_ranks_that_go_on_in_another_number_have_equally_many_batches(rows):
    loader = DataLoader(foresee.Files(rows[0], range(41)), 4, shuffle=True, rank=0, world_size=1)
    iteration = iter(loader)
    for _ in range(5):
        next(iteration)
    state = loader.state_dict()
    rest = sorted(label for _, got in iteration for label in got.tolist())
    ranks = []
    for rank in range(4):
        resumed = DataLoader(foresee.Files(rows[0], range(41)), 1, shuffle=True, rank=rank, world_size=4)
        resumed.load_state_dict(state)
        ranks.append([[got.tolist() for _, got in resumed] for _ in range(2)])
    assert {tuple(len(epoch) for epoch in epochs) for epochs in ranks} == {(6, 11)}
    got = [label for epochs in ranks for batch in epochs[0] for label in batch]
    # One sample is left for the last step: three ranks get one again.
    assert set(rest) <= set(got) and len(got) == len(rest) + 3


@pytest.mark.parametrize("policy", ["nopfs", "lobster"])
def test_a_policy_that_counts_accesses_wants_the_number_of_epochs(rows, policy):
    with pytest.raises(ValueError, match=f"policy='{policy}': it counts the accesses of all epochs; give epochs, too"):
        DataLoader(foresee.Files(*rows), 4, policy=policy)
    assert len(list(DataLoader(foresee.Files(*rows), 4, policy=policy, epochs=2))) == 11


def test_threads_that_share_an_iteration_get_each_batch_once(rows):
    iteration, got = iter(DataLoader(foresee.Files(rows[0], range(41)), 2, shuffle=True)), []
    threads = [
        threading.Thread(target=lambda: got.extend(labels.tolist() for _, labels in iteration)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(label for labels in got for label in labels) == list(range(41))


def test_a_state_with_too_few_samples_for_all_ranks_is_refused(rows):
    state = DataLoader(foresee.Files(*rows), 2, rank=0, world_size=1).state_dict()
    with pytest.raises(ValueError, match="state: its steps have 2 samples, too few for 4 ranks; use at most 2"):
        DataLoader(foresee.Files(*rows), 1, rank=0, world_size=4).load_state_dict(state)


@pytest.mark.parametrize("shuffle", ["sequential", "feistel", 1])
def test_shuffle_is_true_or_false(rows, shuffle):
    with pytest.raises(TypeError, match=f"shuffle={shuffle!r}: give True or False"):
        DataLoader(foresee.Files(*rows), 2, shuffle=shuffle)


def test_a_state_and_a_copy_know_what_set_epoch_said(rows):
    loader = DataLoader(foresee.Files(*rows), 4, shuffle=True)
    list(loader)
    loader.set_epoch(3)
    resumed = DataLoader(foresee.Files(*rows), 4, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    copied = pickle.loads(pickle.dumps(loader))
    expected = list(loader)
    assert loader.state_dict()["epoch"] == 4
    assert_same(expected, resumed)
    assert_same(expected, copied)


def test_what_happened_is_known_after_closing(rows):
    with DataLoader(foresee.Files(*rows), 4) as loader:
        list(loader)
    assert loader.stats()["samples"] == 41 and "delivered   41 samples" in loader.summary()


def test_a_loader_is_of_the_world_that_is_there_when_an_epoch_begins(rows, monkeypatch):
    dataset = foresee.Files(rows[0], range(41))

    def labels(loader):
        return [label for _, labels in loader for label in labels.tolist()]

    def world(rank, size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))

    expected = [list(DistributedSampler(range(41), 2, rank, seed=5)) for rank in range(2)]
    loader, looked_into = (DataLoader(dataset, 4, shuffle=True, seed=5) for _ in range(2))
    assert len(loader) == len(looked_into) == 11 and len(loader.sampler) == 41
    copy = pickle.loads(pickle.dumps(loader))
    unused = iter(loader)
    next(iter(looked_into))
    looked_into.set_epoch(0)
    world(1, 2)
    for one in (loader, copy, looked_into):
        assert len(one) == 6 and list(one.sampler) == expected[1]
    assert labels(unused) == labels(copy) == expected[1]
    with pytest.warns(UserWarning, match="begins again"):
        assert labels(looked_into) == expected[1]
    iteration = iter(loader)
    first = next(iteration)[1].tolist()
    # Nothing changes under an epoch.
    world(0, 1)
    assert len(loader) == 6 and loader.state_dict()["world"] == 2
    assert len(first + [label for _, labels in iteration for label in labels.tolist()]) == 21
    assert len(loader) == 11 and len(labels(loader)) == 41


def test_an_iteration_of_which_nothing_was_asked_for_is_no_epoch(both):
    theirs, ours = both(4, sampler=lambda: RandomSampler(range(41), generator=torch.Generator().manual_seed(2)))
    iter(ours)
    assert_same(theirs, ours)
    plain = DataLoader(ours.dataset, 4, shuffle=True)
    iter(plain)
    assert plain.state_dict()["epoch"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(plain)
    assert plain.state_dict()["epoch"] == 1
