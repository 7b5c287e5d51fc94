"""Alarms that raise, for tests of what is lost then."""

import random
import signal


class Alarm(Exception):
    """What the handler raises."""


class Alarms:
    """An alarm goes off every now and then, and raises while it is armed."""

    def __init__(self, seed: int, longest_s: float = 0.004):
        self.random = random.Random(seed)
        self.longest_s = longest_s
        self.raised = 0
        #: Set and cleared without a call, so that no signal is looked after in between.
        self.armed = [False]

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self._ring)
        self._wind_up()
        return self

    def __exit__(self, *_):
        self.armed[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def _wind_up(self):
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, self.longest_s))

    def _ring(self, *_):
        self._wind_up()
        if self.armed[0]:
            self.armed[0] = False
            self.raised += 1
            raise Alarm
