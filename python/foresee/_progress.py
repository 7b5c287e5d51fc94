"""A line that says how training goes: samples a second, how long the trainer waited, where the bytes came from.

On a terminal the line is written over; in a notebook lines are printed now and then; elsewhere nothing is said.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from ._errors import ArgumentTypeError
from ._job import Epoch, Job

#: Often enough to look alive, seldom enough to cost nothing.
_TERMINAL_S = 0.5
_NOTEBOOK_S = 10.0


def progress(batches: Any, *, file: TextIO | None = None) -> Iterator[Any]:
    """Iterates over a loader, a job or an epoch of one, and shows how it goes on stderr, for rank 0."""
    job = _job(batches)
    out = sys.stderr if file is None else file
    pause_s = _pause_s(out)
    if pause_s is None or job.rank != 0:
        yield from batches
        return
    line = _Line(job, len(batches), out, over=pause_s == _TERMINAL_S)
    told = time.monotonic()
    try:
        for batch in batches:
            yield batch
            line.steps += 1
            if (now := time.monotonic()) - told >= pause_s:
                told = now
                line.tell()
    finally:
        line.tell(last=True)


class _Line:
    def __init__(self, job: Job, total: int, out: TextIO, over: bool) -> None:
        self._job, self._total, self._out, self._over = job, total, out, over
        self._before = job._inner.stats(False)
        self._began = time.monotonic()
        self._width = 0
        self.steps = 0

    def tell(self, last: bool = False) -> None:
        text = self._text()
        if self._over:
            self._out.write("\r" + text.ljust(self._width) + ("\n" if last else ""))
        else:
            self._out.write(text + "\n")
        self._width = len(text)
        self._out.flush()

    def _text(self) -> str:
        now, before = self._job._inner.stats(False), self._before
        elapsed_s = max(time.monotonic() - self._began, 1e-9)
        samples = now["samples"] - before["samples"]
        stall = (now["stall_s"] - before["stall_s"]) / elapsed_s
        parts = [f"{self.steps}/{self._total}", f"{samples / elapsed_s:.0f} samples/s", f"stall {stall:.0%}"]
        parts += [_mix(now["origins"], before["origins"])]
        if 0 < self.steps < self._total:
            parts.append(f"{_clock((self._total - self.steps) * elapsed_s / self.steps)} left")
        else:
            parts.append(_clock(elapsed_s))
        return "  ".join(part for part in parts if part)


def _mix(now: dict[str, Any], before: dict[str, Any]) -> str:
    """Shares of the bytes by origin."""
    none = {"bytes": 0}
    by_origin = {name: reads["bytes"] - before.get(name, none)["bytes"] for name, reads in now.items()}
    total = sum(by_origin.values())
    return " ".join(f"{name} {bytes_read / total:.0%}" for name, bytes_read in by_origin.items()) if total > 0 else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _pause_s(out: TextIO) -> float | None:
    """How often to say something; None: never."""
    try:
        if out.isatty():
            return _TERMINAL_S
    except (AttributeError, ValueError):
        return None
    shell = sys.modules.get("IPython")
    kernel = shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None
    return _NOTEBOOK_S if kernel else None


def _job(batches: Any) -> Job:
    if isinstance(batches, Epoch):
        return batches._job
    job = batches if isinstance(batches, Job) else getattr(batches, "job", None)
    if not isinstance(job, Job):
        raise ArgumentTypeError(f"progress({type(batches).__name__}): give a Job, job.epoch(e) or a DataLoader")
    return job
