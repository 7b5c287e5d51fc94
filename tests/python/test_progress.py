"""Progress: one line with a bar on a terminal, for rank 0; nothing elsewhere."""

import fcntl
import io
import os
import struct
import termios

import foresee
import pytest


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_line_with_rate_stall_and_origins(files):
    out = Terminal()
    tier = {"tier": [{"kind": "memory", "capacity": "1 MiB"}]}
    with foresee.Job(files(40), 4, 3, config=tier) as job:
        assert len(list(foresee.progress(job, file=out))) == 30
    last = out.getvalue().split("\r")[-1]
    assert last.startswith("30/30  ") and " samples/s  stall " in last and last.endswith("\n")
    assert "source 33%" in last and "tier1 67%" in last and out.getvalue().count("\n") == 1
    assert "\u2588" * 5 in last and "\u2591" not in last


def test_the_bar_is_as_long_as_what_is_done(files):
    out = Terminal()
    with foresee.Job(files(8), 2, 1) as job:
        going = foresee.progress(job, file=out)
        next(going), next(going)
        going.close()
    count, bar, *_ = out.getvalue().split()
    assert count == "2/4" and abs(bar.count("\u2588") - bar.count("\u2591")) <= 1


class Plain(Terminal):
    encoding = "ascii"


def test_a_terminal_without_blocks_gets_a_plain_bar(files):
    out = Plain()
    with foresee.Job(files(8), 2, 1) as job:
        list(foresee.progress(job, file=out))
    assert out.getvalue().isascii() and "#####" in out.getvalue()


def test_without_a_terminal_or_on_another_rank_nothing_is_said(files):
    out, terminal = io.StringIO(), Terminal()
    with foresee.Job(files(8), 2, 1) as job:
        assert len(list(foresee.progress(job.epoch(0), file=out))) == 4
    with foresee.Job(files(8), 2, 1, rank=1, world_size=2) as job:
        assert len(list(foresee.progress(job, file=terminal))) == 2
    assert out.getvalue() == terminal.getvalue() == ""


def test_a_break_ends_the_line(files):
    out = Terminal()
    with foresee.Job(files(8), 2, 1) as job:
        going = foresee.progress(job, file=out)
        next(going)
        going.close()
    assert out.getvalue().endswith("\n")


def test_what_is_no_loader_is_refused():
    with pytest.raises(TypeError, match="give a Job"):
        next(foresee.progress([1, 2]))


class Narrow(Terminal):
    """A terminal of 20 columns; a file of its own tells so."""

    def __init__(self):
        super().__init__()
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))

    def fileno(self):
        return self.theirs


def test_a_line_fits_the_terminal(files):
    out = Narrow()
    with foresee.Job(files(8), 2, 1) as job:
        list(foresee.progress(job, file=out))
    assert all(len(line.rstrip("\n")) == 19 for line in out.getvalue().split("\r")[1:])
    os.close(out.ours), os.close(out.theirs)


def test_a_job_that_goes_on_in_the_middle_is_shown_there(files):
    with foresee.Job(files(8), 2, 3) as job:
        next(job), next(job)
        state = job.state_dict()
    out = Terminal()
    with foresee.Job(files(8), 2, 3) as job:
        job.load_state_dict(state)
        assert len(list(foresee.progress(job, file=out))) == 10
    assert out.getvalue().split("\r")[-1].startswith("12/12 ")
    out = Terminal()
    with foresee.Job(files(8), 2, 3) as job:
        job.load_state_dict(state)
        assert len(list(foresee.progress(job.epoch(0), file=out))) == 2
    assert out.getvalue().split("\r")[-1].startswith("4/4 ")


def test_an_error_in_the_loop_ends_the_line_and_is_raised(files):
    out = Terminal()
    with foresee.Job(files(8), 2, 1) as job, pytest.raises(KeyError):
        for _ in foresee.progress(job, file=out):
            raise KeyError
    assert out.getvalue().startswith("\r1/4 ") and out.getvalue().endswith("\n")


class Gone(Terminal):
    def write(self, text):
        raise OSError(5, "the terminal is gone")


def test_a_terminal_that_is_gone_does_not_end_the_training(files):
    with foresee.Job(files(8), 2, 1) as job:
        assert len(list(foresee.progress(job, file=Gone()))) == 4


def test_one_within_another_ends_its_own_line(files):
    out = Terminal()
    with foresee.Job(files(8), 2, 1) as outer, foresee.Job(files(8), 4, 1) as inner:
        for _ in foresee.progress(outer, file=out):
            if outer.position == (0, 1):
                list(foresee.progress(inner, file=out))
    first, second, rest = out.getvalue().split("\n")
    assert first.split("\r")[-1].startswith("2/2 ") and second.split("\r")[-1].startswith("4/4 ") and not rest
