"""The job: its arguments, checked, and what people call on it. All work is done outside of Python."""

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypedDict

from . import _check, _launch, _native, _peers
from ._dataset import Dataset
from ._errors import ArgumentTypeError, ConfigError

_log = logging.getLogger("foresee")

_SHUFFLES = ("torch", "feistel", "sequential")
_NUMBER_MAX = 2**32 - 1
#: What the configuration allows too.
_THREADS_MAX = 1024
#: Of one process: no host has more GPUs by far.
_CONSUMERS_MAX = 64
#: A program that ends serves other ranks no longer than this, whatever is configured.
_LINGER_AT_EXIT_S = 10.0

#: Jobs that are closed when the program ends.
_open: "weakref.WeakSet[Job]" = weakref.WeakSet()
_said_alone = False


class _Place(TypedDict):
    """Which rank a job is of, and which of its host."""

    rank: int
    world_size: int
    on_host: tuple[int, int] | None


class _Arguments(_Place):
    """What a job is made from besides its dataset: checked, and found where nobody gave it."""

    batch_size: int
    epochs: int
    seed: int
    shuffle: Any
    drop_last: bool
    tail: str
    policy: str
    assignment: str
    on_error: str
    threads: int | None
    config: Any


class Job(_native.Batches):
    """A training job's reads: every batch of every epoch for this rank, brought in before it is asked for.

    Iterate over it for all batches from where it stands, over :meth:`epoch` for those of one epoch, or take samples one
    by one with :meth:`get`. Nothing is read and no thread is started before the first of these.

    :param dataset: a :class:`Files` or :class:`ImageFolder`.
    :param batch_size: samples of this rank in a step, as in torch.
    :param epochs: passes over the dataset.
    :param seed: of the shuffle; None makes one, which all ranks of a launch share and :attr:`seed` tells.
    :param shuffle: ``"torch"`` (or True): the order of torch's ``DistributedSampler``; ``"feistel"``: a permutation that
        needs no memory; ``"sequential"`` (or False); or lists of samples, one for each epoch, or one for all.
    :param drop_last: whether an incomplete last step is dropped.
    :param tail: what happens to samples that the ranks do not divide: ``"pad"`` (the first ones are repeated), ``"drop"``
        or ``"exact"`` (some ranks get one less).
    :param policy: what is kept where, and read when; ``foresee.POLICIES`` lists them.
    :param assignment: ``"order"``: samples are dealt to ranks as the order says; ``"local"``: to who holds them; ``"own"``:
        the lists of samples are this rank's alone, others have theirs.
    :param on_error: ``"raise"`` a :class:`SampleError` for a sample that cannot be read, or ``"skip"`` it: the next one
        that can be read takes its place.
    :param threads: loader threads, which also decode images; None: as configured.
    :param config: a path of a ``foresee.toml``, a dict of the same shape, or None: ``$FORESEE_CONFIG``, else
        ``foresee.toml`` in the current folder, else the defaults. Environment variables override all of these.
    :param rank: this rank; None finds it when the first batch is asked for (torch.distributed, torchrun, MPI, SLURM).
    :param world_size: the number of ranks.
    :param consumers: how many ranks this process is, one for each GPU that it feeds; :attr:`consumers` has a job for each.
        ``rank`` and ``world_size`` are then of processes: consumer k of process p is rank ``p * consumers + k``.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        epochs: int,
        seed: int | None = 0,
        shuffle: str | bool | Sequence[int] | Sequence[Sequence[int]] = "torch",
        drop_last: bool = False,
        tail: str = "pad",
        policy: str = "foresee",
        assignment: str = "order",
        on_error: str = "raise",
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        consumers: "int | _launch.Consumer" = 1,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise ArgumentTypeError(f"dataset={_check.shown(dataset)}: give a foresee.ImageFolder or foresee.Files")
        epochs = _check.whole("epochs", epochs, 1, _NUMBER_MAX)
        if assignment == "own" and isinstance(shuffle, str | bool):
            raise ConfigError(f"assignment='own': shuffle={shuffle!r} is the same for all ranks; give lists of samples")
        if not isinstance(consumers, _launch.Consumer):
            consumers = _launch.Consumer(0, _check.whole("consumers", consumers, 1, _CONSUMERS_MAX))
        self._consumer = consumers
        found = _launch.find_rank(rank, world_size)
        if seed is None and consumers.of > 1:
            # The same for all of them.
            seed = _launch.make_seed(found[1])
        #: What was given, and whether it was looked up for the last time: with the first batch.
        self._given = {"rank": rank, "world_size": world_size, "seed": seed}
        self._settled, self._settling = False, threading.Lock()
        #: Until there is a state to go on from, how many samples a step has is nobody's but the world's.
        self._untouched = True
        self._arguments: _Arguments = {
            "batch_size": _check.whole("batch_size", batch_size, 1, _NUMBER_MAX),
            "epochs": epochs,
            "seed": _launch.make_seed(found[1]) if seed is None else _check.whole("seed", seed, 0, 2**64 - 1),
            "shuffle": _shuffle(shuffle, epochs),
            "drop_last": _check.flag("drop_last", drop_last),
            "tail": _check.choice("tail", tail, ("pad", "drop", "exact")),
            "policy": _check.choice("policy", policy, _native.POLICIES),
            "assignment": _check.choice("assignment", assignment, ("order", "local", "own")),
            "on_error": _check.choice("on_error", on_error, ("raise", "skip")),
            "threads": None if threads is None else _check.whole("threads", threads, 1, _THREADS_MAX),
            "config": _check.config(config),
            **self._place(*found),
        }
        self._dataset = dataset
        self._reads = dataset._as_it_is()
        self._native = self._made(self._arguments)
        _open.add(self)
        self._together: _Together | None = None
        if consumers.of > 1 and consumers.number == 0:
            numbers = range(1, consumers.of)
            _Together([self, *(self._sibling(consumers._replace(number=number)) for number in numbers)])

    def _place(self, process: int, processes: int) -> _Place:
        """Which rank this is."""
        rank, world_size = self._consumer.among(process, processes)
        on_host = self._consumer.among_told(_launch.find_place_on_host(), processes)
        return {"rank": rank, "world_size": world_size, "on_host": on_host}

    def _sibling(self, consumer: _launch.Consumer) -> "Job":
        """The job of another consumer of this process."""
        return type(self)(self._reads, **{**self._as_given(), **self._given, "consumers": consumer})

    def _made(self, arguments: _Arguments) -> _native.Job:
        return _native.Job(
            self._reads._inner, {**arguments, "transform": self._reads._told, "consumer": self._consumer.number}
        )

    @property
    def _inner(self) -> _native.Job:
        """What does all the work; until a batch is asked for, as the rank that this process is by now."""
        self._look(last=False)
        return self._native

    def _begun(self) -> _native.Job:
        """The same, for whoever wants batches: from now on the rank stays what it is."""
        self._look(last=True)
        return self._native

    def _settle(self) -> None:
        """The first batch or sample is asked for."""
        self._look(last=True)

    def _look(self, last: bool) -> None:
        if self._settled:
            return
        with self._settling:
            if not self._settled and self._given["rank"] is None:
                self._follow()
        if last and self._together is not None:
            self._together.begin()
        elif last:
            # Not with the lock: other ranks are waited for.
            self._meet(self._find_peers())

    def _meet(self, mesh: "_native.Mesh | None") -> None:
        with self._settling:
            if not self._settled:
                if mesh is not None:
                    self._native.meet(mesh)
                self._settled = True

    def _follow(self) -> None:
        """Another world may have been started since the job was made: torch.distributed, by those who train with it."""
        process, processes = _launch.find_rank(None, None)
        place = self._place(process, processes)
        if (place["rank"], place["world_size"]) == (self._arguments["rank"], self._arguments["world_size"]):
            return
        arguments: _Arguments = {**self._arguments, **place}
        if self._given["seed"] is None and self._untouched:
            arguments["seed"] = _launch.make_seed(processes)
        native = self._made(arguments)
        if not self._untouched:
            native.load(self._native.save())
        self._native, self._arguments = native, arguments

    def _find_peers(self) -> "_native.Mesh | None":
        """The way to ranks that this one can serve, and that serve it; they wait for each other with the first batch."""
        rank, world_size = self._arguments["rank"], self._arguments["world_size"]
        if world_size == 1:
            return None
        # Whose samples are its own alone has nothing to share.
        shares = self._arguments["assignment"] != "own"
        consumers = self._consumer.of
        mesh = _peers.mesh(self._native.peers(), rank, world_size, consumers) if shares else None
        if mesh is None:
            _say_alone(rank, world_size)
        return mesh

    @property
    def consumers(self) -> "tuple[Job, ...]":
        """A job for each of the ranks that this process is, of which the first is this one."""
        return (self,) if self._together is None else tuple(self._together.jobs)

    @property
    def dataset(self) -> Dataset:
        """What it reads."""
        return self._dataset

    @property
    def rank(self) -> int:
        """Which rank this is."""
        self._look(last=False)
        return self._arguments["rank"]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        self._look(last=False)
        return self._arguments["world_size"]

    @property
    def seed(self) -> int:
        """The seed of the shuffle, also where it was made."""
        self._look(last=False)
        return self._arguments["seed"]

    @property
    def batch_size(self) -> int:
        """Samples of this rank in a step."""
        return self._arguments["batch_size"]

    @property
    def epochs(self) -> int:
        """Passes over the dataset."""
        return self._arguments["epochs"]

    @property
    def steps_per_epoch(self) -> int:
        """Batches of this rank in an epoch, the same for all ranks."""
        return self._inner.steps()

    def __len__(self) -> int:
        """Batches of this rank in the whole job, wherever it stands: ``steps_per_epoch * epochs``."""
        return self.steps_per_epoch * self.epochs

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and step of the next batch; the number of epochs and 0 at the end."""
        return self._inner.place()

    @property
    def buffer(self) -> _native.Buffer:
        """The staging memory, read-only, for whoever wants to register or look at it as a whole. Starts the job."""
        return self._begun().buffer()

    def epoch(self, epoch: int) -> "Epoch":
        """The batches of one epoch, from where the job stands in it, or from its beginning if it is still ahead.

        Going to an epoch that is ahead reads nothing of what is between. One that other threads have finished is empty.
        """
        epoch = _check.whole("epoch", epoch, 0, self.epochs - 1)
        at, _ = self.position
        if epoch < at and not self._native.is_shared:
            raise ConfigError(f"epoch={epoch}: the job stands in epoch {at}, and never goes back; make another job")
        return Epoch(self, epoch)

    def stats(self) -> dict[str, Any]:
        """What happened so far, in numbers; docs/python.md explains each."""
        return self._inner.stats(True)

    def summary(self) -> str:
        """What happened so far, to be printed."""
        return self._inner.summary()

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, as numbers and texts. What was delivered counts, not what was read ahead."""
        return self._inner.save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with the very next batch after ``state_dict()``, also if it came from another number of ranks."""
        if not isinstance(state, Mapping):
            raise ArgumentTypeError(f"state={_check.shown(state)}: give what state_dict() returned")
        self._inner.load(dict(state))
        self._untouched = False

    def close(self) -> None:
        """Ends the job and its reads. What was handed over stays valid. Closing twice is fine.

        A rank that has all of its batches serves the others first until they have theirs (``peers.linger`` at most). The
        first of several consumers closes all of them."""
        if self._together is None or self._consumer.number > 0:
            self._close()
            return
        # Those that are not through first: they keep nobody waiting.
        for job in sorted(self.consumers, key=Job._is_through):
            job._close()

    def _is_through(self) -> bool:
        return self._native.place() == (self.epochs, 0)

    def _close(self) -> None:
        self._settled = True
        try:
            self._native.linger(None)
        finally:
            self._native.close(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Job({self._dataset!r}, batch_size={self.batch_size}, epochs={self.epochs}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._as_given()
        # Where it is unpickled it is the one rank that it is here.
        is_fixed = self._settled or self._given["rank"] is not None or self._consumer.of > 1
        if not is_fixed:
            # It may be unpickled where another world is.
            arguments |= self._given
            arguments["seed"] = self.seed
        begun = is_fixed or not self._untouched
        return _rebuilt, (type(self), self._reads, arguments, self.state_dict() if begun else None)

    def _as_given(self) -> dict[str, Any]:
        """What makes such a job again."""
        arguments: dict[str, Any] = {**self._arguments}
        # It is looked up where the job is made.
        del arguments["on_host"]
        if isinstance(shuffle := arguments["shuffle"], list) and len(shuffle) == 1:
            # One for all epochs is given as it is.
            arguments["shuffle"] = shuffle[0]
        return arguments


class _Together:
    """The jobs of a process's consumers. They begin together, since ranks make their plan together: each would wait for those
    that its own thread has not asked for a batch yet."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        for job in jobs:
            job._together = self
        self._beginning = threading.Lock()
        self._has_begun = False

    def begin(self) -> None:
        with self._beginning:
            if self._has_begun:
                return
            left = [job for job in self.jobs if not job._settled]
            # One after the other: the first rank is found by the others.
            meshes = [job._find_peers() for job in left]
            with ThreadPoolExecutor(len(left), "foresee-begin") as threads:
                begun = [threads.submit(_begin, job, mesh) for job, mesh in zip(left, meshes, strict=True)]
            self._has_begun = True
        for one in begun:
            one.result()


def _begin(job: Job, mesh: "_native.Mesh | None") -> None:
    job._meet(mesh)
    job._native.buffer()


class Epoch:
    """The batches of one epoch of a job."""

    def __init__(self, job: Job, epoch: int) -> None:
        self._job = job
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._job.steps_per_epoch

    def __iter__(self) -> Iterator[_native.Batch]:
        return _native.EpochBatches(self._job._begun(), self._epoch)


def _shuffle(shuffle: Any, epochs: int) -> Any:
    if isinstance(shuffle, bool):
        return "torch" if shuffle else "sequential"
    if isinstance(shuffle, str):
        return _check.choice("shuffle", shuffle, _SHUFFLES)
    try:
        lists = list(shuffle)
    except TypeError:
        said = f"shuffle={_check.shown(shuffle)}: give one of {', '.join(map(repr, _SHUFFLES))}, or lists of samples"
        raise ArgumentTypeError(said) from None
    if not lists:
        raise ConfigError("shuffle=[]: give a list of samples for each epoch, or one for all epochs")
    # Rows of an array look like a number to those who only ask for __index__.
    if hasattr(lists[0], "__index__") and getattr(lists[0], "ndim", 0) == 0:
        return [lists]
    for place, samples in enumerate(lists):
        if isinstance(samples, str) or not hasattr(samples, "__iter__"):
            raise ArgumentTypeError(f"shuffle[{place}]={_check.shown(samples)}: give a list of samples")
    if len(lists) != epochs:
        raise ConfigError(f"{len(lists)} explicit orders were given for {epochs} epochs: give one for each")
    return lists


def _say_alone(rank: int, world_size: int) -> None:
    global _said_alone
    if not _said_alone:
        _said_alone = True
        _log.warning(
            "rank %d of %d runs alone: it reads what it needs by itself, nothing from other ranks", rank, world_size
        )


def _rebuilt(kind: type[Job], dataset: Dataset, arguments: dict[str, Any], state: dict[str, Any] | None) -> Job:
    job = kind(dataset, **arguments)
    if state is not None:
        job.load_state_dict(state)
    return job


@atexit.register
def _close_all() -> None:
    _native.end_program()
    deadline = time.monotonic() + _LINGER_AT_EXIT_S
    for job in list(_open):
        # The program ends: whatever is wrong with a job, the others are closed too. Ctrl-C ends what is waited for.
        try:
            with contextlib.suppress(Exception):
                job._native.linger(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            deadline = 0.0
        with contextlib.suppress(Exception):
            job._native.close(True)
