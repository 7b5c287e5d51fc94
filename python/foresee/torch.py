"""A loader for PyTorch: torch's keywords, foresee's reads.

    loader = foresee.torch.DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8, seed=0)
    for epoch in range(90):
        for images, labels in loader:
            ...

The order is that of ``torch.utils.data.DataLoader`` with a ``DistributedSampler`` of the same seed whose ``set_epoch`` is
called for every epoch. There are no worker processes: threads read and decode. Tensors share the loader's memory, which
is free again when they are gone.
"""

import importlib
import itertools
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from . import _check, _native, _order, transforms
from ._dataset import Dataset, Files
from ._errors import ArgumentTypeError, ConfigError, ForeseeError
from ._job import Job
from ._mapped import Feeder, Mapped, Workers

try:
    _torch: Any = importlib.import_module("torch")
    _data: Any = importlib.import_module("torch.utils.data")
except ImportError as missing:
    raise ImportError(
        "foresee.torch needs PyTorch: install torch, or use foresee.Job, which needs nothing"
    ) from missing

__all__ = ["DataLoader"]

#: More epochs than anybody trains; what a job plans does not depend on their number.
_EPOCHS_MAX = 2**31
#: Batches that are made ahead for each worker, as in torch.
_PREFETCH = 2


class DataLoader:
    """Batches of ``(tensor, labels)``, epoch by epoch: each ``iter()`` is the next epoch.

    Parameters have torch's names, order and defaults. What is different:

    :param dataset: a :class:`foresee.ImageFolder` or :class:`foresee.Files`, torchvision's ``ImageFolder`` or
        ``DatasetFolder``, any dataset with ``samples`` of (path, label), or a ``Subset`` of one. Transforms in Python run
        on threads.
    :param shuffle: draws the order of ``DistributedSampler(shuffle=True, seed=seed)``; with a ``generator`` that of
        ``RandomSampler(generator=generator)``.
    :param num_workers: threads that read and decode, or that run Python's transforms; 0: as configured, and Python's
        transforms run where the loader is called.
    :param multiprocessing_context: nothing uses it, nor ``persistent_workers`` and ``pin_memory_device``.
    :param seed: of order and augmentation; None makes one, the same on all ranks.
    :param epochs: how many there will be, if that is known.
    :param config: of memory and disks, as for :class:`foresee.Job`; so are ``policy``, ``tail`` and ``on_error``.
    :param rank: this rank of ``world_size``; None finds both.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = 0,
        epochs: int | None = None,
        config: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: str = "pad",
        policy: str = "foresee",
        on_error: str = "raise",
    ) -> None:
        self.num_workers = _check.whole("num_workers", num_workers, 0, 1024)
        if timeout < 0:
            raise ConfigError(f"timeout={timeout}: give 0 (none) or a number of seconds")
        if prefetch_factor is not None and num_workers == 0:
            raise ConfigError(f"prefetch_factor={prefetch_factor}: only with num_workers above 0")
        if persistent_workers and num_workers == 0:
            raise ConfigError("persistent_workers=True: only with num_workers above 0")
        _order.refuse_contradictions(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset = dataset
        self.batch_size = None if batch_sampler is not None else batch_size
        self.drop_last = drop_last
        self.timeout, self.pin_memory, self.generator = timeout, pin_memory, generator
        self.collate_fn, self.worker_init_fn = collate_fn, worker_init_fn
        self.prefetch_factor = _PREFETCH if prefetch_factor is None and num_workers > 0 else prefetch_factor
        self.persistent_workers, self.pin_memory_device, self.in_order = persistent_workers, pin_memory_device, in_order
        self.multiprocessing_context = multiprocessing_context
        self._mapped, source = _source(dataset)
        if shuffle and generator is not None:
            sampler = _data.RandomSampler(range(len(source)), generator=generator)
        self._drawn = sampler if batch_sampler is None else batch_sampler
        self._in_batches = batch_sampler is not None
        options: dict[str, Any] = {"seed": seed, "tail": tail, "rank": rank, "world_size": world_size}
        options["shuffle"] = "torch" if shuffle else "sequential"
        self._leader: Any = sampler if _is_distributed(sampler, source) else None
        if self._leader is not None:
            options |= _order.of_distributed(self._leader)
            self._drawn = None
        elif self._drawn is not None:
            # A sampler gives this rank's samples: nothing is left to be dealt. It is asked when an epoch begins.
            options |= {"shuffle": [0], "rank": 0, "world_size": 1, "tail": "pad"}
        self._draws = self._drawn is not None or options["shuffle"] == "torch"
        given = _check.whole("epochs", epochs, 1, _EPOCHS_MAX) if epochs is not None else _EPOCHS_MAX
        threads = self.num_workers if self.num_workers > 0 and self._mapped is None else None
        self._unequal = False
        self._options = {
            **options,
            "epochs": given,
            "drop_last": drop_last,
            "policy": policy,
            "on_error": on_error,
            "config": config,
            "threads": threads,
        }
        self._source = source
        first = 1 if batch_sampler is not None or batch_size is None else batch_size
        self.job = Job(source, first, **self._options)
        self.sampler, self.batch_sampler = self._samplers(sampler, batch_sampler)
        self._workers: Workers | None = None
        self._running: weakref.ref[_Iteration] | None = None
        #: Where the next iteration begins, where the trainer stands, and which epochs began so far.
        self._begin = self._place = (0, 0)
        self._begun: set[int] = set()
        self._warned = self._closed = False
        #: The batches of the epoch at hand, where a sampler drew them, and those of a state that was loaded.
        self._epoch_batches: list[list[int]] | None = None
        self._loaded_batches: list[list[int]] | None = None

    def __len__(self) -> int:
        """Batches of an epoch."""
        if self._drawn is None:
            return self.job.steps_per_epoch
        if self._in_batches:
            return len(self._drawn)  # type: ignore[arg-type]
        samples, size = len(self._drawn), self.batch_size or 1  # type: ignore[arg-type]
        return samples // size if self.drop_last else -(-samples // size)

    def __iter__(self) -> "_Iteration":
        if self._closed:
            raise ForeseeError("the loader is closed: make another one")
        self._stop_running()
        # torch draws this for its workers; without it whatever the trainer draws next would differ.
        _torch.empty((), dtype=_torch.int64).random_(generator=self.generator)
        if self._leader is not None and self._leader.epoch != self._begin[0]:
            self._begin = (self._leader.epoch, 0)
        epoch, step = self._begin
        if epoch >= self.job.epochs:
            raise ConfigError(f"epoch {epoch}: the loader was made for epochs={self.job.epochs}")
        self._warn_if_repeated(epoch, step)
        self._place, self._begin = (epoch, step), (epoch + 1, 0)
        groups = self._go_to(epoch, step)
        iteration = _Iteration(self, groups)
        self._running = weakref.ref(iteration)
        return iteration

    def set_epoch(self, epoch: int) -> None:
        """Which epoch comes next. Epochs advance by themselves, so this is only needed to go elsewhere."""
        epoch = _check.whole("epoch", epoch, 0, self.job.epochs - 1)
        if epoch != self._begin[0]:
            self._begin, self._loaded_batches = (epoch, 0), None
        if self._leader is not None:
            self._leader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands: what was delivered counts, also in the middle of an epoch."""
        epoch, step = self._place
        if self._drawn is None:
            return {**self.job.state_dict(), "epoch": epoch, "step": step, "index": 0}
        state: dict[str, Any] = {"version": 1, "shuffle": "sampler", "epoch": epoch, "step": step}
        if step > 0:
            state["batches"] = self._epoch_batches
        if hasattr(self._drawn, "state_dict"):
            state["sampler"] = self._drawn.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on with the very next batch after ``state_dict()``."""
        if not isinstance(state, Mapping) or "epoch" not in state:
            raise ArgumentTypeError(f"state={_check.shown(state)}: give what state_dict() returned")
        if (state.get("shuffle") == "sampler") != (self._drawn is not None):
            raise ConfigError("state: one run has a sampler, the other has none; make the loader as it was")
        self._stop_running()
        if self._drawn is None:
            self.job.load_state_dict(state)
        else:
            self._loaded_batches = state.get("batches")
            if "sampler" in state and hasattr(self._drawn, "load_state_dict"):
                self._drawn.load_state_dict(state["sampler"])
        self._begin = self._place = (state["epoch"], state["step"])
        if self._leader is not None:
            self._leader.set_epoch(state["epoch"])

    def stats(self) -> dict[str, Any]:
        """What happened so far, in numbers, as ``Job.stats()``; the source minimum is None where epochs have no end."""
        return self.job.stats()

    def summary(self) -> str:
        """What happened so far, to be printed."""
        return self.job.summary()

    def close(self) -> None:
        """Ends all reads and threads. Tensors stay valid. Closing twice is fine."""
        self._closed = True
        self._stop_running()
        if self._workers is not None:
            self._workers.close()
        self.job.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, seed={self.job.seed})"

    def _samplers(self, sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
        """What torch's loader has under these names."""
        if batch_sampler is not None:
            return _data.SequentialSampler(range(len(self._source))), batch_sampler
        if sampler is None:
            sampler = _follower(self)
        if self.batch_size is None:
            return sampler, None
        return sampler, _data.BatchSampler(sampler, self.batch_size, self.drop_last)

    def _stop_running(self) -> None:
        running = self._running() if self._running is not None else None
        if running is not None:
            running.close()

    def _warn_if_repeated(self, epoch: int, step: int) -> None:
        if epoch in self._begun and step == 0 and self._draws and self._drawn is None and not self._warned:
            self._warned = True
            warnings.warn(
                f"epoch {epoch} begins again with the same order; leave set_epoch away, or give it another epoch",
                stacklevel=3,
            )
        self._begun.add(epoch)

    def _go_to(self, epoch: int, step: int) -> Iterable[int]:
        """Sets the job to a step; returns how many of its batches each of the loader's is made of."""
        if self._drawn is not None:
            return self._go_to_drawn(epoch, step)
        at, inner = self.job.position, self.job._inner
        if at != (epoch, step):
            if step == 0 and epoch > at[0]:
                inner.seek(epoch)
            else:
                self.job.load_state_dict({**self.job.state_dict(), "epoch": epoch, "step": step, "index": 0})
        return itertools.repeat(1, self.job.steps_per_epoch - step)

    def _go_to_drawn(self, epoch: int, step: int) -> Iterable[int]:
        batches = self._loaded_batches if step > 0 and self._loaded_batches is not None else self._draw()
        self._epoch_batches, self._loaded_batches = batches, None
        size = self._native_size(batches)
        if size != self.job.batch_size:
            self.job.close()
            self.job = Job(self._source, size, **self._options)
        left = batches[step:]
        if not left:
            return []
        # Steps of the job are the loader's where those have one size, else single samples.
        grouped = [1] * len(left) if not self._unequal else [len(batch) for batch in left]
        before = step if not self._unequal else sum(len(batch) for batch in batches[:step])
        self.job._inner.reorder(epoch, before, [sample for batch in batches for sample in batch])
        return grouped

    def _draw(self) -> list[list[int]]:
        """The batches of an epoch, as the sampler gives them."""
        if self._in_batches:
            given = [[_order.sample(index) for index in batch] for batch in self._drawn]  # type: ignore[union-attr]
            if not all(given):
                raise ConfigError("batch_sampler: a batch is empty")
            return given
        samples = [_order.sample(index) for index in self._drawn]  # type: ignore[union-attr]
        size = self.batch_size or 1
        batches = [samples[first : first + size] for first in range(0, len(samples), size)]
        return batches[:-1] if self.drop_last and batches and len(batches[-1]) < size else batches

    def _native_size(self, batches: list[list[int]]) -> int:
        """The batch size of the job: that of all batches, of which only the last may have less, else 1."""
        if not self._in_batches or not batches:
            return self.job.batch_size
        size = len(batches[0])
        self._unequal = any(len(batch) != size for batch in batches[:-1]) or len(batches[-1]) > size
        return 1 if self._unequal else size

    def _feeder(self, groups: Iterable[int]) -> Feeder | None:
        if self._mapped is None or self.num_workers == 0:
            return None
        if self._workers is None:
            self._workers = Workers(self.num_workers, self.worker_init_fn)
        ahead = (_PREFETCH if self.prefetch_factor is None else self.prefetch_factor) * self.num_workers
        return Feeder(self.job._inner, self._mapped, self._workers, groups, ahead)


class _Iteration:
    """One epoch, or what is left of it."""

    def __init__(self, loader: DataLoader, groups: Iterable[int]) -> None:
        self._loader = loader
        self._left = iter(groups)
        #: How many of the job's batches the next one is made of, and which of them are there.
        self._wanted: int | None = None
        self._taken: list[_native.Batch] = []
        self._stopped = self._over = False
        self._feeder = loader._feeder(groups)
        self._epoch = loader._place[0]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._stopped:
            raise ForeseeError("this iteration is over: another one of the same loader began, or the loader was closed")
        deadline = time.monotonic() + self._loader.timeout if self._loader.timeout > 0 else None
        while True:
            given = self._fed(deadline) if self._feeder is not None else self._read(deadline)
            if given is None:
                self._end()
                raise StopIteration
            # The tail may leave a rank without a sample in the last step.
            if any(len(part) > 0 for part in given):
                return self._pinned(self._made(given))

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
        self._loader._place = (self._epoch + 1, 0)

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
        """The job's batches that the next one is made of. Whatever is raised, those that are there wait for the rest."""
        if self._wanted is None:
            self._wanted = next(self._left, None)
        if self._wanted is None:
            return None
        while len(self._taken) < self._wanted:
            self._taken.append(self._batch(deadline))
        batches, self._taken, self._wanted = self._taken, [], None
        self._step_on()
        mapped = self._loader._mapped
        if mapped is None:
            return batches
        pairs = (pair for batch in batches for pair in zip(batch.indices, batch.data, strict=True))
        return [mapped.make(index, data) for index, data in pairs]

    def _made(self, given: list[Any]) -> Any:
        if self._loader._mapped is not None:
            return self._collated(given)
        if isinstance(given[0].data, _native.Tensor):
            return self._tensors(given)
        pairs = [pair for batch in given for pair in zip(batch.data, batch.labels, strict=True)]
        if self._loader.collate_fn is None:
            pairs = [(_torch.frombuffer(bytearray(data), dtype=_torch.uint8), label) for data, label in pairs]
            if self._is_batched():
                _refuse_lengths(pairs)
        return self._collated(pairs)

    def _tensors(self, batches: list[_native.Batch]) -> Any:
        images = [_torch.from_dlpack(batch.data) for batch in batches]
        labels = [_torch.from_dlpack(batch.labels) for batch in batches]
        one = len(batches) == 1
        data, label = (images[0], labels[0]) if one else (_torch.cat(images), _torch.cat(labels))
        if self._loader.collate_fn is None and self._is_batched():
            return data, label
        return self._collated(list(zip(data, label.tolist(), strict=True)))

    def _collated(self, pairs: list[tuple[Any, Any]]) -> Any:
        collate = self._loader.collate_fn
        if not self._is_batched():
            return (collate or _data.default_convert)(pairs[0])  # type: ignore[arg-type]
        if collate is not None:
            return collate(pairs)
        made = _data.default_collate(pairs)
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
                raise ForeseeError("the job ended before its epoch: somebody else takes batches from loader.job")
            if batch is not None:
                return batch
            self._look_at_clock(deadline)

    def _look_at_clock(self, deadline: float | None) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise ForeseeError(f"timeout={self._loader.timeout}: no batch after so many seconds")

    def _pinned(self, made: Any) -> Any:
        if not self._loader.pin_memory or not _torch.cuda.is_available():
            return made
        return importlib.import_module("torch.utils.data._utils.pin_memory").pin_memory(made)


def _source(dataset: Any) -> tuple[Mapped | None, Dataset]:
    """The dataset that the job reads, and how its samples are made where Python makes them."""
    if isinstance(dataset, Dataset):
        return None, dataset
    mapped = Mapped.of(dataset)
    transform = mapped.transform
    if isinstance(transform, transforms.Transform):
        return None, Files(mapped.paths(), mapped.targets(), transform=transform)
    return mapped, Files(mapped.paths())


def _is_distributed(sampler: Any, source: Dataset) -> bool:
    """Whether a sampler is exactly torch's, over this dataset: then its orders are known ahead."""
    if type(sampler) is not importlib.import_module("torch.utils.data.distributed").DistributedSampler:
        return False
    return len(sampler.dataset) == len(source)


def _follower(loader: DataLoader) -> Any:
    """torch's sampler with the loader's order; its ``set_epoch`` is the loader's."""
    job, kind = loader.job, importlib.import_module("torch.utils.data.distributed").DistributedSampler
    owner = weakref.ref(loader)

    class Follower(kind):  # type: ignore[misc, valid-type]
        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch)
            if (held := owner()) is not None:
                held.set_epoch(epoch)

    whole = range(len(loader._source))
    return Follower(whole, job.world_size, job.rank, shuffle=loader._options["shuffle"] == "torch", seed=job.seed)


def _refuse_lengths(pairs: list[tuple[Any, Any]]) -> None:
    lengths = {len(data) for data, _ in pairs}
    if len(lengths) > 1:
        raise ConfigError(
            f"samples of {min(lengths)} to {max(lengths)} bytes make no tensor: give the dataset a transform, or the "
            "loader a collate_fn"
        )
