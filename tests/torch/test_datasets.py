"""Datasets of torchvision: their transforms run on bytes that foresee reads, in order, on threads that always end."""

import inspect
import pickle
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import foresee
import numpy
import pytest
import torch
from foresee import transforms as T
from foresee.torch import DataLoader
from torch.utils.data import DataLoader as Torchs
from torch.utils.data import Dataset, DistributedSampler, Subset, random_split
from torchvision import datasets
from torchvision import transforms as tv
from torchvision.transforms import v2

STEPS = tv.Compose([tv.Resize((12, 10)), tv.ToTensor()])


def same(expected, got):
    expected, got = list(expected), list(got)
    return len(expected) == len(got) and all(
        torch.equal(left[0], right[0]) and torch.equal(left[1], right[1])
        for left, right in zip(expected, got, strict=True)
    )


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("foresee-")]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_image_folder_gives_what_it_gives_with_torch(images, workers):
    dataset = datasets.ImageFolder(images, STEPS, target_transform=lambda label: label + 10)
    sampler = DistributedSampler(dataset, 1, 0, seed=4)
    theirs = Torchs(dataset, 5, sampler=sampler)
    with DataLoader(dataset, 5, shuffle=True, seed=4, num_workers=workers) as ours:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert same(theirs, ours)


def test_a_subset_is_a_part_of_its_dataset(images):
    part = Subset(Subset(datasets.ImageFolder(images, STEPS), range(30, 0, -1)), [3, 0, 9])
    assert same(Torchs(part, 2), DataLoader(part, 2))


def test_a_subset_of_a_dataset_of_ours_is_a_part_of_it(images):
    whole = native(images, None)
    data, labels = next(iter(DataLoader(whole, 37)))
    part = Subset(Subset(whole, range(30, 0, -1)), [3, 0, 9])
    ((got, targets),) = DataLoader(part, 3)
    assert torch.equal(got, data[[27, 30, 21]]) and torch.equal(targets, labels[[27, 30, 21]])


def test_a_loader_of_the_datasets_own_gets_the_file(images):
    def size(file):
        return torch.tensor([len(file.read()), len(file.name)])

    dataset = datasets.DatasetFolder(str(images), loader=size, extensions=(".png",))
    lengths = torch.cat([data[:, 0] for data, _ in DataLoader(dataset, 6, num_workers=2)])
    assert lengths.tolist() == foresee.ImageFolder(images).sizes.tolist()


def test_any_dataset_with_samples_and_a_transform_is_read(images):
    class Plain:
        def __init__(self):
            self.samples = [(str(path), number) for number, path in enumerate(sorted(images.glob("*/*.png")))]
            self.transform = STEPS

        def __len__(self):
            return len(self.samples)

    labels = torch.cat([labels for _, labels in DataLoader(Plain(), 6, num_workers=2)])
    assert labels.tolist() == list(range(37))


def test_transforms_of_foresee_in_a_dataset_of_torchvision_are_done_by_the_loader(images):
    steps = T.Compose([T.RandomResizedCrop(8), T.ToTensor()])
    theirs = DataLoader(datasets.ImageFolder(images, steps), 5, shuffle=True)
    assert same(DataLoader(foresee.ImageFolder(images, transform=steps), 5, shuffle=True), theirs)


class Labelled:
    """A dataset as people write them, with a say of its own in what a sample is."""

    def __init__(self, root):
        self.samples = [(str(path), 0) for path in sorted(root.glob("*/*.png"))]
        self.transform = STEPS

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return torch.zeros(1), 100


class Bulk(datasets.ImageFolder):
    def __getitems__(self, indices):
        return [(torch.zeros(1), 100) for _ in indices]


class WithPath(datasets.ImageFolder):
    def __getitem__(self, index):
        return (*super().__getitem__(index), self.samples[index][0])


class Changed(Subset):
    def __getitem__(self, index):
        data, label = super().__getitem__(index)
        return data, label + 100

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Shown:
    """No Subset of torch's, but it has what one has."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        return self.dataset[self.indices[index]], 100


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("kind", [Labelled, Bulk, WithPath, Changed, Shown])
def test_an_item_of_the_datasets_own_is_refused(images, kind, ours):
    steps = T.Compose([T.Resize((12, 10)), T.ToTensor()]) if ours else STEPS
    if kind in (Changed, Shown):
        whole = foresee.ImageFolder(images, steps) if ours else datasets.ImageFolder(images, steps)
        dataset = kind(whole, range(10))
    else:
        dataset = kind(images)
        dataset.transform = steps
    with pytest.raises(ValueError, match=f"^dataset={kind.__name__}: its __getitems?__ is its own, .* leave it away$"):
        DataLoader(dataset, 4)


class Zeros(foresee.ImageFolder):
    def __getitem__(self, index):
        return torch.zeros(1), 100


class Sevens(foresee.ImageFolder):
    @property
    def targets(self):
        return [7] * len(self)


class Chosen(foresee.ImageFolder):
    samples = (("a.png", 1),)


class Fixed(foresee.ImageFolder):
    transform = T.Resize((8, 8))


def whole(dataset):
    return DataLoader(dataset)


def part(dataset):
    return DataLoader(Subset(dataset, [0, 1]))


def job(dataset):
    return foresee.Job(dataset, 2, 1, shuffle=False)


@pytest.mark.parametrize("read", [whole, part, job])
@pytest.mark.parametrize(
    ("kind", "name"), [(Zeros, "__getitem__"), (Sevens, "targets"), (Chosen, "samples"), (Fixed, "transform")]
)
def test_what_a_subclass_of_ours_says_of_its_samples_is_refused(images, kind, name, read):
    with pytest.raises(ValueError, match=f"^dataset={kind.__name__}: its {name} is its own, and would not be asked; "):
        read(kind(images))


def test_a_subclass_of_ours_that_says_nothing_of_its_samples_is_read(images):
    class Named(Dataset, foresee.ImageFolder):
        def __init__(self, root):
            super().__init__(root, T.Resize((8, 8)))

    assert same(DataLoader(Named(images), 5), DataLoader(foresee.ImageFolder(images, T.Resize((8, 8))), 5))


@pytest.mark.parametrize("read", [whole, part, job])
def test_transforms_that_are_set_hold_for_what_is_made_afterwards(images, read):
    def first(made):
        batch = next(iter(made))
        data, labels = (batch.data, batch.labels) if read is job else batch
        return data.shape[-1], labels.tolist()[0]

    dataset = foresee.ImageFolder(images, T.Resize((8, 8)))
    before = read(dataset)
    dataset.transform = T.Compose([T.Resize((4, 4))])
    dataset.target_transform = lambda label: label + 100
    after = read(dataset)
    dataset.transform.transforms[0] = T.Resize((6, 6))
    assert first(after) == (4, 100) and first(before) == (8, 0)
    assert first(read(dataset)) == (6, 100) and dataset.targets[0] == 0
    again = pickle.loads(pickle.dumps(foresee.ImageFolder(images, target_transform=abs)))
    again.target_transform = None
    assert again.labels.tolist() == again.targets == pickle.loads(pickle.dumps(again)).labels.tolist()


def test_what_cannot_be_set_is_refused(images, rows):
    dataset = foresee.ImageFolder(images)
    with pytest.raises(TypeError, match="^transform=.*: give one of foresee.transforms"):
        dataset.transform = STEPS
    with pytest.raises(TypeError, match="^target_transform=3: give a function"):
        dataset.target_transform = 3
    with pytest.raises(ValueError, match="^target_transform=.*: files are given their labels; "):
        foresee.Files(*rows).target_transform = abs


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_change_once_the_loader_is_made_stay_what_they_were(images, workers):
    dataset = datasets.ImageFolder(str(images), STEPS)
    expected = list(DataLoader(dataset, 5))
    loader = DataLoader(dataset, 5, num_workers=workers)
    dataset.samples[0] = (dataset.samples[5][0], 55)
    assert same(loader, expected)


def test_the_base_of_torchs_datasets_has_no_items_of_its_own(images):
    class Plain(Dataset):
        samples = tuple((str(path), number) for number, path in enumerate(sorted(images.glob("*/*.png"))))
        transform = STEPS

        def __len__(self):
            return len(self.samples)

    assert torch.cat([labels for _, labels in DataLoader(Plain(), 6)]).tolist() == list(range(37))


def test_a_length_that_is_not_that_of_the_samples_is_refused(images):
    class Half(datasets.ImageFolder):
        def __len__(self):
            return super().__len__() // 2

    with pytest.raises(
        ValueError, match="^dataset=Half: its length is 18, but it has 37 samples; give a Subset of it$"
    ):
        DataLoader(Half(images, STEPS))


def test_a_target_transform_is_called_where_foresee_does_the_rest(images):
    steps = T.Compose([T.Resize((12, 10)), T.ToTensor()])
    theirs = Torchs(datasets.ImageFolder(images, STEPS, lambda label: label + 100), 5)
    expected = [labels for _, labels in theirs]
    for dataset in (
        foresee.ImageFolder(images, steps, lambda label: label + 100),
        datasets.ImageFolder(images, steps, lambda label: label + 100),
    ):
        assert all(map(torch.equal, expected, (labels for _, labels in DataLoader(dataset, 5))))
    with pytest.raises(ValueError, match="its loader would not be called"):
        DataLoader(datasets.ImageFolder(images, steps, loader=lambda file: file.read()))


def parameters(function):
    """Names of what is taken by position or name, and the defaults, in order."""
    return [
        (one.name, "bilinear" if "bilinear" in str(one.default).lower() else one.default)
        for one in inspect.signature(function).parameters.values()
        if one.name != "loader"
    ]


def test_what_stands_in_for_something_of_torchs_has_its_signature():
    ours, theirs = parameters(foresee.ImageFolder), parameters(datasets.ImageFolder)
    own = [("throttle", None), ("config", None), ("rank", None), ("world_size", None)]
    assert ours[: len(theirs)] == theirs and ours[len(theirs) :] == own
    assert list(inspect.signature(foresee.ImageFolder).parameters)[3] == "loader"
    ours, theirs = parameters(DataLoader), parameters(Torchs)
    assert ours[: len(theirs)] == theirs
    kinds = inspect.signature(DataLoader).parameters.values()
    assert all(one.kind is one.KEYWORD_ONLY for one in list(kinds)[13:])
    for name in set(T.__all__) - {"Transform", "ToLayout"}:
        for module in (tv, v2):
            if hasattr(module, name):
                assert parameters(getattr(T, name)) == parameters(getattr(module, name)), name


def test_an_image_folder_is_asked_as_torchvisions_is(images):
    def chosen(path):
        return "00" in Path(path).name or path.endswith(("1.png", "2.png"))

    def changed(label):
        return label * 2

    ours = foresee.ImageFolder(images, None, changed, datasets.folder.default_loader, chosen, False)
    theirs = datasets.ImageFolder(images, None, changed, datasets.folder.default_loader, chosen, False)
    for name in ("samples", "imgs", "targets", "classes", "class_to_idx"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.root == str(theirs.root) and len(ours) == len(theirs) and ours.target_transform is changed
    assert ours.labels.tolist() == [changed(target) for target in theirs.targets]
    whole = foresee.ImageFolder(images)
    assert whole.samples == datasets.ImageFolder(str(images)).samples
    with pytest.raises(TypeError, match=r"^ImageFolder\[0\]: samples are read ahead, in order; give it to a foresee"):
        whole[0]


def test_a_class_may_be_empty_if_that_is_allowed(images, tmp_path):
    root = shutil.copytree(images, tmp_path / "images")
    (root / "class2b").mkdir()
    with pytest.raises(foresee.DatasetError, match="class2b"):
        foresee.ImageFolder(root)
    with pytest.raises(foresee.DatasetError, match="class2b: no samples of this class; give allow_empty=True"):
        foresee.ImageFolder(root, is_valid_file=lambda path: path.endswith(".png"))
    ours, theirs = foresee.ImageFolder(root, allow_empty=True), datasets.ImageFolder(str(root), allow_empty=True)
    assert ours.samples == theirs.samples and ours.classes == theirs.classes and len(ours.classes) == 5


def test_what_an_image_folder_cannot_obey_is_refused_with_the_remedy(images):
    for wrong, said in (
        ({"loader": open}, "^loader=.*: foresee opens the files itself; leave it away, or give it to torchvision's"),
        ({"target_transform": str}, r"^target_transform\(0\) gives '0': give whole numbers, or use torchvision's"),
        ({"target_transform": 3}, "^target_transform=3: give a function"),
        ({"is_valid_file": 3}, "^is_valid_file=3: give a function"),
        ({"allow_empty": 3}, "^allow_empty=3: give True or False"),
    ):
        with pytest.raises(foresee.ForeseeError, match=said):
            foresee.ImageFolder(images, **wrong)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_fails_names_sample_and_path_and_the_epoch_goes_on(images, workers):
    calls = []

    def wrong(image):
        calls.append(1)
        if image.size[1] == 40 + 36:
            raise RuntimeError("no\nsuch thing")
        return tv.functional.to_tensor(image)

    dataset = datasets.ImageFolder(images, wrong)
    number = next(place for place, (path, _) in enumerate(dataset.samples) if path.endswith("036.png"))
    got = []
    with DataLoader(dataset, 1, num_workers=workers) as loader:
        iteration = iter(loader)
        while True:
            try:
                got.append(next(iteration))
            except StopIteration:
                break
            except foresee.SampleError as error:
                raised = error
    assert len(got) == 36 and raised.sample == number and isinstance(raised.__cause__, RuntimeError)
    assert str(raised) == f"sample {number} ({dataset.samples[number][0]}): RuntimeError: no such thing"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_no_image_is_named(images, tmp_path, workers):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "broken.png").write_bytes(b"nothing")
    with (
        DataLoader(datasets.ImageFolder(tmp_path, STEPS), num_workers=workers) as loader,
        pytest.raises(foresee.SampleError) as raised,
    ):
        list(loader)
    assert "broken.png" in str(raised.value) and raised.value.path.endswith("broken.png")


def caught(loader):
    """All batches of an epoch, and what was raised in their place."""
    got, iteration = [], iter(loader)
    while True:
        try:
            got.append(next(iteration))
        except StopIteration:
            return got
        except foresee.SampleError as error:
            got.append(error)


def native(root, _):
    return foresee.ImageFolder(root, transform=T.Compose([T.Resize((12, 10)), T.ToTensor()]))


@pytest.mark.parametrize("sampler", [None, range(37), "uneven"])
@pytest.mark.parametrize(("make", "workers"), [(native, 0), (datasets.ImageFolder, 0), (datasets.ImageFolder, 3)])
def test_a_batch_with_a_file_that_vanished_is_given_up_and_the_epoch_goes_on(images, tmp_path, sampler, make, workers):
    shutil.copytree(images, tmp_path / "copy")
    order = {"batch_size": 4, "sampler": sampler}
    if sampler == "uneven":
        order = {"batch_sampler": [range(3), range(3, 4), *(range(first, first + 11) for first in (4, 15, 26))]}
    with DataLoader(make(tmp_path / "copy", STEPS), num_workers=workers, **order) as loader:
        whole = [len(labels) for _, labels in DataLoader(native(images, None), **order)]
        (tmp_path / "copy" / "class1" / "001.png").unlink()
        (tmp_path / "copy" / "class3" / "035.png").unlink()
        got = caught(loader)
        errors = [one for one in got if isinstance(one, foresee.SampleError)]
        assert ["001.png" in str(errors[0]), "035.png" in str(errors[-1])] == [True, True] and len(errors) == 2
        assert [len(one[1]) if isinstance(one, tuple) else size for one, size in zip(got, whole, strict=True)] == whole
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_fails_is_skipped_where_errors_are(images, caplog, workers):
    def picky(image):
        if image.size[1] in (43, 47, 48):
            raise ValueError("not this one")
        return STEPS(image)

    dataset = datasets.ImageFolder(images, picky)
    dataset.samples = [(path, number) for number, (path, _) in enumerate(dataset.samples)]
    heights = [40 + int(Path(path).stem) for path, _ in dataset.samples]
    good = [number for number, height in enumerate(heights) if height not in (43, 47, 48)]
    expected = [min((other - number) % 37 for other in good) + number for number in range(37)]
    with DataLoader(dataset, 4, num_workers=workers, on_error="skip") as loader:
        got = [label for _, labels in loader for label in labels.tolist()]
        assert got == [number % 37 for number in expected] and loader.stats()["skipped"] == 3
    assert "ValueError: not this one; sample" in caplog.text


def test_where_nothing_can_be_made_skipping_ends_with_the_error(images):
    def wrong(_):
        raise ValueError("none of these")

    with (
        DataLoader(datasets.ImageFolder(images, wrong), on_error="skip") as loader,
        pytest.raises(foresee.SampleError, match="none of these"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_exits_is_not_waited_for(images, workers):
    def leave(_):
        raise SystemExit(3)

    with DataLoader(datasets.ImageFolder(images, leave), num_workers=workers) as loader, pytest.raises(SystemExit):
        next(iter(loader))


def test_breaks_leave_no_thread_behind(images):
    dataset = datasets.ImageFolder(images, STEPS)
    with DataLoader(dataset, 2, shuffle=True, num_workers=3) as loader:
        for _ in range(5):
            for _ in loader:
                break
        assert sum(thread.name == "foresee-feeder" for thread in threads()) <= 1
        assert sum(len(labels) for _, labels in loader) == 37
    for thread in threads():
        thread.join(5)
    assert not threads()


def test_workers_are_told_their_numbers(images):
    told = []
    with DataLoader(datasets.ImageFolder(images, STEPS), 4, num_workers=2, worker_init_fn=told.append) as loader:
        list(loader)
    assert set(told) <= {0, 1} and told


def test_a_state_counts_what_was_delivered_not_what_workers_made(images):
    dataset = datasets.ImageFolder(images, STEPS)
    with DataLoader(dataset, 4, shuffle=True, num_workers=2) as loader:
        whole = list(loader)
    with DataLoader(dataset, 4, shuffle=True, num_workers=2, prefetch_factor=4) as loader:
        iteration = iter(loader)
        next(iteration)
        state = loader.state_dict()
    with DataLoader(dataset, 4, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert same(whole[1:], loader)


def test_a_program_that_is_interrupted_ends_at_once(images, tmp_path):
    import os
    import subprocess
    import sys
    from pathlib import Path

    code = """
import os, signal, sys, threading, time
from foresee import transforms as T
from foresee.torch import DataLoader
from torchvision import datasets

def slow(image):
    time.sleep(0.5)
    return 1

# What a shell starts in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
loader = DataLoader(datasets.ImageFolder(sys.argv[1], slow), 8, num_workers=2)
threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    list(loader)
except KeyboardInterrupt:
    print("interrupted")
"""
    path = tmp_path / "script.py"
    path.write_text(code)
    package = Path(foresee.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, path, images],
        env={**os.environ, "PYTHONPATH": str(package)},
        timeout=60,
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert ended.stdout == "interrupted\n" and not ended.stderr


Pair = namedtuple("Pair", "mean size")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda image: {"size": torch.tensor(image.size), "more": {"height": image.size[1]}},
        lambda image: Pair(float(image.size[0]), image.size),
        lambda image: numpy.ones((2, 3)) * image.size[1],
        lambda image: numpy.float16(image.size[1]),
        lambda image: numpy.uint8(image.size[1]),
        lambda image: str(image.size),
    ],
)
def test_whatever_a_transform_makes_is_collated_as_by_torch(images, make, workers):
    dataset = datasets.ImageFolder(images, make)
    for batch_size in (4, None):
        theirs = [tuple(batch) for batch in Torchs(dataset, batch_size)]
        with DataLoader(dataset, batch_size, num_workers=workers) as ours:
            assert repr(theirs) == repr([tuple(batch) for batch in ours])


def test_batches_are_in_order_also_where_the_first_is_late(images):
    started = threading.Event()

    def late(image):
        # The first image waits until another thread has made its own.
        if image.size[1] == 40:
            assert started.wait(60)
        else:
            started.set()
        return image.size[1]

    dataset = datasets.ImageFolder(images, late)
    heights = [40 + int(Path(path).stem) for path, _ in dataset.samples]
    with DataLoader(dataset, 1, num_workers=2, in_order=True) as loader:
        assert [int(height) for height, _ in loader] == heights


def test_several_loaders_run_side_by_side(images):
    dataset = datasets.ImageFolder(images, STEPS)
    loaders = [DataLoader(dataset, 4, num_workers=workers, shuffle=True) for workers in (0, 1, 2)]
    batches = list(zip(*loaders, strict=True))
    assert len(batches) == 10
    assert all(torch.equal(first, other) for (first, _), *others in batches for other, _ in others)
    for loader in loaders:
        loader.close()


def test_a_random_split_is_read_as_by_torch(images):
    parts = random_split(datasets.ImageFolder(images, STEPS), [0.3, 0.7], torch.Generator().manual_seed(1))
    for part in parts:
        assert same(Torchs(part, 4), DataLoader(part, 4))


def test_what_goes_wrong_where_a_worker_starts_is_raised(images):
    def wrong(_):
        raise RuntimeError("no such worker")

    with (
        DataLoader(datasets.ImageFolder(images, STEPS), num_workers=2, worker_init_fn=wrong) as loader,
        pytest.raises(RuntimeError, match="no such worker"),
    ):
        list(loader)


def test_a_timeout_is_a_runtime_error_and_loses_nothing(images):
    proceed = threading.Event()

    def slow(image):
        assert proceed.wait(60)
        return image.size[1]

    dataset = datasets.ImageFolder(images, slow)
    with DataLoader(dataset, 4, num_workers=2, timeout=0.1) as loader:
        iteration = iter(loader)
        with pytest.raises(RuntimeError, match="timeout=0.1"):
            next(iteration)
        proceed.set()
        loader.timeout = 60
        assert sum(len(labels) for _, labels in iteration) == 37
