"""What the arguments of torch's loader say of the order. Nothing here imports torch."""

from collections.abc import Iterable
from typing import Any

from . import _check
from ._errors import ArgumentTypeError, ConfigError


def of_distributed(sampler: Any) -> dict[str, Any]:
    """A job's arguments for the order of a ``DistributedSampler``."""
    return {
        "shuffle": "torch" if sampler.shuffle else "sequential",
        "seed": sampler.seed,
        "rank": sampler.rank,
        "world_size": sampler.num_replicas,
        "tail": "drop" if sampler.drop_last else "pad",
    }


def sample(index: Any) -> int:
    """An index as a sampler gives it; tensors with one number are fine."""
    try:
        return int(index)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"sampler: {_check.shown(index)} is no number of a sample") from None


def refuse_contradictions(
    batch_size: int | None, shuffle: bool | None, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    """Refuses what torch refuses."""
    if sampler is not None and shuffle:
        raise ConfigError("sampler: not with shuffle; the sampler is the order")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ConfigError("batch_sampler: not with batch_size, shuffle, sampler or drop_last; it says all of these")
    if batch_size is None and drop_last and batch_sampler is None:
        raise ConfigError("batch_size=None: not with drop_last; there are no batches")
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None and not isinstance(given, Iterable):
            raise ArgumentTypeError(f"{name}={_check.shown(given)}: give something to iterate over")
