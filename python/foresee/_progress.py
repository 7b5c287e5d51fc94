"""A bar that says how training goes: samples a second, how long the trainer waited, where the bytes came from.

On a terminal the line is written over; in a notebook lines are printed now and then; elsewhere nothing is said.
"""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Self, TextIO

from . import _native
from ._errors import ArgumentTypeError, ForeseeError
from ._job import Epoch, Job

#: Often enough to look alive, seldom enough to cost nothing.
_TERMINAL_S = 0.5
_NOTEBOOK_S = 10.0
#: Of a terminal that does not tell.
_COLUMNS = 80
#: Of the bar, if the rest of the line leaves so many.
_BAR_MIN, _BAR_MAX = 5, 30


def progress(batches: Any, *, file: TextIO | None = None) -> Iterator[Any]:
    """Iterates over a loader, a job or an epoch of one, and shows how it goes on stderr, for rank 0."""
    return _Progress(batches, sys.stderr if file is None else file)


class _Progress(map):  # type: ignore[type-arg]
    """The batches. They are handed over by what is not written in Python: an exception from a signal handler loses none."""

    _teller: "_Teller"

    def __new__(cls, batches: Any, out: TextIO) -> Self:
        teller = _Teller(batches, out)
        watched = itertools.chain(teller.begin(), iter(teller.end, None))
        progress = super().__new__(cls, teller.watch.hand, teller, watched)
        progress._teller = teller
        return progress

    def __init__(self, *_: Any) -> None:
        """All is done where it is made."""

    def close(self) -> None:
        """No more batches; ends the line."""
        self._teller.close()

    def __del__(self) -> None:
        if (teller := getattr(self, "_teller", None)) is not None:
            teller.end()


class _Teller:
    """Tells how it goes: each ``next`` says that a batch is about to be asked for."""

    def __init__(self, batches: Any, out: TextIO) -> None:
        self.watch = _native.Watch()
        job = _job(batches)
        self._batches, self._out = batches, out
        self._pause_s = _pause_s(out) if job.rank == 0 else None
        self._line: _Line | None = None
        self._told = 0.0
        #: Batches that were handed over when the line was ended.
        self._ended_at: int | None = None
        self._closed = False

    def begin(self) -> Iterator[Any]:
        """The batches."""
        first = _first(self._batches)
        batches: Iterator[Any] = iter(self._batches)
        # A loader settles on its job, and on where it stands, when it is asked for a batch.
        getattr(batches, "settle", lambda: None)()
        if self._pause_s is not None:
            self._line = _Line(self._batches, first, self._out, over=self._pause_s == _TERMINAL_S)
            self._told = time.monotonic()
        return batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> None:
        if self._closed:
            raise StopIteration
        if self._pause_s is not None and (now := time.monotonic()) - self._told >= self._pause_s:
            self._told = now
            self._tell()
        self.watch.ask()

    def close(self) -> None:
        self._closed = True
        self.end()

    def end(self) -> None:
        """There are no more."""
        if self._ended_at != self.watch.steps:
            self._ended_at = self.watch.steps
            self._tell(last=True)

    def _tell(self, last: bool = False) -> None:
        if self._line is not None:
            self._line.tell(self.watch.steps, self.watch.stall_s, last)


class _Line:
    def __init__(self, batches: Any, first: int, out: TextIO, over: bool) -> None:
        self._batches, self._first, self._out, self._over = batches, first, out, over
        self._total = _total(batches)
        self._before = self._counts()
        self._began = time.monotonic()
        #: Batches that were handed over, and how long the trainer waited for them.
        self._steps = 0
        self._stall_s = 0.0

    def tell(self, steps: int, stall_s: float, last: bool) -> None:
        self._steps, self._stall_s = steps, stall_s
        # Whatever becomes of the terminal, training goes on.
        with contextlib.suppress(OSError, ValueError, ForeseeError):
            if self._over:
                # One that is too long for the terminal could not be written over; one that is too short would leave the end
                # of another's line.
                width = _columns(self._out) - 1
                self._out.write("\r" + self._text(width)[:width].ljust(width) + ("\n" if last else ""))
            else:
                self._out.write(self._text(0) + "\n")
            self._out.flush()

    def _counts(self) -> tuple[int, dict[str, Any]]:
        """Samples that the trainer got, and bytes by origin."""
        stats = _job(self._batches)._inner.stats(False)
        return getattr(self._batches, "_delivered", stats["samples"]), stats["origins"]

    def _text(self, width: int) -> str:
        (samples, origins), (samples_before, origins_before) = self._counts(), self._before
        elapsed_s = max(time.monotonic() - self._began, 1e-9)
        at, total = self._first + self._steps, self._total
        parts = [f"{at}/{total}" if total is not None else f"{at}"]
        parts += [f"{(samples - samples_before) / elapsed_s:.0f} samples/s", f"stall {self._stall_s / elapsed_s:.0%}"]
        parts += [_mix(origins, origins_before)]
        if total is not None and at < total and self._steps > 0:
            parts.append(f"{_clock((total - at) * elapsed_s / self._steps)} left")
        else:
            parts.append(_clock(elapsed_s))
        parts = [part for part in parts if part]
        room = min(width - len("  ".join(parts)) - 2, _BAR_MAX)
        if total and room >= _BAR_MIN:
            parts.insert(1, _bar(at / total, room, getattr(self._out, "encoding", None)))
        return "  ".join(parts)


def _bar(share: float, width: int, encoding: str | None) -> str:
    full, empty = "\u2588\u2591"
    try:
        (full + empty).encode(encoding or "utf-8")
    except (LookupError, UnicodeError):
        full, empty = "#-"
    filled = int(share * width)
    return full * filled + empty * (width - filled)


def _total(batches: Any) -> int | None:
    """How many batches there are; None where a sampler does not know."""
    try:
        return len(batches)
    except TypeError:
        return None


def _first(batches: Any) -> int:
    """How many of them are behind already: a loader or job may go on in the middle."""
    if not isinstance(batches, Job | Epoch):
        return int(batches._begin[1])
    job = _job(batches)
    epoch, step = job.position
    if isinstance(batches, Job):
        return epoch * job.steps_per_epoch + step
    return step if epoch == batches._epoch else 0


def _columns(out: TextIO) -> int:
    try:
        # A terminal that does not know its width says 0.
        return os.get_terminal_size(out.fileno()).columns or _COLUMNS
    except (AttributeError, OSError, ValueError):
        return _COLUMNS


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
