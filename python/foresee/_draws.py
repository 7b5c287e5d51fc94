"""Random numbers for transforms in Python. While one runs, what it draws from torch's own generator follows from the
loader's seed, the epoch and the sample: the same on every number of threads and ranks, and after a resume.

torch has one generator for the whole process, whatever the thread. But each thread has its own stack of modes that see
every call of torch; the one here hands each function that draws a generator that was seeded for the sample at hand.
"""

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from . import _native
from ._errors import ForeseeError
from ._torch import torch

_Mode: Any = importlib.import_module("torch.overrides").TorchFunctionMode

_FUNCTIONS = (
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "binomial"),
    *("rand_like", "randn_like", "randint_like", "_sample_dirichlet", "_standard_gamma"),
)
_METHODS = (
    *("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"),
    *("bernoulli", "multinomial"),
)
_DRAWING = frozenset(
    getattr(holder, name)
    for holder, names in ((torch, _FUNCTIONS), (torch.Tensor, _METHODS))
    for name in names
    if hasattr(holder, name)
)


class _Keyed(_Mode):  # type: ignore[misc]
    """Hands a generator to all that draws and was not given one."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def _on_cpu(args: Any, kwargs: Any) -> bool:
    tensor = next((value.device for value in args if isinstance(value, torch.Tensor)), None)
    device = kwargs.get("device") or tensor or torch.get_default_device()
    return bool(torch.device(device).type == "cpu")


class _Local(threading.local):
    keyed: _Keyed | None = None
    seed: int | None = None


_local = _Local()


@contextlib.contextmanager
def keyed(seed: int, epoch: int, sample: int) -> Iterator[None]:
    """What this thread draws from torch in here follows from these three."""
    mode = _local.keyed = _local.keyed or _Keyed()
    before, _local.seed = _local.seed, _native.sample_seed(seed, epoch, sample)
    mode.generator.manual_seed(_local.seed)
    try:
        with mode:
            yield
    finally:
        _local.seed = before


def sample_seed() -> int:
    """A number that follows from the loader's seed, the epoch and the sample at hand, to seed a generator with that is not
    torch's: ``numpy.random.default_rng(foresee.torch.sample_seed())``. Only while a transform runs."""
    if _local.seed is None:
        raise ForeseeError("sample_seed(): no sample is being made; call it in a dataset's transform")
    return _local.seed
