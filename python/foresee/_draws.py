"""Random numbers for transforms in Python. While one runs, what it draws from torch's own generator follows from the
loader's seed, the epoch and the sample: the same on every number of threads and ranks, and after a resume.

torch has one generator for the whole process, whatever the thread. But each thread has its own stack of modes that see
every call of torch; the one here hands each function that draws a generator that was seeded for the sample at hand.
"""

import functools
import importlib
import threading
from collections.abc import Callable
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


#: A thread's modes: how many there are, and what takes the last one away.
_MODES = (
    (torch._C._len_torch_function_stack, torch._C._pop_torch_function_stack),
    (torch._C._len_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack),
)
_forget = functools.partial(setattr, _local, "seed", None)


def keyed(seed: int, epoch: int, sample: int, make: Callable[[], Any]) -> Any:
    """Makes something; what this thread draws from torch meanwhile follows from the other three.

    A signal handler may raise in the middle of a mode's ``__enter__`` or ``__exit__``: what those leave behind is taken away
    outside of Python, so that what the program draws afterwards is its own.
    """
    return _native.call_and_restore(
        functools.partial(_keyed, _native.sample_seed(seed, epoch, sample), make), _MODES, _forget
    )


def _keyed(seed: int, make: Callable[[], Any]) -> Any:
    mode = _local.keyed = _local.keyed or _Keyed()
    _local.seed = seed
    mode.generator.manual_seed(seed)
    with mode:
        return make()


def sample_seed() -> int:
    """A number that follows from the loader's seed, the epoch and the sample at hand, to seed a generator with that is not
    torch's: ``numpy.random.default_rng(foresee.torch.sample_seed())``. Only while a transform runs."""
    if _local.seed is None:
        raise ForeseeError("sample_seed(): no sample is being made; call it in a dataset's transform")
    return _local.seed
