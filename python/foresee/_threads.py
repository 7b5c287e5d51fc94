"""Threads, and waking them, such that an exception from a signal handler does no harm.

Handlers run in the main thread, at any bytecode: in the middle of what the standard library's threads, conditions, queues
and futures do in Python, too, whose locks then stay locked. So the main thread uses only what is one call into C.
"""

import _thread
import contextlib
import signal
import threading
import time
import types
from collections.abc import Callable, Sequence

from ._errors import ForeseeError

#: How long a thread sleeps before it looks whether it is still wanted: short enough for closing to feel prompt.
PATIENCE_S = 0.05


class Bell:
    """Wakes who waits. A ring is remembered until somebody waits, more than one are as good as one. It may be lost if a
    signal handler raises, so whoever waits looks for itself now and then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, longest_s: float = PATIENCE_S) -> None:
        self._lock.acquire(timeout=longest_s)


class Threads:
    """Threads that are started, once, by another thread: handlers never run there."""

    def __init__(self, name: str, targets: Sequence[Callable[[], None]]) -> None:
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for target in targets]
        self._claim = threading.Lock()
        self._started = threading.Lock()
        self._started.acquire()
        #: Why there are fewer than asked for.
        self.failed: Exception | None = None

    def start(self) -> None:
        """Starts them; to be called again if a handler raised."""
        try:
            _thread.start_new_thread(self._start, ())
        except RuntimeError as wrong:
            raise self._refused() from wrong

    def join(self, longest_s: float) -> None:
        """Waits until they have ended, or not even begun."""
        deadline = time.monotonic() + longest_s
        if not self._claim.locked() or not self._started.acquire(timeout=longest_s):
            return
        self._started.release()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        # Never released: they are started once.
        if not self._claim.acquire(blocking=False):
            return
        started = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError:
                self.failed = self._refused()
                break
            started.append(thread)
        self._threads = started
        self._started.release()

    def _refused(self) -> ForeseeError:
        return ForeseeError("cannot start a thread; raise the limit of processes (ulimit -u), or use fewer num_workers")


def is_interrupt(wrong: BaseException) -> bool:
    """Whether an exception comes from a signal handler, or wants the program to end: then it says nothing about what was
    being done."""
    if not isinstance(wrong, Exception):
        return True
    if threading.get_ident() != threading.main_thread().ident:
        return False
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    handlers.discard(None)
    at = wrong.__traceback__
    while at is not None:
        if at.tb_frame.f_code in handlers:
            return True
        at = at.tb_next
    return False


def _code(handler: object) -> types.CodeType | None:
    """Of what Python runs when it is called."""
    while hasattr(handler, "func"):
        handler = handler.func
    if not hasattr(handler, "__code__") and callable(handler):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
