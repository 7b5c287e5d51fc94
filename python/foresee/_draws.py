"""Random numbers of Python's transforms: keyed by the loader's seed, the epoch and the sample, so that they are the same on
every number of threads and ranks, and after a resume.

torch has one generator for the whole process, whatever the thread, and many of its functions (dropout, say) take no other
one. But each thread has its own stack of modes. One that sees every call of torch is always there while a sample is made;
it is cheap, and lets another one in only where a call may draw: that one sees the operators that the call is made of, at
the bottom of which each random one can be given a generator, here one that was seeded for the sample at hand.
"""

import contextlib
import functools
import importlib
import threading
import types
from collections.abc import Callable
from typing import Any, Self

from . import _native
from ._errors import ForeseeError
from ._torch import torch

_Calls: Any = importlib.import_module("torch.overrides").TorchFunctionMode
_Operators: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

#: Takes the last of a thread's modes that see operators away; the argument would be a place of its own in their stack.
_pop_operators = functools.partial(torch._C._pop_torch_dispatch_stack, None)


class _KeyedOperators(_Operators):  # type: ignore[misc]
    """Hands a generator to each operator that draws and was not given one."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def __enter__(self) -> Self:
        # torch's own also sets flags of the whole process, by which compiled code of other threads would run uncompiled.
        torch._C._push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_operators()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func) or kwargs.get("generator") is not None or not _on_cpu(args, kwargs):
            return func(*args, **kwargs)
        if (kind := _with_generator(func)) is not None:
            return kind(*args, **{**kwargs, "generator": self.generator})
        with self:
            # In inference mode what is made of others comes here as a whole.
            parts = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if parts is NotImplemented else parts


class _Keyed(_Calls):  # type: ignore[misc]
    """Lets the operators of a call be seen where some of them may draw."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = _KeyedOperators()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _may_draw(func):
            return func(*args, **(kwargs or {}))
        with self.operators:
            return func(*args, **(kwargs or {}))


@functools.cache
def _may_draw(func: Any) -> bool:
    """Whether a function of torch may draw: whoever is written in Python may, others say so."""
    if isinstance(func, types.FunctionType):
        return True
    name = getattr(func, "__name__", "__")
    # Python's own methods have no operator of this name, but the object that holds operators has them, too.
    named = None if name.startswith("__") else getattr(torch.ops.aten, name, None)
    return named is not None and any(_draws(getattr(named, one)) for one in named.overloads())


@functools.cache
def _with_generator(operator: Any) -> Callable[..., Any] | None:
    """What an operator that draws is with a ``generator``."""
    wanted = _parameters(operator)
    if "generator" in wanted:
        return operator  # type: ignore[no-any-return]
    kinds = (getattr(operator.overloadpacket, name) for name in operator.overloadpacket.overloads())
    found = next((kind for kind in kinds if _parameters(kind) == wanted | {"generator"}), None)
    return found if found is not None else _WITHOUT.get(operator)


@functools.cache
def _draws(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def _parameters(operator: Any) -> set[str]:
    return {one.name for one in operator._schema.arguments}


def _native_dropout(image: Any, p: float, train: bool | None, generator: Any) -> tuple[Any, Any]:
    """The only operator of the CPU that draws and has no kind with a generator."""
    if train is False or p == 0:
        return image.clone(), torch.ones_like(image, dtype=torch.bool)
    kept = torch.empty_like(image, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return image * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


_WITHOUT: dict[Any, Callable[..., Any]] = {torch.ops.aten.native_dropout.default: _native_dropout}


def _on_cpu(args: Any, kwargs: Any) -> bool:
    tensor = next((value.device for value in args if isinstance(value, torch.Tensor)), None)
    device = kwargs.get("device") or tensor or "cpu"
    return bool(torch.device(device).type == "cpu")


class _Local(threading.local):
    keyed: _Keyed | None = None
    seed: int | None = None


_local = _Local()

_push = torch._C._push_on_torch_function_stack
#: A thread's modes: how many there are, the one at a place, what takes the last one away, and what adds one.
_MODES = (
    (torch._C._len_torch_function_stack, torch._C._get_function_stack_at, torch._C._pop_torch_function_stack, _push),
    (
        torch._C._len_torch_dispatch_stack,
        torch._C._get_dispatch_stack_at,
        _pop_operators,
        torch._C._push_on_torch_dispatch_stack,
    ),
)
_Manager = contextlib._GeneratorContextManager
#: While torch calls a function that is written in Python, a generator keeps the mode, and puts it back when it ends: if a
#: handler raises in one of these, that is when the exception is gone.
_KEEP_GENERATORS = (_Manager.__enter__.__code__, _Manager.__exit__.__code__)
_forget = functools.partial(setattr, _local, "seed", None)


def keyed(seed: int, epoch: int, sample: int, make: Callable[[], Any]) -> Any:
    """Makes something; what this thread draws from torch meanwhile follows from the other three.

    In the main thread a signal handler may raise while a mode is entered or left, of ours or of anybody, or while torch has
    taken one away for a moment. So the modes are made what they were outside of Python: what the program draws afterwards
    is its own.
    """
    key = _native.sample_seed(seed, epoch, sample)
    if threading.get_ident() == threading.main_thread().ident:
        return _native.call_and_restore(functools.partial(_enter, key, make), _MODES, _KEEP_GENERATORS, _forget)
    try:
        with _mode(key):
            return make()
    finally:
        _forget()


def _enter(key: int, make: Callable[[], Any]) -> Any:
    """Leaves the mode to be left by the caller: if a handler raised, it may not be there any more."""
    _push(_mode(key))
    return make()


def _mode(key: int) -> _Keyed:
    mode = _local.keyed = _local.keyed or _Keyed()
    _local.seed = key
    mode.operators.generator.manual_seed(key)
    return mode


def sample_seed() -> int:
    """A number that follows from the loader's seed, the epoch and the sample at hand, to seed a generator with that is not
    torch's: ``numpy.random.default_rng(foresee.torch.sample_seed())``. Only while a transform runs."""
    if _local.seed is None:
        raise ForeseeError("sample_seed(): no sample is being made; call it in a dataset's transform")
    return _local.seed
