"""A cgroup that limits memory, page cache included: of version 1 or 2, whichever the machine has."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path("/sys/fs/cgroup")
EMPTY_S_MAX = 5.0
LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Use:
    """What a group has at a moment. `own_bytes` is what cannot be dropped: processes, shared memory, the kernel for them.
    `cached_bytes` is page cache."""

    own_bytes: int
    cached_bytes: int


class MemoryGroup:
    """A group from `with` to its end; what runs as `command` says is gone before it ends."""

    def __init__(self, name: str, limit_bytes: int | None = None) -> None:
        self._is_v1 = (ROOT / "memory" / "cgroup.procs").exists()
        # Version 2 lets only groups without processes of their own limit others, so there it has to be beneath the root.
        self.path = (ROOT / "memory" / _own_group() if self._is_v1 else ROOT) / name
        self._limit_bytes = limit_bytes

    @classmethod
    def named(cls, prefix: str) -> list[MemoryGroup]:
        """Groups that there are."""
        return [cls(path.name) for path in cls("").path.glob(f"{prefix}*") if path.is_dir()]

    def __enter__(self) -> Self:
        self.remove()
        self.make()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def make(self) -> None:
        self.path.mkdir()
        try:
            self.limit(self._limit_bytes)
        except OSError:
            self.remove()
            raise

    def limit(self, limit_bytes: int | None) -> None:
        """From now on it may have no more than this; None: all there is."""
        unlimited = "-1" if self._is_v1 else "max"
        limit = unlimited if limit_bytes is None else str(limit_bytes)
        self._write("memory.limit_in_bytes" if self._is_v1 else "memory.max", limit)
        # Swap would be more memory.
        with contextlib.suppress(OSError):
            self._write(*(("memory.swappiness", "0") if self._is_v1 else ("memory.swap.max", "0")))

    def command(self, line: list[str]) -> list[str]:
        """The same command in the group, from its first page on."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.path / "cgroup.procs"), *line]

    def use(self) -> Use:
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        whole, cached, shared = (
            ("memory.usage_in_bytes", "total_cache", "total_shmem")
            if self._is_v1
            else ("memory.current", "file", "shmem")
        )
        cached_bytes = int(stat[cached]) - int(stat[shared])
        return Use(int((self.path / whole).read_text()) - cached_bytes, cached_bytes)

    def _write(self, name: str, value: str) -> None:
        (self.path / name).write_text(f"{value}\n")

    def remove(self) -> None:
        """When what was in it is gone."""
        deadline = time.monotonic() + EMPTY_S_MAX
        while self.path.exists():
            try:
                self.path.rmdir()
            except OSError:
                # Processes that were killed are still on their way out.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class Watch:
    """The most that each of some groups was seen to have for itself."""

    def __init__(self, groups: list[MemoryGroup]) -> None:
        self.own_bytes_max = [0] * len(groups)
        self._groups = groups
        self._ended = threading.Event()

    def look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            for at, group in enumerate(self._groups):
                self.own_bytes_max[at] = max(self.own_bytes_max[at], group.use().own_bytes)

    def end(self) -> None:
        self._ended.set()


@contextlib.contextmanager
def watched(*groups: MemoryGroup) -> Iterator[Watch]:
    """Looks at groups now and then, until the end of `with`."""
    watch = Watch(list(groups))
    looking = threading.Thread(target=watch.look, daemon=True)
    looking.start()
    try:
        yield watch
    finally:
        watch.end()
        looking.join()


def available() -> bool:
    """Whether this process may make such groups."""
    if (ROOT / "memory" / "cgroup.procs").exists():
        return os.access(ROOT / "memory", os.W_OK)
    controllers = ROOT / "cgroup.subtree_control"
    return controllers.exists() and "memory" in controllers.read_text().split() and os.access(ROOT, os.W_OK)


def _own_group() -> str:
    """Of version 1: what limits this process limits what it starts, too."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return path.lstrip("/")
    return ""
