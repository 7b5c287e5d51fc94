"""What the arguments of torch's loader say of the order. Nothing here imports torch."""

import multiprocessing
import multiprocessing.context
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from . import _check
from ._errors import ArgumentTypeError, ConfigError

#: What the configuration allows too.
WORKERS_MAX = 1024


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
        number = operator.index(index)
    except TypeError:
        raise ArgumentTypeError(f"sampler: {_check.shown(index)} is no number of a sample") from None
    if number < 0:
        raise ConfigError(f"sampler: {number} is no number of a sample; they count from 0")
    return number


def refuse_contradictions(
    batch_size: int | None, shuffle: bool | None, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    """Refuses what torch refuses."""
    if shuffle is not None:
        _check.flag("shuffle", shuffle)
    if sampler is not None and shuffle:
        raise ConfigError("sampler: not with shuffle; the sampler is the order")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ConfigError("batch_sampler: not with batch_size, shuffle, sampler or drop_last; it says all of these")
    if batch_size is None and drop_last and batch_sampler is None:
        raise ConfigError("batch_size=None: not with drop_last; there are no batches")
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None and not isinstance(given, Iterable):
            raise ArgumentTypeError(f"{name}={_check.shown(given)}: give something to iterate over")


def refuse_settings(given: Mapping[str, Any]) -> None:
    """Refuses settings of workers that torch refuses."""
    _check.whole("num_workers", given["num_workers"], 0, WORKERS_MAX)
    timeout, ahead, context = given["timeout"], given["prefetch_factor"], given["multiprocessing_context"]
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ArgumentTypeError(f"timeout={_check.shown(timeout)}: give 0 (none) or a number of seconds")
    if not timeout >= 0:
        raise ConfigError(f"timeout={timeout}: give 0 (none) or a number of seconds")
    if ahead is not None:
        _check.whole("prefetch_factor", ahead, 0, WORKERS_MAX)
    if isinstance(context, str) and context not in multiprocessing.get_all_start_methods():
        known = ", ".join(map(repr, multiprocessing.get_all_start_methods()))
        raise ConfigError(f"multiprocessing_context={_check.shown(context)}: give one of {known}, or leave it away")
    if context is not None and not isinstance(context, str | multiprocessing.context.BaseContext):
        raise ArgumentTypeError(
            f"multiprocessing_context={_check.shown(context)}: give a start method, or leave it away; nothing uses it"
        )
    for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
        if given[name] not in (None, False) and given["num_workers"] == 0:
            raise ConfigError(f"{name}={_check.shown(given[name])}: only with num_workers above 0")


def place(state: Any, epochs: int) -> tuple[int, int]:
    """Epoch and step of a state that a loader is to go on from."""
    if not isinstance(state, Mapping) or "epoch" not in state or "step" not in state:
        raise ArgumentTypeError(f"state={_check.shown(state)}: give what state_dict() returned")
    return _check.whole("state['epoch']", state["epoch"], 0, epochs), _check.whole(
        "state['step']", state["step"], 0, 2**32
    )


def batches(state: Mapping[str, Any]) -> list[list[int]] | None:
    """The batches of the epoch at hand that a state holds, where a sampler drew them."""
    given = state.get("batches")
    if given is None:
        return None
    try:
        return [[sample(index) for index in batch] for batch in given]
    except TypeError:
        raise ArgumentTypeError("state['batches']: no lists of samples; give what state_dict() returned") from None


def keeper_of_epochs(drawn: Any) -> Any:
    """The sampler whose ``set_epoch`` decides on the order, of those that a loader was given."""
    candidates = (drawn, getattr(drawn, "sampler", None))
    return next((one for one in candidates if callable(getattr(one, "set_epoch", None))), None)


def generators(*holders: Any) -> list[Any]:
    """The generators that draw the order, each once: given ones, and those of samplers."""
    inner = [getattr(one, "sampler", None) for one in holders]
    found = [one if hasattr(one, "get_state") else getattr(one, "generator", None) for one in (*holders, *inner)]
    return list({id(one): one for one in found if hasattr(one, "get_state")}.values())


def generator_states(state: Mapping[str, Any], held: list[Any]) -> list[bytes]:
    """What a state says of the generators that draw the order."""
    given = state.get("generators", [])
    try:
        states = [bytes.fromhex(one) for one in given]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            "state['generators']: no list of hexadecimal texts; give what state_dict() returned"
        ) from None
    if len(held) != len(states):
        raise ConfigError(f"state: {len(states)} generators then, {len(held)} now; make the loader as it was")
    for one, saved in zip(held, states, strict=True):
        if (size := len(one.get_state())) != len(saved):
            raise ConfigError(
                f"state['generators']: one of {len(saved)} bytes, not {size}; give what state_dict() returned"
            )
    return states
