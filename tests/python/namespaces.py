"""Hosts that are namespaces of this machine's network (bench/network.py), for ranks of tests. Only root can make them. All is
taken down in the end, also where a test fails; what a run that was killed left, by the next.
"""

import os
import re
import sys
from itertools import count
from pathlib import Path
from typing import Self

import pytest
from many import Place

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import network

#: Of one process, so that runs at the same time do not meet.
_NUMBERS = count()
_NAME = re.compile(r"^(foresee(\d+)-\d+)-")
SECRET = "a secret of the ranks of these tests"


class Hosts:
    """So many hosts, with an address of each kind."""

    def __init__(self, number: int):
        if lacking := network.missing():
            pytest.skip(f"no hosts: {lacking}")
        self.network = network.Network(f"foresee{os.getpid()}-{next(_NUMBERS)}")
        self.number = number

    def __enter__(self) -> Self:
        remove_abandoned()
        try:
            self.network.__enter__()
            for host in range(self.number):
                self.network.host(str(host))
        except network.SetupError as wrong:
            self.__exit__()
            pytest.skip(f"no hosts: network namespaces cannot be made here ({wrong})")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.network.__exit__()
        left = [path.name for path in network.NAMESPACES.glob(f"{self.network.name}-*")]
        assert not left, f"left behind: {left}"

    def place(self, kind: int = 4):
        """A rank is alone on its host, and shares a secret with the others."""
        first = self.network.hosts[0]
        env = {
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": first.address if kind == 4 else first.address6,
            "FORESEE_PEERS_SECRET": SECRET,
        }
        return lambda rank: Place(tuple(self.network.hosts[rank].command([])), env)

    def cut(self, host: int) -> None:
        self.network.hosts[host].cut()

    def mend(self, host: int) -> None:
        self.network.hosts[host].mend()

    def switch_off(self, host: int) -> None:
        self.network.hosts[host].switch_off()


def remove_abandoned() -> None:
    """Networks of tests whose process is gone."""
    names = {match[1]: int(match[2]) for path in network.NAMESPACES.glob("*") if (match := _NAME.match(path.name))}
    for name, pid in names.items():
        if not Path(f"/proc/{pid}").exists():
            network.remove(name)
