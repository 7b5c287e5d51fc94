"""Runs programs under the built `foresee run`, and plainly, with what each of them opened of the source counted by strace."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from built import command_path

# A Python that has torch, for programs that need it.
TORCH_PYTHON = os.environ.get("FORESEE_TORCH_PYTHON", sys.executable)
# A file that was changed less than a second ago is not copied: it may change again without a trace.
REST_S = 1.1


class Ran(NamedTuple):
    """How a program ended, and what `foresee run` counted, if it was asked."""

    code: int
    stdout: str
    stderr: str
    stats: dict

    @property
    def source(self) -> dict:
        return self.stats["origins"][0]

    def tier(self, number: int = 0) -> dict:
        return self.stats["origins"][1 + number]

    @property
    def copies(self) -> int:
        return sum(origin["copies"] for origin in self.stats["origins"][1:])


@functools.cache
def has(python: str, module: str) -> bool:
    """Whether a Python has a module, in a process of its own, where tests/ is not among what can be imported."""
    return subprocess.run([python, "-I", "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def rest() -> None:
    time.sleep(REST_S)


class Runner:
    """Starts programs on a source and a cache folder."""

    def __init__(self, source: Path, folder: Path):
        self.command = command_path("libforesee_preload.so")
        self.source = source
        self.folder = folder
        self.cache = folder / "cache"

    def arguments(self, quota: str | list[str] = "1GiB", *more: str | Path) -> list:
        quotas = [quota] if isinstance(quota, str) else quota
        caches = [self.cache if number == 0 else self.folder / f"cache{number}" for number in range(len(quotas))]
        pairs = [word for pair in zip(caches, quotas, strict=True) for word in ("--cache", pair[0], "--quota", pair[1])]
        # The disk of a machine that tests run on may be nearly full.
        return [self.command, "run", "--source", self.source, *pairs, "--free-floor", "1MiB", *more, "--"]

    def __call__(
        self,
        *program: str | Path,
        quota: str | list[str] = "1GiB",
        more: tuple = (),
        trace: Path | None = None,
        timeout_s: float = 120,
        **options,
    ) -> Ran:
        stats = self.folder / "stats.json"
        stats.unlink(missing_ok=True)
        words = [*self.arguments(quota, "--stats-json", stats, *more), *program]
        return self._run(words, trace, timeout_s, stats, **options)

    def plainly(self, *program: str | Path, trace: Path | None = None, timeout_s: float = 120, **options) -> Ran:
        return self._run(list(program), trace, timeout_s, None, **options)

    def _run(self, words: list, trace: Path | None, timeout_s: float, stats: Path | None, **options) -> Ran:
        if trace is not None:
            words = ["strace", "-f", "-qq", "-y", "-o", trace, "-e", TRACED, *words]
        options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            words, capture_output=True, check=False, encoding="utf-8", timeout=timeout_s, errors="replace", **options
        )
        counted = json.loads(stats.read_text()) if stats is not None and stats.exists() else {}
        return Ran(done.returncode, done.stdout, done.stderr, counted)


TRACED = "trace=open,openat,read,pread64,readv,preadv,copy_file_range,sendfile"


class Traced(NamedTuple):
    """What strace saw of a source."""

    opens: int
    bytes: int


def traced(path: Path, source: Path) -> Traced:
    """Successful opens for reading of files below a folder, and bytes that were read of them."""
    opens, read = 0, 0
    shown = re.escape(str(source.resolve()))
    opened = re.compile(rf"\bopen(?:at)?\(.*O_RDONLY(?!.*O_DIRECTORY).*= \d+<{shown}/")
    reads = re.compile(rf"\b(?:read|pread64|readv|preadv|copy_file_range)\(\d+<{shown}/.*= (\d+)$")
    sent = re.compile(rf"\bsendfile\(\d+[^,]*, \d+<{shown}/.*= (\d+)$")
    unfinished: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        process, _, said = line.partition(" ")
        said = said.strip()
        if said.endswith("<unfinished ...>"):
            unfinished[process] = said.removesuffix("<unfinished ...>")
            continue
        if said.startswith("<..."):
            said = unfinished.pop(process, "") + said.partition("resumed>")[2]
        if opened.search(said):
            opens += 1
        elif found := reads.search(said) or sent.search(said):
            read += int(found[1])
    return Traced(opens, read)


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")


def content(number: int, size: int) -> bytes:
    """Bytes that differ from file to file, and from place to place."""
    block = b"".join((number * 1_000_003 + place).to_bytes(8, "little") for place in range(1 + min(size, 65536) // 8))
    return (block * (1 + size // len(block)))[:size]


def copier_process(cache: Path) -> int | None:
    """The copying process of a cache folder, if it lives."""
    try:
        process = int((cache / "copier.pid").read_text())
        os.kill(process, 0)
    except (OSError, ValueError):
        return None
    return process


def until(is_so, what: str, longest_s: float = 20) -> None:
    """Waits for something that must come."""
    end_s = time.monotonic() + longest_s
    while not is_so():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)
