"""Datasets as they are: files, or images in class folders. Paths, sizes and labels live outside of Python's heap."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from . import _check, _launch, _native, _peers, transforms
from ._errors import ArgumentTypeError, ConfigError, DatasetError

#: A path of a ``foresee.toml``, a dict of the same shape, or None for the file that is found.
Config = str | os.PathLike[str] | Mapping[str, Any] | None


class Dataset:
    """What a job reads. Make one with :class:`Files` or :class:`ImageFolder`."""

    _inner: _native.Dataset
    _transform: transforms.Transform | None = None
    _told: dict[str, Any] | None = None
    #: Says where its catalog is saved.
    _config: Config = None
    #: Rank and number of ranks, where they were given.
    _world: tuple[int | None, int | None] = (None, None)

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self._inner)

    def __getitem__(self, index: object) -> NoReturn:
        raise ArgumentTypeError(
            f"{type(self).__name__}[{_check.shown(index)}]: samples are read ahead, in order; give it to a "
            "foresee.torch.DataLoader or a foresee.Job, or use torchvision's dataset"
        )

    @property
    def transform(self) -> transforms.Transform | None:
        """What is done to images on their way into a batch; None hands samples over as they are."""
        return self._transform

    @transform.setter
    def transform(self, transform: transforms.Transform | None) -> None:
        self._told = transforms.described(transform)
        self._transform = transform

    def path(self, index: int) -> str:
        """The file of a sample."""
        return self._inner.path(index)

    def paths(self) -> list[str]:
        """All files, in the order of the samples."""
        return self._inner.paths()

    @property
    def labels(self) -> _native.Array:
        """All labels, in the order of the samples; 0 where none were given."""
        return self._inner.labels()

    @property
    def sizes(self) -> _native.Array:
        """All sizes in bytes, in the order of the samples."""
        return self._inner.sizes()

    @property
    def throttle(self) -> _native.Throttle | None:
        """The emulated storage that it is read through."""
        return self._inner.throttle

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_native.one_line(self._inner.described)}, {len(self)} samples)"

    def _measured(
        self, paths: list[str], labels: list[int] | None, throttle: _native.Throttle | None
    ) -> _native.Dataset:
        """Files with their sizes; many of them are looked at by the first rank alone."""
        is_few = len(paths) <= _native.FILES_ALONE_MAX
        mesh = None if is_few else _peers.for_listing(self._config, *self._world)
        return _native.Dataset.files(paths, labels, throttle, _terminal(), self._config, mesh)

    def _as_it_is(self) -> Self:
        """For whoever reads it: what is set on it later is for others."""
        _refuse_own(self)
        same = object.__new__(type(self))
        same.__dict__.update(self.__dict__)
        # A Compose may have been changed in place.
        same.transform = self.transform
        return same


class Files(Dataset):
    """A list of files: sample k is ``paths[k]``, its label ``labels[k]``.

    With ``transform`` (see :mod:`foresee.transforms`) the files are images, and batches are arrays. ``throttle`` is an emulated
    storage (see :func:`emulate`) that the files are read through. ``config``, as for :class:`Job`, says where the catalog is
    saved. Of several ranks the first looks at the files for all, unless they are few; ``rank`` and ``world_size`` are needed
    where no launcher tells them.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        labels: Iterable[int] | None = None,
        *,
        transform: transforms.Transform | None = None,
        throttle: _native.Throttle | None = None,
        config: Config = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.transform = transform
        self._config = _check.config(config)
        if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
            raise ArgumentTypeError(f"paths={_check.shown(paths)}: give a list of paths")
        names = [_check.path(f"paths[{index}]", name) for index, name in enumerate(paths)]
        self._world = _world(rank, world_size)
        self._inner = self._measured(names, _labels(labels), _throttle(throttle))

    @classmethod
    def _part(cls, whole: Dataset, indices: list[int]) -> "Files":
        """Some samples of another dataset: nothing is listed again."""
        part = cls.__new__(cls)
        part.transform = whole.transform
        part._config = whole._config
        part._inner = whole._inner.part(indices)
        return part

    @classmethod
    def from_manifest(
        cls,
        path: str | os.PathLike[str],
        *,
        transform: transforms.Transform | None = None,
        throttle: _native.Throttle | None = None,
        config: Config = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> "Files":
        """The files that a text file lists, one a line: ``path<TAB>label``, ``path,label`` or ``path``.

        Relative paths begin at the manifest's folder. Blank lines and lines that begin with ``#`` are skipped. The rest is as
        for :class:`Files`.
        """
        files = cls.__new__(cls)
        files.transform = transform
        files._config = _check.config(config)
        files._world = _world(rank, world_size)
        name = _check.path("path", path)
        mesh = _peers.for_listing(files._config, *files._world) if _is_long(name) else None
        files._inner = _native.Dataset.manifest(name, _throttle(throttle), _terminal(), files._config, mesh)
        return files

    @property
    def target_transform(self) -> None:
        """There is none: labels are given as they are to be."""

    @target_transform.setter
    def target_transform(self, change: Any) -> None:
        if change is not None:
            raise ConfigError(
                f"target_transform={_check.shown(change)}: files are given their labels; give those that it makes of them"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        labels = self.labels.tolist() if self._inner.has_labels else None
        return _files, (type(self), self.paths(), labels, self.transform, self.throttle, self._config)


class ImageFolder(Dataset):
    """Images in class folders: classes, order and labels as ``torchvision.datasets.ImageFolder(root)`` has them.

    Parameters have torchvision's names, order and defaults. With ``transform`` (see :mod:`foresee.transforms`) images are
    decoded, and batches are arrays. ``throttle`` is an emulated storage (see :func:`emulate`) that the files are read through.

    :param target_transform: is called once for each class, with its label, and gives a whole number.
    :param loader: only torchvision's own, which means none: foresee opens the files.
    :param is_valid_file: whether a path is a sample; without it, its ending says so.
    :param allow_empty: whether a class may be without samples.
    :param config: as for :class:`Job`; says where the catalog is saved.
    :param rank: this rank, where no launcher tells it: of several ranks the first lists, the others get its catalog.
    :param world_size: the number of ranks.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: transforms.Transform | None = None,
        target_transform: Callable[[int], int] | None = None,
        loader: Callable[[str], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        throttle: _native.Throttle | None = None,
        config: Config = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.transform = transform
        self._config = _check.config(config)
        self._world = _world(rank, world_size)
        _refuse_loader(loader)
        _refuse_no_function("target_transform", target_transform)
        _refuse_no_function("is_valid_file", is_valid_file)
        #: Where it is, whatever the current folder will be.
        self.root = str(Path(_check.path("root", root)).expanduser().absolute())
        self._options = {
            "is_valid_file": is_valid_file,
            "allow_empty": _check.flag("allow_empty", allow_empty),
            "throttle": _throttle(throttle),
            "config": self._config,
        }
        #: As they were listed: labels are places in the list of classes.
        self._listed: _native.Dataset
        if is_valid_file is None and not allow_empty:
            mesh = _peers.for_listing(self._config, *self._world) if Path(self.root).is_dir() else None
            self._listed = _native.Dataset.image_folder(self.root, throttle, _terminal(), self._config, mesh)
            self._classes = self._listed.classes
        else:
            self._classes, paths, targets = _chosen(self.root, is_valid_file or _is_image, allow_empty)
            self._listed = self._measured(paths, targets, throttle)
        self.target_transform = target_transform

    @property
    def target_transform(self) -> Callable[[int], int] | None:
        """What makes a label of a class."""
        return self._target_transform

    @target_transform.setter
    def target_transform(self, change: Callable[[int], int] | None) -> None:
        _refuse_no_function("target_transform", change)
        inner = self._listed
        if change is not None:
            labels = self._changed(change)
            inner = self._measured(inner.paths(), labels, inner.throttle)
        self._inner, self._target_transform = inner, change

    def _changed(self, change: Callable[[int], int]) -> list[int]:
        labels = []
        for label in range(len(self._classes)):
            changed = change(label)
            if isinstance(changed, bool) or not hasattr(changed, "__index__"):
                raise ArgumentTypeError(
                    f"target_transform({label}) gives {_check.shown(changed)}: give whole numbers, or use torchvision's "
                    "ImageFolder with foresee.torch.DataLoader, which calls it for each sample"
                )
            labels.append(_check.whole(f"target_transform({label})", changed, -(2**63), 2**63 - 1))
        return [labels[target] for target in self._listed.labels()]

    @property
    def classes(self) -> list[str]:
        """The names of the classes; a target is a place in this list."""
        return self._classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The target of each class."""
        return {name: label for label, name in enumerate(self._classes)}

    @property
    def targets(self) -> list[int]:
        """The class of each sample; with a ``target_transform`` its label is another one."""
        return self._listed.labels().tolist()

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and class of each sample."""
        return list(zip(self.paths(), self.targets, strict=True))

    imgs = samples

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._options, "target_transform": self.target_transform}
        return _image_folder, (type(self), self.root, self.transform, options)


def emulate(name: str, mb_per_s: float | Mapping[int, float], latency_ms: float = 0.0) -> _native.Throttle:
    """A slow storage, shared by all processes of this user that give it this name at the same time.

    ``mb_per_s`` is the throughput of all reads together: a number, or a dict from the number of reads under way to the
    throughput. ``latency_ms`` passes before the first byte of every read.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"name={_check.shown(name)}: give a name")
    points = mb_per_s if isinstance(mb_per_s, Mapping) else {1: mb_per_s}
    if not points:
        raise ConfigError("mb_per_s={}: give at least one number of readers, as in {1: 50.0}")
    curve = sorted((_check.whole("a key of mb_per_s", readers, 1, 2**32 - 1), rate) for readers, rate in points.items())
    for readers, rate in curve:
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ArgumentTypeError(f"mb_per_s={_check.shown(mb_per_s)}: give a number of MB/s, or one for each key")
        if not 1e-6 <= rate <= 1e12:
            raise ConfigError(f"mb_per_s={_check.shown(rate)} for {readers} readers: give more than 0")
    if isinstance(latency_ms, bool) or not isinstance(latency_ms, int | float):
        raise ArgumentTypeError(f"latency_ms={_check.shown(latency_ms)}: give a number of milliseconds")
    if not 0 <= latency_ms <= 60_000:
        raise ConfigError(f"latency_ms={latency_ms}: give 0 or more, 60000 at most")
    return _native.Throttle(name, [(readers, float(rate)) for readers, rate in curve], float(latency_ms))


def _labels(labels: Iterable[int] | None) -> list[int] | None:
    if labels is None:
        return None
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise ArgumentTypeError(f"labels={_check.shown(labels)}: give a list of whole numbers")
    return [_check.whole(f"labels[{index}]", label, -(2**63), 2**63 - 1) for index, label in enumerate(labels)]


#: What says which samples a dataset has, and what they are.
_SAMPLES = ("__getitem__", "__getitems__", "__len__", "path", "paths", "labels", "samples", "imgs", "targets")
_TRANSFORMS = ("transform", "target_transform")


def _refuse_own(dataset: Dataset) -> None:
    """What a subclass says by itself would be passed over: samples are not read by way of Python."""
    known = (Dataset, Files, ImageFolder, abstract_dataset())
    for name in (*_SAMPLES, *_TRANSFORMS):
        kind = next((kind for kind in type(dataset).__mro__ if name in vars(kind)), Dataset)
        if kind not in known:
            raise ConfigError(
                f"dataset={type(dataset).__name__}: its {name} is its own, and would not be asked; give foresee.Files the "
                "paths, labels and transform that it means, or use torchvision's ImageFolder"
            )


def abstract_dataset() -> Any:
    """torch's base of all datasets, where there is one; its ``__getitem__`` is none."""
    return getattr(sys.modules.get("torch.utils.data"), "Dataset", None)


def _refuse_no_function(name: str, given: Any) -> None:
    if given is not None and not callable(given):
        raise ArgumentTypeError(f"{name}={_check.shown(given)}: give a function, or leave it away")


def _refuse_loader(loader: Any) -> None:
    if loader is None or opens_as_torchvision(loader):
        return
    raise ConfigError(
        f"loader={_check.shown(loader)}: foresee opens the files itself; leave it away, or give it to torchvision's "
        "ImageFolder and that to foresee.torch.DataLoader"
    )


def opens_as_torchvision(loader: Any) -> bool:
    """Whether it opens files with PIL, as RGB, as torchvision does by default."""
    folder = sys.modules.get("torchvision.datasets.folder")
    return folder is not None and loader in (folder.default_loader, folder.pil_loader)


#: What torchvision takes for an image.
_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def _is_image(path: str) -> bool:
    return path.lower().endswith(_IMAGES)


def _chosen(root: str, is_valid: Callable[[str], bool], allow_empty: bool) -> tuple[list[str], list[str], list[int]]:
    """Classes, paths and targets of the files that a function in Python takes, in torchvision's order."""
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as cause:
        raise DatasetError(f"{_native.one_line(root)}: {cause.strerror}") from cause
    if not classes:
        raise DatasetError(f"{_native.one_line(root)}: no class folders; each class has a folder of its own")
    paths: list[str] = []
    targets: list[int] = []
    for target, name in enumerate(classes):
        before = len(paths)
        for folder, _, files in sorted(os.walk(Path(root, name), followlinks=True)):
            paths += filter(is_valid, (str(Path(folder, file)) for file in sorted(files)))
        targets += [target] * (len(paths) - before)
        if len(paths) == before and not allow_empty:
            folder = _native.one_line(str(Path(root, name)))
            raise DatasetError(f"{folder}: no samples of this class; give allow_empty=True if it is so")
    return classes, paths, targets


def _world(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """What was given, checked."""
    if rank is not None or world_size is not None:
        _launch.find_rank(rank, world_size)
    return rank, world_size


def _is_long(manifest: str) -> bool:
    """Whether a manifest lists so many files that one rank looks at them for all."""
    try:
        return Path(manifest).stat().st_size > _native.MANIFEST_ALONE_BYTES_MAX
    except OSError:
        return False


def _throttle(throttle: Any) -> _native.Throttle | None:
    if throttle is not None and not isinstance(throttle, _native.Throttle):
        raise ArgumentTypeError(f"throttle={_check.shown(throttle)}: give what foresee.emulate returns")
    return throttle


def _terminal() -> Any:
    """Where listing may say how far it is: a terminal, for the first rank."""
    try:
        return sys.stderr if sys.stderr.isatty() and _launch.find_rank(None, None)[0] == 0 else None
    except (AttributeError, ValueError):
        return None


def _files(
    kind: type[Files],
    paths: list[str],
    labels: list[int] | None,
    transform: transforms.Transform | None,
    throttle: _native.Throttle | None,
    config: Config = None,
) -> Files:
    with _peers.alone():
        return kind(paths, labels, transform=transform, throttle=throttle, config=config)


def _image_folder(
    kind: type[ImageFolder], root: str, transform: transforms.Transform | None, options: dict[str, Any]
) -> ImageFolder:
    with _peers.alone():
        return kind(root, transform=transform, **options)
