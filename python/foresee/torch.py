"""A loader for PyTorch: torch's keywords, foresee's reads.

    loader = foresee.torch.DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8, seed=0)
    for epoch in range(90):
        for images, labels in loader:
            ...

The order is that of ``torch.utils.data.DataLoader`` with a ``DistributedSampler`` of the same seed whose ``set_epoch`` is
called for every epoch. There are no worker processes: threads read and decode. Tensors share the loader's memory, which
is free again when they are gone.
"""

import functools
import operator
import os
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from . import _check, _launch, _native, _order, transforms
from ._dataset import Dataset, Files
from ._distributed import follower, is_distributed
from ._draws import keyed, sample_seed
from ._errors import ArgumentTypeError, ConfigError, ForeseeError
from ._iteration import Epoch, Iteration, has_accelerator
from ._job import Job
from ._mapped import Feeder, Maker, Mapped, Workers, unwrapped
from ._torch import data as _data
from ._torch import torch as _torch

__all__ = ["DataLoader", "sample_seed"]

#: More epochs than anybody trains.
_EPOCHS_MAX = 2**31
#: Policies that look at all epochs before the first.
_WANT_EPOCHS = frozenset({"nopfs", "lobster"})
#: Batches that are made ahead for each worker, as in torch.
_PREFETCH = 2
#: What nobody may set once the loader is made, as in torch.
_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


class DataLoader:
    """Batches of ``(tensor, labels)``, epoch by epoch: each ``iter()`` is the next epoch.

    Parameters have torch's names, order and defaults. What is different:

    :param dataset: a :class:`foresee.ImageFolder` or :class:`foresee.Files`, torchvision's ``ImageFolder`` or
        ``DatasetFolder``, any dataset with ``samples`` of (path, label) and no ``__getitem__`` of its own, or a ``Subset`` of
        one. Transforms in Python run on threads.
    :param shuffle: draws the order of ``DistributedSampler(shuffle=True, seed=seed)``; with a ``generator`` that of
        ``RandomSampler(generator=generator)``.
    :param num_workers: threads that read and decode, or that run Python's transforms; 0: as configured, and Python's
        transforms run where the loader is called.
    :param worker_init_fn: is called in each thread that runs Python's transforms.
    :param persistent_workers: whether what torch draws to seed its workers is drawn once, not in every epoch.
    :param multiprocessing_context: nothing uses it, nor ``pin_memory_device`` and ``in_order``.
    :param seed: of order and augmentation; None makes one, the same on all ranks.
    :param epochs: how many there will be, if that is known.
    :param config: of memory and disks, as for :class:`foresee.Job`; so are ``policy``, ``tail`` and ``on_error``.
    :param rank: this rank of ``world_size``; None finds both when the first batch of an epoch is asked for.
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
        given = {name: value for name, value in locals().items() if name != "self"}
        _order.refuse_settings(given)
        if generator is not None and not isinstance(generator, _torch.Generator):
            raise ArgumentTypeError(f"generator={_check.shown(generator)}: give a torch.Generator")
        _order.refuse_contradictions(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset, self.num_workers = dataset, num_workers
        self.batch_size = None if batch_sampler is not None else batch_size
        self.drop_last = drop_last
        self.timeout, self.pin_memory, self.generator = timeout, pin_memory, generator
        self.collate_fn, self.worker_init_fn = collate_fn, worker_init_fn
        self.prefetch_factor = _PREFETCH if prefetch_factor is None and num_workers > 0 else prefetch_factor
        self.persistent_workers, self.pin_memory_device, self.in_order = persistent_workers, pin_memory_device, in_order
        self.multiprocessing_context = multiprocessing_context
        self._mapped, self._source = _source(dataset, config)
        if worker_init_fn is not None and self._mapped is None:
            warnings.warn("worker_init_fn: not called, no worker of this dataset runs Python", stacklevel=2)
        if shuffle and generator is not None:
            sampler = _data.RandomSampler(range(len(self._source)), generator=generator)
        self._drawn = sampler if batch_sampler is None else batch_sampler
        self._in_batches = batch_sampler is not None
        self._leader: Any = sampler if is_distributed(sampler, len(self._source)) else None
        self._options = self._job_options(given)
        self._draws = self._drawn is not None or self._options["shuffle"] == "torch"
        self._given = given
        self._job = self._made(1 if batch_sampler is not None or batch_size is None else batch_size)
        #: The last iteration; the last that began, and its process; the state that was loaded last.
        self._running: Callable[[], Epoch | None] = _nobody
        self._entered: Callable[[], Epoch | None] = _nobody
        self._entered_in: int | None = None
        self._loaded: dict[str, Any] | None = None
        self.sampler, self.batch_sampler = self._samplers(sampler, batch_sampler)
        self._workers: Workers | None = None
        #: Where the next iteration begins, where the trainer stood when the last one did, and which epochs began so far.
        self._begin = self._stood = (0, 0)
        self._begun: frozenset[int] = frozenset()
        #: Whether the trainer stands in an epoch that began, and whether the next one begins where a state left it.
        self._underway = self._resumes = False
        #: Whether an iteration was made of which nothing was asked for yet.
        self._opened = False
        #: Whether the seed of torch's workers was drawn; they keep it if they are persistent.
        self._seeded = False
        self._warned = self._closed = False
        #: Whether the job has been told an order of a sampler, and whether its steps are single samples.
        self._used = self._unequal = False
        #: What the last iteration handed over since, and samples that the trainer got before.
        self._handed = _native.Handed()
        self._delivered_before = 0
        #: The batches of the epoch at hand, where a sampler drew them, and those of a state that was loaded.
        self._epoch_batches: list[list[int]] | None = None
        self._loaded_batches: list[list[int]] | None = None
        self._ready = True

    __class_getitem__: Any = classmethod(types.GenericAlias)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and getattr(self, "_ready", False):
            raise ConfigError(f"{name}: cannot be set once the loader is made; make another one")
        super().__setattr__(name, value)

    def _job_options(self, given: dict[str, Any]) -> dict[str, Any]:
        """A job's arguments; says what becomes of the sampler."""
        options = {name: given[name] for name in ("seed", "tail", "rank", "world_size", "drop_last", "policy")}
        options |= {"on_error": given["on_error"], "config": given["config"]}
        options["shuffle"] = "torch" if given["shuffle"] else "sequential"
        if self._leader is not None:
            options |= _order.of_distributed(self._leader)
            self._drawn = None
        elif self._drawn is not None:
            # A sampler gives this rank's samples: nothing is left to be dealt. It is asked when an epoch begins.
            options |= {"shuffle": [0], "assignment": "own", "tail": "pad", "drop_last": False}
        epochs = given["epochs"]
        if epochs is None and given["policy"] in _WANT_EPOCHS:
            raise ConfigError(f"policy={given['policy']!r}: it counts the accesses of all epochs; give epochs, too")
        options["epochs"] = _check.whole("epochs", epochs, 1, _EPOCHS_MAX) if epochs is not None else _EPOCHS_MAX
        options["threads"] = self.num_workers if self.num_workers > 0 and self._mapped is None else None
        return options

    @property
    def job(self) -> Job:
        """The job that reads. Until an epoch begins in this process, of the rank that this process is by now."""
        if self._entered_in != os.getpid():
            self._follow()
        return self._job

    def _made(self, batch_size: int, **options: Any) -> Job:
        options = {**self._options, **options}
        rank, world_size = _launch.find_rank(options["rank"], options["world_size"])
        return Job(self._source, batch_size, **{**options, "rank": rank, "world_size": world_size})

    def _ranks(self) -> tuple[int, int]:
        """Rank and world: of the epoch under way, else those that the next one will have."""
        if self._is_under_way():
            return self._job.rank, self._job.world_size
        return _launch.find_rank(self._options["rank"], self._options["world_size"])

    def _is_other_rank(self) -> bool:
        return self._ranks() != (self._job.rank, self._job.world_size)

    def _follow(self) -> None:
        """A world may be started after the loader was made, as by Lightning, or in a process that was forked."""
        if not self._is_other_rank():
            return
        job = self._made(self._job.batch_size)
        if self._loaded is not None:
            job.load_state_dict(self._loaded)
        before, self._job = self._job, job
        before.close()

    def __len__(self) -> int:
        """Batches of an epoch; of the next one where it will be another rank's."""
        if self._drawn is None:
            if self._is_other_rank():
                return self._made(self._job.batch_size).steps_per_epoch
            return self._job.steps_per_epoch
        if self._in_batches:
            return len(self._drawn)  # type: ignore[arg-type]
        samples, size = len(self._drawn), self.batch_size or 1  # type: ignore[arg-type]
        return samples // size if self.drop_last else -(-samples // size)

    def __iter__(self) -> Iteration:
        if self._closed:
            raise ForeseeError("the loader is closed: make another one")
        self._stop_running()
        if self.pin_memory and not has_accelerator():
            warnings.warn("pin_memory=True: there is no accelerator, so nothing is pinned", stacklevel=2)
        ahead = self._ahead()
        undo = self._undo_draws()
        try:
            self._draw_worker_seed()
            iteration = Iteration(self)
            opens: dict[str, Any] = {"_running": weakref.ref(iteration.inner), "_seeded": True}
            if not self._resumes:
                # What was left of an epoch is given up, and of the next one there is no more than that seed.
                opens |= {**self._standing(ahead, _native.Handed(), False), "_opened": True}
            own = self.__dict__
            # At once and without a call, so that no signal handler can come between.
            own |= opens
        except BaseException:
            list(undo)
            raise
        return iteration

    def _ahead(self) -> tuple[int, int]:
        """Epoch and step that the next iteration begins with."""
        if self._leader is not None and self._leader.epoch != self._begin[0]:
            self._begin = (self._leader.epoch, 0)
        if self._begin[0] >= self._job.epochs:
            raise ConfigError(f"epoch {self._begin[0]}: the loader was made for epochs={self._job.epochs}")
        return self._begin

    def _draw_worker_seed(self) -> None:
        """Draws what torch's loader draws for its workers: without it whatever the trainer draws next would differ."""
        if not self._has_worker_seed():
            _torch.empty((), dtype=_torch.int64).random_(generator=self.generator)

    def _has_worker_seed(self) -> bool:
        if self.persistent_workers:
            return self._seeded
        # One that is gone before anything was asked of it: if a handler raised, nobody ever had it.
        is_unused = self._opened and self._running() is None
        return self.generator is not None and (self._resumes or is_unused)

    def _undo_draws(self) -> Iterable[None]:
        """To be listed if a signal handler raises before what was drawn is kept: the next try draws the same."""
        held = _order.generators(self.generator, self._drawn, _torch.default_generator)
        # Listing it is one call, and not of Python: no other handler can come between.
        return map(operator.call, [functools.partial(one.set_state, one.get_state()) for one in held])

    def _enter(self, iteration: Epoch) -> None:
        """The first batch of an epoch is asked for: sets the job to it. May be called again if a signal handler raised."""
        if self._entered() is iteration:
            return
        self._follow()
        epoch, step = self._ahead()
        if not self._resumes:
            self._warn_if_repeated(epoch)
        sizes = self._go_to(epoch, step)
        maker = self._maker()
        its = iteration.__dict__
        its |= {"_epoch": epoch, "_sizes": sizes, "_maker": maker, "_feeder": self._feeder(maker, epoch, sizes)}
        begins = {
            **self._standing((epoch, step), iteration.handed, True),
            "_begin": (epoch + 1, 0),
            "_begun": self._begun | {epoch},
            "_epoch_batches": self._loaded_batches,
            "_loaded_batches": None,
            "_resumes": False,
            "_opened": False,
            "_entered": weakref.ref(iteration),
            "_entered_in": os.getpid(),
        }
        own = self.__dict__
        # At once and without a call, so that no signal handler can come between: an epoch that nobody got did not begin.
        own |= begins

    @property
    def _place(self) -> tuple[int, int]:
        """Where the trainer stands."""
        epoch, step = self._stood
        return epoch, step + self._handed.steps

    @property
    def _delivered(self) -> int:
        """Samples that the trainer got."""
        return self._delivered_before + self._handed.samples

    def _standing(self, place: tuple[int, int], handed: _native.Handed, underway: bool) -> dict[str, Any]:
        """What to change for the trainer to stand here."""
        return {
            "_stood": place,
            "_handed": handed,
            "_delivered_before": self._delivered,
            "_underway": underway,
        }

    def _stand(self, place: tuple[int, int], underway: bool) -> None:
        own = self.__dict__
        standing = self._standing(place, _native.Handed(), underway)
        own |= standing

    def set_epoch(self, epoch: int) -> None:
        """Which epoch comes next. Epochs advance by themselves, so this is only needed to go elsewhere."""
        epoch = _check.whole("epoch", epoch, 0, self.job.epochs - 1)
        if epoch != self._begin[0]:
            self._begin, self._loaded_batches, self._resumes = (epoch, 0), None, False
            if not self._is_under_way():
                self._stand(self._begin, False)
        keeper = self._leader if self._leader is not None else _order.keeper_of_epochs(self._drawn)
        if keeper is not None:
            keeper.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands: what was delivered counts, also in the middle of an epoch."""
        (epoch, step), drawn = self._place, self._drawn
        state: dict[str, Any] = {**self.job.state_dict(), "index": 0} if drawn is None else {"shuffle": "sampler"}
        state |= {"epoch": epoch, "step": step, "begun": self._underway or self._opened, "loader_seed": self.job.seed}
        if drawn is not None:
            state |= {"version": 1, "drawn": self._epoch_batches is not None}
            # Where a signal handler raised, they may be drawn although the epoch did not begin.
            batches = self._epoch_batches if self._underway else self._loaded_batches
            if batches is not None:
                state["batches"] = batches
            if hasattr(drawn, "state_dict"):
                state["sampler"] = drawn.state_dict()
        if self.persistent_workers:
            state["seeded"] = self._seeded
        if held := _order.generators(self.generator, drawn):
            state["generators"] = [bytes(one.get_state().tolist()).hex() for one in held]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on with the very next batch after ``state_dict()``; it has none if that was the last of
        its epoch."""
        self._load(state, binds=True)

    def _load(self, state: Mapping[str, Any], binds: bool) -> None:
        """Goes on where a state says, with as many samples in a step as then if that ``binds``."""
        place = _order.place(state, self.job.epochs)
        if (state.get("shuffle") == "sampler") != (self._drawn is not None):
            raise ConfigError("state: one run has a sampler, the other has none; make the loader as it was")
        if (seed := state.get("loader_seed", self.job.seed)) != self.job.seed:
            raise ConfigError(f"state: its loader has seed={seed}, this one {self.job.seed}; make it with seed={seed}")
        batch = _check.whole("state['global_batch']", state.get("global_batch", world := self.job.world_size), 0, 2**32)
        if batch < world:
            raise ConfigError(f"state: its steps have {batch} samples, too few for {world} ranks; use at most {batch}")
        held = _order.generators(self.generator, self._drawn)
        saved = _order.generator_states(state, held)
        loaded = _order.batches(state)
        if loaded is not None and place[1] > len(loaded):
            raise ConfigError(f"state['step']={place[1]}: its epoch has {len(loaded)} batches")
        self._stop_running()
        if self._drawn is None and binds:
            self.job.load_state_dict(state)
            self._loaded, self._options["seed"] = dict(state), self._job.seed
        elif self._drawn is not None and "sampler" in state and hasattr(self._drawn, "load_state_dict"):
            self._drawn.load_state_dict(state["sampler"])
            # The epoch's order had been drawn as a whole: what is left of the sampler's iteration is nothing.
            for _ in self._drawn if state.get("drawn") else ():
                pass
        for one, numbers in zip(held, saved, strict=True):
            one.set_state(_torch.tensor(list(numbers), dtype=_torch.uint8))
        self._loaded_batches = self._epoch_batches = loaded
        self._begin = place
        self._resumes = bool(state.get("begun", place[1] > 0))
        self._opened = False
        self._stand(place, self._resumes)
        if self.generator is not None:
            # Otherwise it is the program's generator, of which nothing was saved.
            self._seeded = bool(state.get("seeded", False))
        if self._leader is not None:
            self._leader.set_epoch(place[0])

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
        self._job.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A seed that was made stays the same for a copy. One that begins with the first batch may do so in another world.
        binds = self._loaded is not None or self._underway or self._place != (0, 0)
        return _rebuilt, (type(self), {**self._given, "seed": self.job.seed}, self.state_dict(), binds)

    def __repr__(self) -> str:
        return f"DataLoader({self.dataset!r}, batch_size={self.batch_size}, seed={self.job.seed})"

    def _samplers(self, sampler: Any, batch_sampler: Any) -> tuple[Any, Any]:
        """What torch's loader has under these names."""
        if batch_sampler is not None:
            return _data.SequentialSampler(range(len(self._source))), batch_sampler
        if sampler is None:
            sampler = follower(self)
        if self.batch_size is None:
            return sampler, None
        return sampler, _data.BatchSampler(sampler, self.batch_size, self.drop_last)

    def _is_under_way(self) -> bool:
        running = self._running()
        begun = running is not None and running is self._entered() and self._entered_in == os.getpid()
        return begun and not running.is_over  # type: ignore[union-attr]

    def _stop_running(self) -> None:
        if (running := self._running()) is not None:
            running.close()

    def _warn_if_repeated(self, epoch: int) -> None:
        if epoch in self._begun and self._draws and self._drawn is None:
            said = f"epoch {epoch} begins again with the same order; leave set_epoch away, or give it another epoch"
            self._warn(said, 7)

    def _warn(self, said: str, stacklevel: int) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(said, stacklevel=stacklevel)

    def _go_to(self, epoch: int, step: int) -> Sequence[int]:
        """Sets the job to a step; returns how many of its batches each of the loader's is made of."""
        if self._drawn is not None:
            return self._go_to_drawn(epoch, step)
        at, inner = self.job.position, self.job._begun()
        if at != (epoch, step) and step < self.job.steps_per_epoch:
            if step == 0 and epoch > at[0]:
                inner.seek(epoch)
            else:
                self.job.load_state_dict({**self.job.state_dict(), "epoch": epoch, "step": step, "index": 0})
        # A list of ones, a byte each.
        return bytes([1]) * max(0, self.job.steps_per_epoch - step)

    def _ended(self, epoch: int) -> None:
        """The trainer has all of an epoch."""
        self._stand((epoch + 1, 0), False)

    def _go_to_drawn(self, epoch: int, step: int) -> Sequence[int]:
        batches, before = self._loaded_batches, self._epoch_batches
        if batches is None:
            batches = self._draw_once()
            keeper = _order.keeper_of_epochs(self._drawn)
            if batches == before and keeper is not None and getattr(keeper, "shuffle", True):
                self._warn("the sampler gives the same order again; call its set_epoch with each epoch", 8)
        size = self._native_size(batches)
        if size != self.job.batch_size:
            self._job.close()
            self._job = self._made(size, seed=self._job.seed)
        left = batches[step:]
        # Steps of the job are the loader's where those have one size, else single samples.
        grouped = [1] * len(left) if not self._unequal else [len(batch) for batch in left]
        begin = step if not self._unequal else sum(len(batch) for batch in batches[:step])
        if left:
            self._used = True
            self.job._begun().reorder(epoch, begin, [sample for batch in batches for sample in batch])
        return grouped

    def _draw_once(self) -> Any:
        """The batches of an epoch, which are not drawn again if it does not get to begin."""
        own, undo = self.__dict__, self._undo_draws()
        try:
            # Kept without a call in between.
            own["_loaded_batches"] = self._draw()
        except BaseException:
            list(undo)
            raise
        return own["_loaded_batches"]

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
        """The batch size of the job: that of all batches, of which only the last may have less, else 1 from then on, since
        another job reads again what this one holds."""
        if self._unequal or not batches or _have_size(batches, self.job.batch_size):
            return self.job.batch_size
        size = len(batches[0])
        self._unequal = self._used or not _have_size(batches, size)
        return 1 if self._unequal else size

    def _maker(self) -> Maker | None:
        if self._mapped is None:
            return None
        keys = functools.partial(keyed, self.job.seed)
        return Maker(self._mapped, self.job._inner, keys, self._options["on_error"] == "skip")

    def _feeder(self, maker: Maker | None, epoch: int, sizes: Sequence[int]) -> Feeder | None:
        if maker is None or self.num_workers == 0:
            return None
        if self._workers is None or self._workers.pid != os.getpid():
            self._workers = Workers(self.num_workers, self.worker_init_fn)
        ahead = (self.prefetch_factor or 1) * self.num_workers
        return Feeder(self.job._inner, maker, self._workers, epoch, sizes, ahead)


def _source(dataset: Any, config: Any) -> tuple[Mapped | None, Dataset]:
    """The dataset that the job reads, and how its samples are made where Python makes them."""
    whole, indices = unwrapped(dataset)
    if isinstance(whole, Dataset):
        whole = whole._as_it_is()
        return None, whole if indices is None else Files._part(whole, indices)
    mapped = Mapped.of(dataset)
    transform = mapped.transform
    if isinstance(transform, transforms.Transform):
        return None, Files(mapped.paths(), mapped.labels(), transform=transform, config=config)
    return mapped, Files(mapped.paths(), config=config)


def _nobody() -> None:
    """Where there is no iteration to refer to."""


def _have_size(batches: list[list[int]], size: int) -> bool:
    """Whether all batches have this size; the last may have less."""
    return all(len(batch) == size for batch in batches[:-1]) and len(batches[-1]) <= size


def _rebuilt(kind: type[DataLoader], given: dict[str, Any], state: dict[str, Any], binds: bool) -> DataLoader:
    loader = kind(**given)
    loader._load(state, binds)
    return loader
