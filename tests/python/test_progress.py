"""Progress: one line on a terminal, for rank 0; nothing elsewhere."""

import io

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
