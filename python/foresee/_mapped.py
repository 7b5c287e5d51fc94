"""Datasets whose samples are made in Python: files that foresee reads, opened and transformed by the dataset's own functions.

With workers, threads of a pool do that ahead of the trainer: a feeder takes batches from the job, hands their samples to
the pool, and puts what they will become into a bounded queue, in order. Nothing here knows torch.
"""

import atexit
import contextlib
import io
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from . import _check, _native
from ._errors import ArgumentTypeError, ConfigError, ForeseeError, SampleError

#: How long a thread sleeps before it looks whether it is still wanted: short enough for closing to feel prompt.
_PATIENCE_S = 0.05
JOB_ENDED = "the job ended before its epoch: somebody else takes batches from loader.job"
#: How long closing waits for a transform that is under way.
_JOIN_MAX_S = 5.0


_Task = tuple["Future[tuple[Any, Any]]", "Maker", int, int, _native.Sample]

#: What has threads, to be closed when the program ends: those that run Python must not outlive it.
_open: "weakref.WeakSet[Workers | Feeder]" = weakref.WeakSet()


class Mapped:
    """A dataset with ``samples`` of (path, target) and functions in Python, such as torchvision's ``ImageFolder``.

    ``loader`` opens a file, ``transform`` and ``target_transform`` follow, each where there is one.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | None = None) -> None:
        _refuse_other_items(dataset)
        samples = dataset.samples
        self._dataset = dataset
        self._samples = samples if indices is None else [samples[index] for index in indices]
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

    def paths(self) -> list[str]:
        return [path for path, _ in self._samples]

    def targets(self) -> list[Any]:
        return [target for _, target in self._samples]

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
            wrong = SampleError(_native.one_line(f"sample {index} ({path}): {_said(cause)}"))
            wrong.sample, wrong.path = index, str(path)
            raise wrong from cause


def unwrapped(dataset: Any) -> tuple[Any, list[int] | None]:
    """The whole dataset, and which of its samples a ``Subset`` of it has."""
    indices: list[int] | None = None
    while not hasattr(dataset, "samples") and hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        part = [int(index) for index in dataset.indices]
        indices = part if indices is None else [part[index] for index in indices]
        dataset = dataset.dataset
    return dataset, indices


class Maker:
    """Makes the samples of a job's batches.

    ``keyed`` is entered with epoch and sample while one is made. Where the job skips what it cannot read, the next sample of
    which something can be made takes the place of one of which nothing can.
    """

    def __init__(
        self,
        mapped: Mapped,
        job: _native.Job,
        keyed: Callable[[int, int], contextlib.AbstractContextManager[None]],
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
        with self._keyed(epoch, index):
            return self._mapped.make(index, data)

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
    folder = sys.modules.get("torchvision.datasets.folder")
    if given is None or (folder is not None and given in (folder.default_loader, folder.pil_loader)):
        return _rgb
    opener: Callable[[io.BytesIO], Any] = given
    return opener


def _rgb(file: io.BytesIO) -> Any:
    """As torchvision's ``pil_loader`` opens a file."""
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]

    with Image.open(file) as image:
        return image.convert("RGB")


def _refuse_other_items(dataset: Any) -> None:
    """What a class of its own returns is not what its samples and transforms say."""
    folder = sys.modules.get("torchvision.datasets.folder")
    known = getattr(folder, "DatasetFolder", None)
    if known is not None and isinstance(dataset, known) and type(dataset).__getitem__ is not known.__getitem__:
        raise ConfigError(
            f"dataset={type(dataset).__name__}: its __getitem__ is its own, and only the one of torchvision is known; "
            "do in `transform`, `target_transform` or `collate_fn` what it does"
        )


class Workers:
    """Threads that make samples, kept from epoch to epoch. They end with the object, or with the program: what waits then
    is not made any more."""

    def __init__(self, count: int, on_start: Callable[[int], Any] | None) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # They know the queue only, so that the object can go while they wait.
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks, number, on_start), name="foresee-transform", daemon=True)
            for number in range(count)
        ]
        #: A fork takes no threads along.
        self.pid = os.getpid()
        for thread in self._threads:
            thread.start()
        _open.add(self)

    def submit(self, maker: Maker, batch: _native.Batch) -> list["Future[tuple[Any, Any]]"]:
        futures = []
        for index, sample in zip(batch.indices, batch.data, strict=True):
            future: Future[tuple[Any, Any]] = Future()
            self._tasks.put((future, maker, batch.epoch, index, sample))
            futures.append(future)
        return futures

    def close(self) -> None:
        self._stop()
        deadline = time.monotonic() + _JOIN_MAX_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _stop(self) -> None:
        if self.pid != os.getpid():
            return
        while not self._tasks.empty():
            with contextlib.suppress(queue.Empty):
                task = self._tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)

    def __del__(self) -> None:
        self._stop()


def _work(tasks: "queue.SimpleQueue[_Task | None]", number: int, on_start: Callable[[int], Any] | None) -> None:
    failed: BaseException | None = None
    try:
        if on_start is not None:
            on_start(number)
    except BaseException as wrong:  # noqa: BLE001  whoever waits for a sample is told
        failed = wrong
    while (task := tasks.get()) is not None:
        future, maker, epoch, index, sample = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            if failed is not None:
                raise failed
            future.set_result(maker.make(epoch, index, sample))
        except BaseException as wrong:  # noqa: BLE001  whoever waits for the sample is told, also of an exit
            future.set_exception(wrong)
        del task, future, sample


class Feeder:
    """Brings the batches of one epoch to the workers, as many ahead as there is room for."""

    def __init__(self, job: _native.Job, maker: Maker, workers: Workers, groups: Iterable[int], ahead: int) -> None:
        self._job, self._maker, self._workers, self._groups = job, maker, workers, groups
        self._queue: queue.Queue[list[Future[tuple[Any, Any]]] | Exception | None] = queue.Queue(max(1, ahead))
        self._stop = threading.Event()
        #: Batches that were taken, also those of which a sample could not be read or made.
        self.taken = 0
        self._waiting: list[Future[tuple[Any, Any]]] | None = None
        self._thread = threading.Thread(target=self._run, name="foresee-feeder", daemon=True)
        self._pid = os.getpid()
        self._thread.start()
        _open.add(self)

    def take(self, still_waits: Callable[[], None]) -> list[tuple[Any, Any]] | None:
        """The samples of the next batch; None at the end. Calls ``still_waits`` now and then, which may raise: nothing is
        lost then."""
        if self._pid != os.getpid():
            raise ForeseeError("this iteration belongs to the process that forked: begin another one in this process")
        while self._waiting is None:
            try:
                next_one = self._queue.get(timeout=_PATIENCE_S)
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    raise ForeseeError("this epoch ended with an error: begin another one") from None
                still_waits()
                continue
            if isinstance(next_one, Exception):
                self.taken += isinstance(next_one, SampleError)
                raise next_one
            if next_one is None:
                return None
            self._waiting = next_one
        for future in self._waiting:
            while not future.done():
                wait([future], _PATIENCE_S)
                still_waits()
        made, self._waiting = self._waiting, None
        self.taken += 1
        return [future.result() for future in made]

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._stop.set()
        self._empty()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_MAX_S)
        self._empty()

    def _empty(self) -> None:
        while True:
            try:
                left = self._queue.get_nowait()
            except queue.Empty:
                return
            for future in left if isinstance(left, list) else ():
                future.cancel()

    def _run(self) -> None:
        try:
            for count in self._groups:
                batches = self._gathered(count)
                if batches is None:
                    return
                if isinstance(batches, SampleError):
                    self._put(batches)
                else:
                    self._put([future for batch in batches for future in self._workers.submit(self._maker, batch)])
            self._put(None)
        except Exception as wrong:  # noqa: BLE001  whatever ends the feeder, the trainer is told
            self._put(wrong)

    def _gathered(self, count: int) -> list[_native.Batch] | SampleError | None:
        """As many of the job's batches, or what is wrong with them: they are given up then. None when there is no more."""
        batches: list[_native.Batch] = []
        while len(batches) < count and not self._stop.is_set():
            try:
                there, batch = self._job.try_batch()
            except SampleError as wrong:
                self._job.pass_over(count - len(batches))
                return wrong
            if there and batch is None:
                raise ForeseeError(JOB_ENDED)
            if batch is not None:
                batches.append(batch)
        return None if self._stop.is_set() else batches

    def _put(self, made: "list[Future[tuple[Any, Any]]] | Exception | None") -> None:
        while not self._stop.is_set():
            try:
                return self._queue.put(made, timeout=_PATIENCE_S)
            except queue.Full:
                pass


@atexit.register
def _close_all() -> None:
    for one in sorted(_open, key=lambda one: isinstance(one, Workers)):
        # The program ends: whatever is wrong with one, the others are closed too.
        with contextlib.suppress(Exception):
            one.close()
