"""Hosts that are namespaces of this machine's network, each with a line to one switch, which can be cut. Only root can make
them. All is taken down in the end, also where a test fails; the switch is a namespace, too, so nothing else is touched.
"""

import os
import subprocess
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self

import pytest
from many import Place

#: Of one process, so that runs at the same time do not meet.
_NUMBERS = count()
SECRET = "a secret of the ranks of these tests"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """So many hosts, with an address of each kind."""

    def __init__(self, number: int):
        if os.geteuid() != 0:
            pytest.skip("not root: network namespaces are made by root only")
        self.name = f"foresee{os.getpid()}-{next(_NUMBERS)}"
        self.number = number
        self.made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as wrong:
            self._remove()
            why = getattr(wrong, "stderr", None) or wrong
            pytest.skip(f"no network namespaces here ({str(why).strip()}); install Debian's package iproute2")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        switch = self._namespace("switch")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for host in range(self.number):
            name = self._namespace(str(host))
            ip("-n", switch, "link", "add", f"port{host}", "type", "veth", "peer", "name", "line", "netns", name)
            ip("-n", switch, "link", "set", f"port{host}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "line")
            ip("-n", name, "address", "add", f"{self.address(host, 6)}/64", "dev", "line", "nodad")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "line", "up")

    def _namespace(self, what: str) -> str:
        name = f"{self.name}-{what}"
        ip("netns", "add", name)
        self.made.append(name)
        return name

    def _remove(self) -> None:
        for name in self.made:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        left = [name for name in self.made if Path(f"/run/netns/{name}").exists()]
        assert not left, f"left behind: {left}"

    def address(self, host: int, kind: int = 4) -> str:
        return f"10.77.0.{host + 1}" if kind == 4 else f"fd77::{host + 1}"

    def place(self, kind: int = 4):
        """A rank is alone on its host, and shares a secret with the others."""
        env = {
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": self.address(0, kind),
            "FORESEE_PEERS_SECRET": SECRET,
        }
        return lambda rank: Place(("ip", "netns", "exec", f"{self.name}-{rank}"), env)

    def cut(self, host: int) -> None:
        """Pulls the cable: what is sent is lost, and nobody is told."""
        ip("-n", f"{self.name}-switch", "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        ip("-n", f"{self.name}-switch", "link", "set", f"port{host}", "up")

    def switch_off(self, host: int) -> None:
        """Switches the interface itself off, on the host: who sends there is told that there is no way."""
        ip("-n", f"{self.name}-{host}", "link", "set", "line", "down")
