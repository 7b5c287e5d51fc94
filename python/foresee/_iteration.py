"""One epoch of a loader for PyTorch: takes batches from the job, or samples from the threads that make them, and hands
them over as torch's loader does."""

import functools
import importlib
import itertools
import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from . import _native
from ._errors import ArgumentTypeError, ConfigError, ForeseeError, SampleError
from ._mapped import Feeder, Maker, Making
from ._threads import is_interrupt
from ._torch import data as torch_data
from ._torch import torch

if TYPE_CHECKING:
    from .torch import DataLoader


class TimedOut(ForeseeError, RuntimeError):
    """A batch did not come in time; torch's loader raises a RuntimeError."""


class _Work:
    """What the next batch is being made of. What is there stays there if a signal handler raises."""

    __slots__ = ("batches", "making", "passed", "samples")

    def __init__(self, passed: int) -> None:
        #: Steps before it that have nothing for this rank.
        self.passed = passed
        #: Of the job; ends with the error where a sample cannot be read.
        self.batches: list[Any] = []
        #: What Python made of their samples, or the workers who do.
        self.samples: list[tuple[Any, Any]] = []
        self.making: Making | None = None


class Iteration(filter):  # type: ignore[type-arg]
    """One epoch, or what is left of it.

    An exception from a signal handler may strike at any bytecode. So ``next`` runs Python only to make a batch ready, in
    steps that can be broken off: the next call goes on with what is there. To hand it over, and to count it, is left to
    ``map`` and ``filter``, which are not written in Python, and to a function that is not either.
    """

    inner: "Epoch"

    def __new__(cls, loader: "DataLoader") -> Self:
        inner = Epoch(loader)
        # What is handed over in the place of a batch that another thread has taken: one more is asked for then.
        none = inner.handover
        iteration = super().__new__(cls, functools.partial(operator.is_not, none), map(none.take, inner))
        iteration.inner = inner
        return iteration

    def __init__(self, *_: Any) -> None:
        """All is done where it is made."""

    def __reduce__(self) -> Any:
        raise ArgumentTypeError("an iteration cannot be pickled: pickle the loader, or its state_dict()")

    def __len__(self) -> int:
        """Batches of an epoch, as torch's."""
        return len(self.inner.loader)

    @property
    def handed(self) -> _native.Handed:
        """What was handed over."""
        return self.inner.handed

    @property
    def is_over(self) -> bool:
        """Whether no more batches will come."""
        return self.inner.is_over

    def settle(self) -> None:
        """Begins the epoch, as the first batch that is asked for does."""
        self.inner.settle()

    def close(self) -> None:
        """Stops threads; what they were to make is made anew if it is asked for."""
        self.inner.close()

    def __del__(self) -> None:
        if (inner := getattr(self, "inner", None)) is not None:
            inner.close()


class Epoch:
    """Makes batches ready: each ``next`` one, unless one is."""

    def __init__(self, loader: "DataLoader") -> None:
        self.loader = loader
        self.handover = _native.Handover()
        #: Until the first batch is asked for it is not settled which epoch this is, nor whose. Its loader says so then.
        self._is_settled = False
        self._epoch = 0
        #: How many of the job's batches each is made of.
        self._sizes: Sequence[int] = ()
        self._maker: Maker | None = None
        self._feeder: Feeder | None = None
        self._stopped = self._over = False
        #: Threads that share an iteration get each batch once.
        self._lock = threading.RLock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _native.Handover:
        try:
            with self._lock:
                timeout = self.loader.timeout
                deadline = time.monotonic() + timeout if timeout > 0 else None
                while not self.handover.is_ready:
                    self._go_on(deadline)
        except ForeseeError:
            _native.sleep_if_left_behind()
            raise
        return self.handover

    def _go_on(self, deadline: float | None) -> None:
        """Makes the next batch ready, or passes over a step that the tail leaves without a sample of this rank."""
        if self._over:
            raise StopIteration
        self._look_around(None)
        self.settle()
        work = self.handover.work
        if work is None:
            work = self.handover.work = _Work(0)
        step = self.handover.handed.steps + work.passed
        if step >= len(self._sizes):
            self._end()
            raise StopIteration
        if self._feeder is not None:
            wrong = self._fed(self._feeder, work, deadline)
        else:
            wrong = self._read(work, self._sizes[step], deadline)
        if wrong is not None:
            # An epoch that ends with an error stays where it is.
            self.handover.fail(wrong, work.passed + isinstance(wrong, SampleError))
        elif self._is_empty(work):
            self.handover.work = _Work(work.passed + 1)
        else:
            self._make(work)

    def _make(self, work: _Work) -> None:
        try:
            given = self._samples(work)
            samples = len(given) if self._maker is not None else sum(len(batch) for batch in given)
            made = self._pinned(self._made(given))
        except Exception as wrong:
            if is_interrupt(wrong):
                raise
            # As with torch, the batch is given up.
            self.handover.fail(wrong, work.passed + 1)
        else:
            self.handover.put(made, samples, work.passed + 1)

    @property
    def handed(self) -> _native.Handed:
        """What was handed over."""
        return self.handover.handed

    def settle(self) -> None:
        """Begins the epoch, as the first batch that is asked for does."""
        if not self._is_settled:
            self.loader._enter(self)
            self._is_settled = True

    @property
    def is_over(self) -> bool:
        """Whether no more batches will come."""
        return self._over or self._stopped

    def close(self) -> None:
        """Stops threads; what they were to make is made anew if it is asked for."""
        self._stopped = True
        self.handover.discard()
        if self._feeder is not None:
            self._feeder.close()

    def _end(self) -> None:
        self.loader._ended(self._epoch)
        self._over = True
        self.close()

    def _fed(self, feeder: Feeder, work: _Work, deadline: float | None) -> Exception | None:
        """Waits until workers have made the next batch."""

        def still_waits() -> None:
            self._look_around(deadline)

        if work.making is None:
            work.making = feeder.first(still_waits)
        feeder.drop(work.making)
        feeder.finish(work.making, still_waits)
        return work.making.wrong

    def _read(self, work: _Work, size: int, deadline: float | None) -> Exception | None:
        """Waits for the job's batches that the next one is made of."""
        while not self.loader._job._inner.gather(work.batches, size, self._epoch):
            self._look_around(deadline)
        last = work.batches[-1]
        return last if isinstance(last, SampleError) else None

    def _is_empty(self, work: _Work) -> bool:
        if work.making is not None:
            return len(work.making) == 0
        return sum(len(batch) for batch in work.batches) == 0

    def _samples(self, work: _Work) -> list[Any]:
        """The samples that Python made, or the job's batches."""
        if work.making is not None:
            return work.making.samples()
        if (maker := self._maker) is None:
            return work.batches
        given = (
            (batch.epoch, index, data)
            for batch in work.batches
            for index, data in zip(batch.indices, batch.data, strict=True)
        )
        for epoch, index, data in itertools.islice(given, len(work.samples), None):
            work.samples.append(maker.make(epoch, index, data))
        return list(work.samples)

    def _made(self, given: list[Any]) -> Any:
        if self._maker is not None:
            return self._collated(given)
        if isinstance(given[0].data, _native.Tensor):
            return self._tensors(given)
        pairs = [pair for batch in given for pair in zip(batch.data, batch.labels, strict=True)]
        if self.loader.collate_fn is None:
            pairs = [(torch.frombuffer(bytearray(data), dtype=torch.uint8), label) for data, label in pairs]
            if self._is_batched():
                _refuse_lengths(pairs)
        return self._collated(pairs)

    def _tensors(self, batches: list[_native.Batch]) -> Any:
        images = [torch.from_dlpack(batch.data) for batch in batches]
        labels = [torch.from_dlpack(batch.labels) for batch in batches]
        one = len(batches) == 1
        data, label = (images[0], labels[0]) if one else (torch.cat(images), torch.cat(labels))
        if self.loader.collate_fn is None and self._is_batched():
            return data, label
        return self._collated(list(zip(data, label.tolist(), strict=True)))

    def _collated(self, pairs: list[tuple[Any, Any]]) -> Any:
        collate: Callable[[Any], Any] | None = self.loader.collate_fn
        if not self._is_batched():
            return (collate or torch_data.default_convert)(pairs[0])
        if collate is not None:
            return collate(pairs)
        made = torch_data.default_collate(pairs)
        # torch's loader gives a list here, its users unpack it; a tuple is what foresee's other batches are.
        return tuple(made) if isinstance(made, list) else made

    def _is_batched(self) -> bool:
        return self.loader.batch_size is not None or self.loader._in_batches

    def _look_around(self, deadline: float | None) -> None:
        if self._stopped:
            raise ForeseeError("this iteration is over: another one of the same loader began, or the loader was closed")
        if deadline is not None and time.monotonic() > deadline:
            raise TimedOut(
                f"timeout={self.loader.timeout}: no batch after so many seconds; the next one may still come"
            )

    def _pinned(self, made: Any) -> Any:
        if not self.loader.pin_memory or not has_accelerator():
            return made
        return importlib.import_module("torch.utils.data._utils.pin_memory").pin_memory(made)


def has_accelerator() -> bool:
    """Whether there is something to pin memory for."""
    accelerator = getattr(torch, "accelerator", torch.cuda)
    return bool(accelerator.is_available())


def _refuse_lengths(pairs: list[tuple[Any, Any]]) -> None:
    lengths = {len(data) for data, _ in pairs}
    if len(lengths) > 1:
        raise ConfigError(
            f"samples of {min(lengths)} to {max(lengths)} bytes make no tensor: give the dataset a transform, or the "
            "loader a collate_fn"
        )
