"""One epoch of a loader for PyTorch: takes batches from the job, or samples from the threads that make them, and hands
them over as torch's loader does."""

import importlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from . import _native
from ._errors import ArgumentTypeError, ConfigError, ForeseeError, SampleError
from ._mapped import JOB_ENDED
from ._torch import data as torch_data
from ._torch import torch

if TYPE_CHECKING:
    from .torch import DataLoader


class TimedOut(ForeseeError, RuntimeError):
    """A batch did not come in time; torch's loader raises a RuntimeError."""


class Iteration:
    """One epoch, or what is left of it."""

    def __init__(self, loader: "DataLoader", groups: Iterable[int]) -> None:
        self._loader = loader
        self._left = iter(groups)
        #: How many of the job's batches the next one is made of, and which of them are there.
        self._wanted: int | None = None
        self._taken: list[_native.Batch] = []
        self._stopped = self._over = False
        self._maker = loader._maker()
        self._feeder = loader._feeder(self._maker, groups)
        self._epoch = loader._place[0]
        #: Threads that share an iteration get each batch once.
        self._lock = threading.RLock()

    def __iter__(self) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise ArgumentTypeError("an iteration cannot be pickled: pickle the loader, or its state_dict()")

    def __len__(self) -> int:
        """Batches of an epoch, as torch's."""
        return len(self._loader)

    def __next__(self) -> Any:
        with self._lock:
            return self._next()

    def _next(self) -> Any:
        if self._over:
            raise StopIteration
        if self._stopped:
            raise ForeseeError("this iteration is over: another one of the same loader began, or the loader was closed")
        timeout = self._loader.timeout
        deadline = time.monotonic() + timeout if timeout > 0 else None
        while True:
            given = self._fed(deadline) if self._feeder is not None else self._read(deadline)
            if given is None:
                self._end()
                raise StopIteration
            # The tail may leave a rank without a sample in the last step.
            if (samples := self._samples(given)) > 0:
                made = self._pinned(self._made(given))
                self._loader._delivered += samples
                return made

    @property
    def is_over(self) -> bool:
        """Whether no more batches will come."""
        return self._over or self._stopped

    def close(self) -> None:
        """Stops threads; what they were to make is made anew if it is asked for."""
        self._stopped = True
        if self._feeder is not None:
            self._feeder.close()

    def __del__(self) -> None:
        if getattr(self, "_feeder", None) is not None:
            self.close()

    def _end(self) -> None:
        self._over = True
        self.close()
        self._loader._ended(self._epoch)

    def _step_on(self) -> None:
        epoch, step = self._loader._place
        self._loader._place = (epoch, step + 1)

    def _fed(self, deadline: float | None) -> list[Any] | None:
        """The samples of the next batch, made by workers."""
        assert self._feeder is not None
        before = self._feeder.taken
        try:
            return self._feeder.take(lambda: self._look_at_clock(deadline))
        finally:
            if self._feeder.taken > before:
                self._step_on()

    def _read(self, deadline: float | None) -> list[Any] | None:
        """The job's batches that the next one is made of. Those that are there wait for the rest, unless a sample cannot be
        read: then this batch is given up, as with torch."""
        if self._wanted is None:
            self._wanted = next(self._left, None)
        if self._wanted is None:
            return None
        try:
            while len(self._taken) < self._wanted:
                self._taken.append(self._batch(deadline))
        except SampleError:
            self._loader.job._inner.pass_over(self._wanted - len(self._taken))
            self._taken, self._wanted = [], None
            self._step_on()
            raise
        batches, self._taken, self._wanted = self._taken, [], None
        self._step_on()
        if (maker := self._maker) is None:
            return batches
        return [
            maker.make(batch.epoch, index, data)
            for batch in batches
            for index, data in zip(batch.indices, batch.data, strict=True)
        ]

    def _samples(self, given: list[Any]) -> int:
        return len(given) if self._maker is not None else sum(len(batch) for batch in given)

    def _made(self, given: list[Any]) -> Any:
        if self._maker is not None:
            return self._collated(given)
        if isinstance(given[0].data, _native.Tensor):
            return self._tensors(given)
        pairs = [pair for batch in given for pair in zip(batch.data, batch.labels, strict=True)]
        if self._loader.collate_fn is None:
            pairs = [(torch.frombuffer(bytearray(data), dtype=torch.uint8), label) for data, label in pairs]
            if self._is_batched():
                _refuse_lengths(pairs)
        return self._collated(pairs)

    def _tensors(self, batches: list[_native.Batch]) -> Any:
        images = [torch.from_dlpack(batch.data) for batch in batches]
        labels = [torch.from_dlpack(batch.labels) for batch in batches]
        one = len(batches) == 1
        data, label = (images[0], labels[0]) if one else (torch.cat(images), torch.cat(labels))
        if self._loader.collate_fn is None and self._is_batched():
            return data, label
        return self._collated(list(zip(data, label.tolist(), strict=True)))

    def _collated(self, pairs: list[tuple[Any, Any]]) -> Any:
        collate: Callable[[Any], Any] | None = self._loader.collate_fn
        if not self._is_batched():
            return (collate or torch_data.default_convert)(pairs[0])
        if collate is not None:
            return collate(pairs)
        made = torch_data.default_collate(pairs)
        # torch's loader gives a list here, its users unpack it; a tuple is what foresee's other batches are.
        return tuple(made) if isinstance(made, list) else made

    def _is_batched(self) -> bool:
        return self._loader.batch_size is not None or self._loader._in_batches

    def _batch(self, deadline: float | None) -> _native.Batch:
        inner = self._loader.job._inner
        while True:
            if deadline is None:
                there, batch = True, inner.next_batch()
            else:
                there, batch = inner.try_batch()
            if there and batch is None:
                raise ForeseeError(JOB_ENDED)
            if batch is not None:
                return batch
            self._look_at_clock(deadline)

    def _look_at_clock(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise TimedOut(
                f"timeout={self._loader.timeout}: no batch after so many seconds; the next one may still come"
            )

    def _pinned(self, made: Any) -> Any:
        if not self._loader.pin_memory or not has_accelerator():
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
