"""Datasets whose samples are made in Python: files that foresee reads, opened and transformed by the dataset's own functions.

With workers, threads of a pool do that ahead of the trainer: a feeder takes batches from the job, hands their samples to
the pool, and puts what they will become into a bounded queue, in order. Nothing here knows torch. What the trainer's thread
does here can be broken off by an exception from a signal handler at any bytecode, and be done again.
"""

import atexit
import contextlib
import functools
import io
import os
import queue
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _check, _native
from ._dataset import abstract_dataset, opens_as_torchvision
from ._errors import ArgumentTypeError, ConfigError, ForeseeError, SampleError
from ._threads import Bell, Threads, is_interrupt

#: How long closing waits for a transform that is under way.
_JOIN_MAX_S = 5.0

#: A sample to be made: for which batch, where in it, by whom, of which epoch, which one.
_Task = tuple["Making", int, "Maker", int, int, _native.Sample]

#: What has threads, to be closed when the program ends: those that run Python must not outlive it.
_open: "weakref.WeakSet[Workers | Feeder]" = weakref.WeakSet()


class Mapped:
    """A dataset with ``samples`` of (path, target) and functions in Python, such as torchvision's ``ImageFolder``.

    ``loader`` opens a file, ``transform`` and ``target_transform`` follow, each where there is one.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | None = None) -> None:
        _refuse_other_items(dataset, "torchvision.datasets.folder", "DatasetFolder")
        samples = dataset.samples
        if hasattr(dataset, "__len__") and len(dataset) != len(samples):
            raise ConfigError(
                f"dataset={type(dataset).__name__}: its length is {len(dataset)}, but it has {len(samples)} samples; give a "
                "Subset of it"
            )
        self._dataset = dataset
        # A copy: paths and labels are read at different times, and must be of one sample.
        self._samples = [tuple(samples[index]) for index in (range(len(samples)) if indices is None else indices)]
        self._open = _opener(dataset)

    @staticmethod
    def of(dataset: Any) -> "Mapped":
        """What the loader can read of a dataset; a ``Subset`` is a part of one."""
        whole, indices = unwrapped(dataset)
        samples = getattr(whole, "samples", None)
        if not isinstance(samples, Sequence) or not all(isinstance(one, Sequence) and len(one) == 2 for one in samples):
            raise ArgumentTypeError(
                f"dataset={_check.shown(dataset)}: give a foresee.ImageFolder or foresee.Files, torchvision's ImageFolder, "
                "or a dataset with `samples`, a list of (path, label)"
            )
        return Mapped(whole, indices)

    @property
    def transform(self) -> Any:
        return getattr(self._dataset, "transform", None)

    def labels(self) -> list[Any]:
        """What its ``target_transform`` makes of the targets, once for all epochs, where only bytes are asked for."""
        if self._open is not _rgb:
            raise ConfigError(
                f"dataset={type(self._dataset).__name__}: foresee's transforms open the files, its loader would not be "
                "called; leave it away, or use transforms of torchvision"
            )
        change = getattr(self._dataset, "target_transform", None)
        targets = [target for _, target in self._samples]
        return targets if change is None else [change(target) for target in targets]

    def paths(self) -> list[str]:
        return [path for path, _ in self._samples]

    def make(self, index: int, sample: _native.Sample | bytes) -> tuple[Any, Any]:
        """A sample as the dataset's own ``__getitem__`` would return it."""
        path, target = self._samples[index]
        try:
            data = self._open(_File(sample, path))
            if self.transform is not None:
                data = self.transform(data)
            change = getattr(self._dataset, "target_transform", None)
            return data, target if change is None else change(target)
        except Exception as cause:
            if is_interrupt(cause):
                raise
            wrong = SampleError(_native.one_line(f"sample {index} ({path}): {_said(cause)}"))
            wrong.sample, wrong.path = index, str(path)
            raise wrong from cause


def unwrapped(dataset: Any) -> tuple[Any, list[int] | None]:
    """The whole dataset, and which of its samples a ``Subset`` of it has."""
    indices: list[int] | None = None
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices") and not hasattr(dataset, "samples"):
        _refuse_other_items(dataset, "torch.utils.data", "Subset")
        part = [int(index) for index in dataset.indices]
        indices = part if indices is None else [part[index] for index in indices]
        dataset = dataset.dataset
    return dataset, indices


class Maker:
    """Makes the samples of a job's batches.

    ``keyed`` is called with epoch, sample and what makes it. Where the job skips what it cannot read, the next sample of
    which something can be made takes the place of one of which nothing can.
    """

    def __init__(
        self,
        mapped: Mapped,
        job: _native.Job,
        keyed: Callable[[int, int, Callable[[], Any]], Any],
        skips: bool,
    ) -> None:
        self._mapped, self._job, self._keyed, self._skips = mapped, job, keyed, skips

    def make(self, epoch: int, index: int, data: _native.Sample) -> tuple[Any, Any]:
        try:
            return self._made(epoch, index, data)
        except SampleError as wrong:
            if not self._skips:
                raise
            return self._instead(epoch, index, wrong)

    def _made(self, epoch: int, index: int, data: _native.Sample | bytes) -> tuple[Any, Any]:
        made: tuple[Any, Any] = self._keyed(epoch, index, lambda: self._mapped.make(index, data))
        return made

    def _instead(self, epoch: int, index: int, wrong: SampleError) -> tuple[Any, Any]:
        tried = 0
        while (other := self._job.instead_of(index, tried)) is not None:
            tried, number, data = other
            with contextlib.suppress(SampleError):
                made = self._made(epoch, number, data)
                self._job.note_skipped(index, number, _said(wrong.__cause__))
                return made
        raise wrong


def _said(cause: BaseException | None) -> str:
    return " ".join(f"{type(cause).__name__}: {cause}".split())


class _File(io.BytesIO):
    """A file's bytes under its name."""

    def __init__(self, sample: _native.Sample | bytes, path: Any) -> None:
        super().__init__(sample)
        self.name = path


def _opener(dataset: Any) -> Callable[[io.BytesIO], Any]:
    given = getattr(dataset, "loader", None)
    if given is None or opens_as_torchvision(given):
        return _rgb
    opener: Callable[[io.BytesIO], Any] = given
    return opener


def _rgb(file: io.BytesIO) -> Any:
    """As torchvision's ``pil_loader`` opens a file."""
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]

    with Image.open(file) as image:
        return image.convert("RGB")


def _refuse_other_items(dataset: Any, module: str, name: str) -> None:
    """What a class returns by methods of its own is not what its samples and transforms say."""
    known = getattr(sys.modules.get(module), name, None)
    for method in ("__getitem__", "__getitems__"):
        own = getattr(type(dataset), method, None)
        inherited = (None, getattr(known, method, None), getattr(abstract_dataset(), method, None))
        if own not in inherited:
            raise ConfigError(
                f"dataset={type(dataset).__name__}: its {method} is its own, and would not be called; do in `transform`, "
                "`target_transform`, `loader` or `collate_fn` what it does, and leave it away"
            )


class Making:
    """A batch whose samples workers make, or what is wrong with it."""

    __slots__ = ("_bell", "_finished", "_made", "is_unwanted", "wrong")

    def __init__(self, samples: int, bell: Bell, wrong: Exception | None = None) -> None:
        self._made: list[Any] = [None] * samples
        #: One item for each that is made: appending is one call, whatever the number of threads.
        self._finished: list[None] = []
        self._bell = bell
        self.wrong = wrong
        #: Nobody waits for it any more.
        self.is_unwanted = False

    def finish(self, place: int, made: "tuple[Any, Any] | _Failed") -> None:
        self._made[place] = made
        self._finished.append(None)
        if self.is_made():
            self._bell.ring()

    def __len__(self) -> int:
        return len(self._made)

    def is_made(self) -> bool:
        return len(self._finished) == len(self._made)

    def samples(self) -> list[tuple[Any, Any]]:
        """Once they are made; raises what is wrong with the first that could not be."""
        for made in self._made:
            if isinstance(made, _Failed):
                raise made.wrong
        return list(self._made)


class _Failed:
    def __init__(self, wrong: BaseException) -> None:
        self.wrong = wrong


class Workers:
    """Threads that make samples, kept from epoch to epoch. They end with the object, or with the program: what waits then
    is not made any more."""

    def __init__(self, count: int, on_start: Callable[[int], Any] | None) -> None:
        #: A fork takes no threads along.
        self.pid = os.getpid()
        self._count = count
        tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._tasks = tasks
        # They know the queue only, so that the object can go while they wait.
        targets = [functools.partial(_work, tasks, number, on_start) for number in range(count)]
        self._threads = Threads("foresee-transform", targets)
        self._threads.start()
        _open.add(self)

    @property
    def failed(self) -> Exception | None:
        """Why there are fewer than asked for."""
        return self._threads.failed

    def submit(self, maker: Maker, batches: list[_native.Batch], bell: Bell) -> Making:
        making = Making(sum(len(batch) for batch in batches), bell)
        place = 0
        for batch in batches:
            for index, sample in zip(batch.indices, batch.data, strict=True):
                self._tasks.put((making, place, maker, batch.epoch, index, sample))
                place += 1
        return making

    def close(self) -> None:
        self._stop()
        if self.pid == os.getpid():
            self._threads.join(_JOIN_MAX_S)

    def _stop(self) -> None:
        if self.pid != os.getpid():
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _ in range(self._count):
            self._tasks.put(None)

    def __del__(self) -> None:
        if hasattr(self, "_tasks"):
            self._stop()


def _work(tasks: "queue.SimpleQueue[_Task | None]", number: int, on_start: Callable[[int], Any] | None) -> None:
    failed: BaseException | None = None
    try:
        if on_start is not None:
            on_start(number)
    except BaseException as wrong:  # noqa: BLE001  whoever waits for a sample is told
        failed = wrong
    while (task := tasks.get()) is not None:
        _do(task, failed)
        # What it holds is free while the next one is waited for.
        del task


def _do(task: _Task, failed: BaseException | None) -> None:
    making, place, maker, epoch, index, sample = task
    if making.is_unwanted:
        return
    try:
        if failed is not None:
            raise failed
        making.finish(place, maker.make(epoch, index, sample))
    except BaseException as wrong:  # noqa: BLE001  whoever waits for the sample is told, also of an exit
        making.finish(place, _Failed(wrong))


class Feeder:
    """Brings the batches of one epoch to the workers, as many ahead as there is room for."""

    def __init__(
        self, job: _native.Job, maker: Maker, workers: Workers, epoch: int, sizes: Iterable[int], ahead: int
    ) -> None:
        self._job, self._maker, self._workers, self._epoch, self._sizes = job, maker, workers, epoch, sizes
        self._ahead = max(1, ahead)
        self._queue: deque[Making] = deque()
        self._is_stopped = self._is_begun = self._is_done = False
        #: A batch is in the queue, or made; there is room in the queue.
        self._news, self._room = Bell(), Bell()
        self._pid = os.getpid()
        self._threads = Threads("foresee-feeder", [self._run])
        _open.add(self)

    def first(self, still_waits: Callable[[], None]) -> Making:
        """The next batch, which stays until it is dropped. Calls ``still_waits`` now and then, which may raise."""
        if self._pid != os.getpid():
            raise ForeseeError("this iteration belongs to the process that forked: begin another one in this process")
        if not self._is_begun:
            self._threads.start()
            self._is_begun = True
        while not self._queue:
            if self._is_done and not self._queue:
                raise ForeseeError("this epoch ended with an error: begin another one")
            self._wait(still_waits)
        return self._queue[0]

    def drop(self, making: Making) -> None:
        """A batch leaves the queue, if it did not before."""
        if self._queue and self._queue[0] is making:
            self._queue.popleft()
        self._room.ring()

    def finish(self, making: Making, still_waits: Callable[[], None]) -> None:
        """Waits until the samples of a batch are made."""
        while not making.is_made():
            self._wait(still_waits)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._is_stopped = True
        self._room.ring()
        self._empty()
        self._threads.join(_JOIN_MAX_S)
        self._empty()

    def _wait(self, still_waits: Callable[[], None]) -> None:
        self._news.wait()
        still_waits()
        if (wrong := self._threads.failed or self._workers.failed) is not None:
            raise wrong

    def _empty(self) -> None:
        for making in tuple(self._queue):
            making.is_unwanted = True
        self._queue.clear()

    def _run(self) -> None:
        try:
            for count in self._sizes:
                if not self._feed(count):
                    return
        except Exception as wrong:  # noqa: BLE001  whatever ends the feeder, the trainer is told
            self._put(Making(0, self._news, wrong))
        finally:
            self._is_done = True
            self._news.ring()

    def _feed(self, count: int) -> bool:
        """Hands as many of the job's batches to the workers, as one; says no when nobody wants them any more."""
        batches: list[Any] = []
        while not self._job.gather(batches, count, self._epoch):
            if self._is_stopped:
                return False
        if isinstance(batches[-1], SampleError):
            making = Making(0, self._news, batches[-1])
        else:
            making = self._workers.submit(self._maker, batches, self._news)
        del batches
        return self._put(making)

    def _put(self, making: Making) -> bool:
        while len(self._queue) >= self._ahead and not self._is_stopped:
            self._room.wait()
        if self._is_stopped:
            making.is_unwanted = True
            return False
        self._queue.append(making)
        self._news.ring()
        return True


@atexit.register
def _close_all() -> None:
    _native.end_program()
    for one in sorted(_open, key=lambda one: isinstance(one, Workers)):
        # The program ends: whatever is wrong with one, the others are closed too.
        with contextlib.suppress(Exception):
            one.close()
