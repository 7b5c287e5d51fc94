"""Checks of arguments. Whatever is wrong is said in one line: the argument, its value, the remedy."""

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ._errors import ArgumentTypeError, ConfigError

_SHOWN_MAX = 80


def shown(value: object) -> str:
    """The value as a message shows it: on one line, and not long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds; NumPy's are fine, truth values are not."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentTypeError(f"{name}={shown(value)}: give a whole number")
    if number < least:
        raise ConfigError(f"{name}={number}: give at least {least}")
    if number > most:
        raise ConfigError(f"{name}={number}: give at most {most}")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name}={shown(value)}: give True or False")
    return value


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}={shown(value)}: give one of {', '.join(map(repr, known))}")
    if value not in known:
        raise ConfigError(f"{name}={shown(value)}: not known; give one of {', '.join(map(repr, known))}")
    return value


def path(name: str, value: Any) -> str:
    if not isinstance(value, str | bytes | os.PathLike):
        raise ArgumentTypeError(f"{name}={shown(value)}: give a path")
    return os.fsdecode(value)


def config(config: Any) -> Any:
    """What says how to load: a path, a dictionary or nothing."""
    if config is None:
        return None
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, str | os.PathLike):
        raise ArgumentTypeError(f"config={shown(config)}: give a path of a foresee.toml, a dict or None")
    return os.fspath(config)
