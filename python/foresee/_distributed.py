"""torch's ``DistributedSampler``: recognised where it is given to a loader, and what a loader without a sampler shows as its own."""

import importlib
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .torch import DataLoader

_Sampler: Any = importlib.import_module("torch.utils.data.distributed").DistributedSampler


def is_distributed(sampler: Any, samples: int) -> bool:
    """Whether a sampler is exactly torch's, over so many samples: then its orders are known ahead."""
    return type(sampler) is _Sampler and len(sampler.dataset) == samples


def follower(loader: "DataLoader") -> Any:
    """torch's sampler with the loader's order; its ``set_epoch`` is the loader's, and so is its rank."""
    owner = weakref.ref(loader)
    options = {"shuffle": loader._options["shuffle"] == "torch", "drop_last": loader._options["tail"] == "drop"}
    whole = range(len(loader._source))

    class Follower(_Sampler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(whole, 1, 0, **options)
            self._look()

        def _look(self) -> None:
            if (held := owner()) is not None:
                (rank, world_size), epoch = held._ranks(), self.__dict__["epoch"]
                super().__init__(whole, world_size, rank, seed=held.job.seed, **options)
                self.epoch = epoch

        def __iter__(self) -> Any:
            self._look()
            return super().__iter__()

        def __len__(self) -> int:
            self._look()
            return int(super().__len__())

        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch)
            if (held := owner()) is not None:
                held.set_epoch(epoch)

    return Follower()
