"""Faults among real ranks: one that stops, is cut off or slow, and frames that are damaged on their way. They cost time, never
data; each wait has its bound, and a rank that is gone costs each other one deadline, not one a sample.

What takes 20 s is begun at once, when the first of these tests is run.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE
from many import Place, Ranks, check_epochs, free_port, make_files
from namespaces import Hosts
from relay import Relay

SIZE, SAMPLES, BATCH, RANKS = 4000, 480, 8, 4
STEPS = SAMPLES // RANKS // BATCH
DEADLINE_S = 2
FAULT_S = 20
#: A step that takes longer has waited for somebody.
LONG_S = 0.5


def options(epochs: int, transport: str = "tcp") -> dict[str, Any]:
    tier = {"kind": "memory", "capacity": SAMPLES * 102 // 100 // RANKS * SIZE}
    peers = {"deadline": DEADLINE_S, "transport": transport}
    config = {"staging": {"capacity": "1 MiB"}, "tier": [tier], "peers": peers}
    return {"batch_size": BATCH, "epochs": epochs, "seed": 5, "config": config}


def check_stream(rank: dict[str, Any], epochs: int) -> None:
    """All of a rank's stream was delivered, right by hash."""
    assert not rank["wrong"]
    assert [len(epoch) for epoch in rank["epochs"]] == [SAMPLES // RANKS] * epochs


def check_waits(rank: dict[str, Any], silent: int) -> None:
    """A rank waited no longer, all in all, than a deadline for each rank that fell silent."""
    # The first batch waits for all ranks to come.
    long = [wait for wait in rank["waits_s"][1:-1] if wait > LONG_S]
    assert sum(long) < silent * (DEADLINE_S + LONG_S), long


class Scenario:
    """What became of a job with a fault in its midst."""

    def __init__(self, paths, folder, *, epochs: int, compute_s: dict[int, float], place=None, transport: str = "tcp"):
        self.epochs = epochs
        by_rank = {str(rank): {"compute_s": compute_s.get(rank, 0.2)} for rank in range(RANKS)}
        self.job = Ranks(paths, RANKS, folder, job=options(epochs, transport), by_rank=by_rank, place=place)
        self.began_s, self.ended_s = 0.0, 0.0
        self.got: list[dict[str, Any]] = []

    def run(self, fault: Callable[[], None], end: Callable[[], None] | None) -> "Scenario":
        """The fault comes after some steps, and ends after its time if it does."""

        def happen() -> None:
            self.job.wait_for_steps(STEPS // 2)
            fault()
            self.began_s = time.monotonic()
            if end is not None:
                time.sleep(FAULT_S)
                end()
                self.ended_s = time.monotonic()

        with self.job, ThreadPoolExecutor() as aside:
            happening = aside.submit(happen)
            self.job.run_free()
            happening.result()
            self.got = self.job.end()
        return self


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("faults") / "dataset", SAMPLES, SIZE)


@pytest.fixture(scope="module")
def scenarios(paths, tmp_path_factory) -> Iterator[dict[str, Future[Scenario]]]:
    """All that takes long, at the same time."""
    # Whom the fault is with goes on faster, so that all end at about the same time.
    hurry = {2: 0.05}

    def stop(transport: str) -> Scenario:
        folder = tmp_path_factory.mktemp("stopped")
        scenario = Scenario(paths, folder, epochs=10, compute_s=hurry, transport=transport)
        kill = scenario.job.kill
        return scenario.run(lambda: kill(2, signal.SIGSTOP), lambda: kill(2, signal.SIGCONT))

    def stopped() -> Scenario:
        return stop("tcp")

    def stopped_near() -> Scenario:
        return stop("auto")

    def cut() -> Scenario:
        with Hosts(RANKS) as hosts:
            folder = tmp_path_factory.mktemp("cut")
            scenario = Scenario(paths, folder, epochs=10, compute_s={}, place=hosts.place())
            return scenario.run(lambda: hosts.cut(2), lambda: hosts.mend(2))

    def gone() -> Scenario:
        with Hosts(RANKS) as hosts:
            folder = tmp_path_factory.mktemp("gone")
            scenario = Scenario(paths, folder, epochs=6, compute_s={}, place=hosts.place(6))
            return scenario.run(lambda: hosts.switch_off(2), None)

    with ThreadPoolExecutor() as all_at_once:
        yield {scenario.__name__: all_at_once.submit(scenario) for scenario in (stopped, stopped_near, cut, gone)}


def fetched_between(rank: dict[str, Any], begin_s: float, end_s: float) -> int:
    """Samples that a rank got from others in a time."""
    counts = [samples for at_s, samples in rank["fetched"] if begin_s <= at_s <= end_s]
    return counts[-1] - counts[0] if counts else 0


def test_a_rank_of_this_host_that_is_stopped_for_20_s_costs_at_most_a_deadline(scenarios):
    """Its memory can be read all the same."""
    ran = scenarios["stopped_near"].result()
    for at, rank in enumerate(ran.got):
        check_stream(rank, ran.epochs)
        if at != 2:
            check_waits(rank, silent=1)
        assert fetched_between(rank, ran.ended_s, float("inf")) > 0


def test_a_rank_that_is_stopped_for_20_s_costs_each_other_one_deadline(scenarios):
    ran = scenarios["stopped"].result()
    for at, rank in enumerate(ran.got):
        check_stream(rank, ran.epochs)
        if at != 2:
            check_waits(rank, silent=1)
            assert rank["stats"]["peers"]["faults"]["2"]["mute"] >= 1
            assert "rank 2" in rank["summary"]
            assert fetched_between(rank, ran.ended_s, float("inf")) > 0
    assert fetched_between(ran.got[2], ran.ended_s, float("inf")) > SAMPLES // RANKS


def test_a_line_that_is_cut_for_20_s_costs_one_deadline_a_rank_and_is_used_again(scenarios):
    ran = scenarios["cut"].result()
    for at, rank in enumerate(ran.got):
        check_stream(rank, ran.epochs)
        check_waits(rank, silent=RANKS - 1 if at == 2 else 1)
        assert "rank 2" in rank["summary"] or at == 2
    behind_the_cut = ran.got[2]
    assert set(behind_the_cut["stats"]["peers"]["faults"]) == {"0", "1", "3"}
    assert fetched_between(behind_the_cut, 0, ran.began_s) > 0
    # What had come before the cut may be counted a little later.
    assert fetched_between(behind_the_cut, ran.began_s + 1, ran.ended_s) == 0
    assert fetched_between(behind_the_cut, ran.ended_s, float("inf")) > SAMPLES // RANKS // 2


def test_a_host_that_is_never_reached_again_costs_no_sample_over_ipv6(scenarios):
    ran = scenarios["gone"].result()
    for at, rank in enumerate(ran.got):
        check_stream(rank, ran.epochs)
        check_waits(rank, silent=RANKS - 1 if at == 2 else 1)
        assert "rank 2" in rank["summary"] or at == 2
    others = [rank for at, rank in enumerate(ran.got) if at != 2]
    assert all(fetched_between(rank, ran.began_s + DEADLINE_S, float("inf")) > 0 for rank in others)


def test_one_frame_in_a_hundred_is_damaged_and_every_sample_is_right(paths, tmp_path):
    epochs, port = 12, free_port()
    with Relay(port, one_in=100, seed=1) as relay:
        to_first = Place(env={"FORESEE_PEERS_PORT": relay.port})
        place = lambda rank: to_first if rank else Place()
        # A little at a time: else all is over before a connection is made again.
        by_rank = {str(rank): {"compute_s": 0.01} for rank in range(RANKS)}
        with Ranks(paths, RANKS, tmp_path, job=options(epochs), by_rank=by_rank, place=place, port=port) as job:
            job.step_together()
            got = job.end()
    check_epochs(got, SAMPLES, epochs)
    assert relay.damaged >= 5
    garbled = sum(way["garbled"] for rank in got for way in rank["stats"]["peers"]["ways"])
    # What is sent behind a damaged header, on a connection that ends by it, is not read.
    assert relay.damaged / 2 <= garbled <= relay.damaged
    # A line that broke is used again at once.
    assert sum(rank["stats"]["origins"]["peer"]["samples"] for rank in got) > SAMPLES * epochs / 3
    for rank in got:
        check_waits(rank, silent=2)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_ten_times_slower_makes_nobody_wait_long(paths, tmp_path, transport):
    epochs = 3
    by_rank = {str(rank): {"compute_s": 0.1 if rank == 1 else 0.01} for rank in range(RANKS)}
    with Ranks(paths, RANKS, tmp_path, job=options(epochs, transport), by_rank=by_rank) as job:
        job.run_free()
        got = job.end()
    check_epochs(got, SAMPLES, epochs)
    for rank in got:
        check_waits(rank, silent=1)


#: Another launch's rank: it knows the address, not the secret.
STRANGER = """
import sys, time
from foresee import _native
told = {"rank": 1, "world": 4, "host": "127.0.0.1", "port": int(sys.argv[1]), "bind": "127.0.0.1",
        "secret": b"another secret than theirs", "launch": sys.argv[2], "encrypt": False, "sample_bytes_max": 1000}
mesh = _native.Mesh(told)
time.sleep(2)
"""


def test_strangers_cost_little_are_named_once_and_hinder_nobody(paths, tmp_path):
    """A port scanner, half-open connections, another version and another secret, all at rank 0 while ranks train."""
    port, epochs = free_port(), 6
    held: list[socket.socket] = []
    started: list[subprocess.Popen[bytes]] = []
    descriptors: list[int] = []
    place = Place(env={"FORESEE_PEERS_SECRET": "the secret of these ranks alone"})

    def strangers(step: int, job: Ranks) -> None:
        descriptors.append(len(list(Path(f"/proc/{job.processes[0].pid}/fd").iterdir())))
        if step == 2:
            env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
            command = [sys.executable, "-c", STRANGER, str(port), f"127.0.0.1:{port - 1}"]
            started.append(subprocess.Popen(command, env=env))
        # Rank 0 listens until it has ended.
        if 2 <= step < epochs * STEPS - 10:
            for said in (b"GET / HTTP/1.1\r\n\r\n", b"foresee\xff", b"foresee\x01\xff\xff", b"", *[b"f"] * 20):
                held.append(socket.create_connection(("127.0.0.1", port)))
                held[-1].sendall(said)

    by_rank = {str(rank): {"compute_s": 0.03} for rank in range(RANKS)}
    with Ranks(paths, RANKS, tmp_path, job=options(epochs), by_rank=by_rank, place=lambda _: place, port=port) as job:
        job.step_together(at_step=strangers)
        got = job.end()
        assert started[0].wait(30) == 0
    check_epochs(got, SAMPLES, epochs)
    assert len(held) > 1000
    assert max(descriptors) < descriptors[0] + 300, "handshakes under way are bounded"
    for rank in got:
        check_waits(rank, silent=1)
    (refused,) = (way["refused"] for way in got[0]["stats"]["peers"]["ways"] if way["rank"] is None)
    assert refused > 100
    said = [line for line in job.said(0).splitlines() if "no connection with" in line]
    reasons = ("a port scanner?", "another version", "another secret")
    assert all(sum(reason in line for line in said) == 1 for reason in reasons), said
    assert len(said) <= len(reasons) + 1, said
    for one in held:
        one.close()
