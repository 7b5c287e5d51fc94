"""Datasets as they are: files, or images in class folders. Paths, sizes and labels live outside of Python's heap."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from . import _check, _launch, _native, transforms
from ._errors import ArgumentTypeError, ConfigError


class Dataset:
    """What a job reads. Make one with :class:`Files` or :class:`ImageFolder`."""

    _inner: _native.Dataset
    #: What is done to images on their way into a batch; None hands samples over as they are.
    transform: transforms.Transform | None = None
    _told: dict[str, Any] | None = None

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self._inner)

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

    def _transform_with(self, transform: transforms.Transform | None) -> None:
        self._told = transforms.described(transform)
        self.transform = transform


class Files(Dataset):
    """A list of files: sample k is ``paths[k]``, its label ``labels[k]``.

    With ``transform`` (see :mod:`foresee.transforms`) the files are images, and batches are arrays. ``throttle`` is an emulated storage (see :func:`emulate`) that the files are read through.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        labels: Iterable[int] | None = None,
        *,
        transform: transforms.Transform | None = None,
        throttle: _native.Throttle | None = None,
    ) -> None:
        self._transform_with(transform)
        if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
            raise ArgumentTypeError(f"paths={_check.shown(paths)}: give a list of paths")
        names = [_check.path(f"paths[{index}]", name) for index, name in enumerate(paths)]
        self._inner = _native.Dataset.files(names, _labels(labels), _throttle(throttle), _terminal())

    @classmethod
    def from_manifest(
        cls,
        path: str | os.PathLike[str],
        *,
        transform: transforms.Transform | None = None,
        throttle: _native.Throttle | None = None,
    ) -> "Files":
        """The files that a text file lists, one a line: ``path<TAB>label``, ``path,label`` or ``path``.

        Relative paths begin at the manifest's folder. Blank lines and lines that begin with ``#`` are skipped.
        """
        files = cls.__new__(cls)
        files._transform_with(transform)
        files._inner = _native.Dataset.manifest(_check.path("path", path), _throttle(throttle), _terminal())
        return files

    def __reduce__(self) -> tuple[Any, ...]:
        labels = self.labels.tolist() if self._inner.has_labels else None
        return _files, (type(self), self.paths(), labels, self.transform, self.throttle)


class ImageFolder(Dataset):
    """Images in class folders: classes, order and labels as ``torchvision.datasets.ImageFolder(root)`` has them.

    With ``transform`` (see :mod:`foresee.transforms`) images are decoded, and batches are arrays. ``throttle`` is an emulated storage (see :func:`emulate`) that the files are read through.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        transform: transforms.Transform | None = None,
        throttle: _native.Throttle | None = None,
    ) -> None:
        self._transform_with(transform)
        self.root = _check.path("root", root)
        self._inner = _native.Dataset.image_folder(self.root, _throttle(throttle), _terminal())

    @property
    def classes(self) -> list[str]:
        """The names of the classes; a label is a place in this list."""
        return self._inner.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self._inner.classes)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _image_folder, (type(self), self.root, self.transform, self.throttle)


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
) -> Files:
    return kind(paths, labels, transform=transform, throttle=throttle)


def _image_folder(
    kind: type[ImageFolder], root: str, transform: transforms.Transform | None, throttle: _native.Throttle | None
) -> ImageFolder:
    return kind(root, transform=transform, throttle=throttle)
