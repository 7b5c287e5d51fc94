"""What is done to images on their way into a batch: torchvision's names, parameters and defaults.

    from foresee import transforms as T

    train = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
    dataset = foresee.ImageFolder("/data/imagenet/train", transform=train)

These classes only describe: decoding, resizing and the rest are done outside of Python, by the loader's threads, straight
into the batch. What is drawn at random follows from the job's seed, the epoch, the sample and the place in the list, so
it is the same whatever the number of threads and ranks.
"""

import math
from collections.abc import Sequence
from typing import Any

from . import _check, _native
from ._errors import ArgumentTypeError, ConfigError

__all__ = [
    "CenterCrop",
    "Compose",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToLayout",
    "ToTensor",
    "Transform",
]

#: What an image is made of where no transform says otherwise: what torchvision's ``PILToTensor`` gives.
_DTYPE, _LAYOUT = "uint8", "CHW"

_SIDE_MAX = 2**32 - 1


class Transform:
    """One step, described. Two with the same parameters are equal."""

    def _step(self) -> dict[str, Any] | None:
        """What the native module is told; None where it only says what comes out."""
        return None

    def __call__(self, image: object) -> Any:
        raise TypeError(f"{type(self).__name__} is done by foresee's loader: give it to a dataset as transform=")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), repr(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Compose(Transform):
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        try:
            given = list(transforms)
        except TypeError:
            raise ArgumentTypeError(f"transforms={_check.shown(transforms)}: give a list of transforms") from None
        for place, transform in enumerate(given):
            if not isinstance(transform, Transform):
                said = f"transforms[{place}]={_check.shown(transform)}: give one of foresee.transforms"
                raise ArgumentTypeError(said)
        self.transforms = given


class RandomResizedCrop(Transform):
    """A part of random area and aspect ratio, resized to ``size``."""

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self.size = _square(size)
        self.scale = _pair("scale", scale)
        self.ratio = _pair("ratio", ratio)
        _only_bilinear(interpolation, antialias)

    def _step(self) -> dict[str, Any]:
        return {"kind": "RandomResizedCrop", "size": self.size, "scale": self.scale, "ratio": self.ratio}


class Resize(Transform):
    """Resized: to ``(height, width)``, or to a shorter edge of ``size`` with the aspect ratio kept.

    With ``max_size`` the longer edge gets no longer than that.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        _only_bilinear(interpolation, antialias)
        edges = _edges(size)
        if max_size is not None and len(edges) == 2:
            raise ConfigError(f"max_size={_check.shown(max_size)}: only with one number as size")
        self.size = edges[0] if len(edges) == 1 else edges
        self.max_size = None if max_size is None else _check.whole("max_size", max_size, 1, _SIDE_MAX)

    def _step(self) -> dict[str, Any]:
        if isinstance(self.size, int):
            return {"kind": "ResizeShorter", "edge": self.size, "longer_max": self.max_size}
        return {"kind": "Resize", "size": self.size}


class CenterCrop(Transform):
    """The middle; an image that is smaller gets zeros around it."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _square(size)

    def _step(self) -> dict[str, Any]:
        return {"kind": "CenterCrop", "size": self.size}


class RandomHorizontalFlip(Transform):
    """Left and right change places with probability ``p``."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _number("p", p)

    def _step(self) -> dict[str, Any]:
        return {"kind": "RandomHorizontalFlip", "p": self.p}


class RandomVerticalFlip(Transform):
    """Top and bottom change places with probability ``p``."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _number("p", p)

    def _step(self) -> dict[str, Any]:
        return {"kind": "RandomVerticalFlip", "p": self.p}


class Normalize(Transform):
    """``(value - mean) / std`` for each of the three channels, after scaling to 0 to 1."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean = _channels("mean", mean)
        self.std = _channels("std", std)
        # torchvision's parameter; nothing of ours is changed in place.
        _check.flag("inplace", inplace)

    def _step(self) -> dict[str, Any]:
        return {"kind": "Normalize", "mean": self.mean, "std": self.std}


class ToDtype(Transform):
    """The type of the numbers: ``"float32"`` or ``"float16"`` (0 to 1, or normalised), or ``"uint8"`` (0 to 255).

    Floating-point numbers are always scaled, so they want ``scale=True``, which is not torchvision's default.
    """

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        # torch.float32 is written "torch.float32", and NumPy's type has a name.
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
        self.dtype = _check.choice("dtype", name.removeprefix("torch."), ("float32", "float16", "uint8"))
        if not _check.flag("scale", scale) and self.dtype != "uint8":
            raise ConfigError(
                f"scale=False: {self.dtype} is always scaled to 0 to 1; give scale=True, or take uint8 and convert it yourself"
            )


class ToTensor(ToDtype):
    """float32 from 0 to 1, channels first, as torchvision's ``ToTensor``."""

    def __init__(self) -> None:
        super().__init__("float32", scale=True)

    def __repr__(self) -> str:
        return "ToTensor()"


class ToLayout(Transform):
    """The order of the dimensions: ``"CHW"`` (channels first) or ``"HWC"``."""

    def __init__(self, layout: str) -> None:
        self.layout = _check.choice("layout", layout, ("CHW", "HWC"))


def described(transform: Any) -> dict[str, Any] | None:
    """What the native module is told of the transforms of a dataset; checked as a whole."""
    if transform is None:
        return None
    if not isinstance(transform, Transform):
        raise ArgumentTypeError(
            f"transform={_check.shown(transform)}: give one of foresee.transforms, such as a Compose; transforms in "
            "Python run with foresee.torch.DataLoader and a dataset of torchvision"
        )
    steps, dtype, layout = [], None, _LAYOUT
    for one in _flat(transform):
        step = one._step()
        if step is not None:
            steps.append(step)
        elif isinstance(one, ToDtype):
            dtype = one.dtype
            layout = "CHW" if isinstance(one, ToTensor) else layout
        elif isinstance(one, ToLayout):
            layout = one.layout
    normalized = any(step["kind"] == "Normalize" for step in steps)
    told = {"steps": steps, "dtype": dtype or ("float32" if normalized else _DTYPE), "layout": layout}
    _native.check_transforms(told)
    return told


def _flat(transform: Transform) -> list[Transform]:
    if isinstance(transform, Compose):
        return [one for part in transform.transforms for one in _flat(part)]
    return [transform]


def _only_bilinear(interpolation: Any, antialias: Any) -> None:
    # torchvision's InterpolationMode has the name as its value; PIL's BILINEAR is 2.
    name = getattr(interpolation, "value", interpolation)
    if name not in ("bilinear", 2):
        raise ConfigError(f"interpolation={_check.shown(interpolation)}: only bilinear is there")
    if antialias is not None and antialias is not True:
        raise ConfigError(f"antialias={_check.shown(antialias)}: only True is there")


def _edges(size: Any) -> tuple[int, ...]:
    """One number or two, as torchvision takes sizes."""
    edges = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size,)
    if len(edges) not in (1, 2):
        raise ConfigError(f"size={_check.shown(size)}: give a number, or height and width")
    return tuple(_check.whole("size", edge, 1, _SIDE_MAX) for edge in edges)


def _square(size: Any) -> tuple[int, int]:
    edges = _edges(size)
    return edges[0], edges[-1]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"{name}={_check.shown(value)}: give a number")
    if not math.isfinite(value):
        raise ConfigError(f"{name}={value}: give a finite number")
    return float(value)


def _numbers(name: str, values: Any, count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name}={_check.shown(values)}: give {count} numbers") from None
    if len(numbers) != count:
        raise ConfigError(f"{name}={_check.shown(values)}: give {count} numbers")
    return tuple(_number(name, number) for number in numbers)


def _pair(name: str, values: Any) -> tuple[float, float]:
    low, high = _numbers(name, values, 2)
    return low, high


def _channels(name: str, values: Any) -> tuple[float, ...]:
    return _numbers(name, values, 3)
