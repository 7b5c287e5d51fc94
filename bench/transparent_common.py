"""What the measurements of `foresee run` share: the command, files to read, and folders of their own."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import common

# Longer than files have to rest before they are copied, also where times are whole seconds.
REST_S = 2.1


def foresee(source: Path, cache: Path, quota: int, *more: object) -> list[str]:
    """What goes before a command that is run under `foresee run`."""
    pair = ["--cache", cache, "--quota", f"{quota}B", "--free-floor", "1MiB"]
    return [str(word) for word in [common.command(), "run", "--source", source, *pair, *more, "--"]]


@contextlib.contextmanager
def folder(inside: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="foresee-transparent-", dir=inside) as name:
        yield Path(name)


def made(path: Path, files: int, size: int, name: str = "{:05}.bin") -> int:
    """Files of random bytes; returns how many bytes."""
    path.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (path / name.format(number)).write_bytes(hashlib.shake_128(str(number).encode()).digest(size))
    return files * size
