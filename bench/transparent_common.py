"""What the measurements of `foresee run` share: the command, files to read, programs that read them, and folders of their own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import common

# Longer than files have to rest before they are copied, also where times are whole seconds.
REST_S = 2.1
TORCH_PYTHON = os.environ.get("FORESEE_TORCH_PYTHON", sys.executable)

# How a program in Python begins that is given a folder and a number of epochs: `paths` are all files, shuffled in each.
SHUFFLED = """
import os, random, sys, time
def shuffled(folder, epochs):
    for epoch in range(epochs):
        names = sorted(os.listdir(folder))
        random.Random(epoch).shuffle(names)
        yield from (os.path.join(folder, name) for name in names)
paths = shuffled(sys.argv[1], int(sys.argv[2]))
"""


class Timed(NamedTuple):
    took_s: float
    stdout: str


def timed(words: list) -> Timed:
    """Runs a command."""
    began = time.monotonic()
    done = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True)
    return Timed(time.monotonic() - began, done.stdout)


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
