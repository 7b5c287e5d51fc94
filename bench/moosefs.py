"""A private MooseFS on a host of a network (network.py): master and chunkserver there, mounts on other hosts.

What goes between the servers and a mount passes the servers' line, so reads are as slow as that. Nothing of the system's own
MooseFS, if it has one, is used or changed: ports, folders and configuration are this one's. Each host has a mount of its
own, and so a page cache of its own: what one host has read, no other finds there. All is gone with the network.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Self

import network
from network import Host, SetupError

COMMANDS = {
    "mfsmaster": "moosefs-master",
    "mfschunkserver": "moosefs-chunkserver",
    "mfsmount": "moosefs-client",
    **network.COMMANDS,
}
# What a master that has never run finds in place of its metadata.
EMPTY_METADATA = b"MFSM NEW"


def missing() -> str | None:
    """What keeps this machine from having one, and the remedy, in one line."""
    lacking = network.missing(COMMANDS)
    if lacking is None and not Path("/dev/fuse").exists():
        return "needs FUSE: there is no /dev/fuse"
    return lacking


class Mount:
    """A MooseFS on a host, at a place that is the same on all hosts."""

    def __init__(self, host: Host, server: str, point: Path, log: Path) -> None:
        self.host, self.point = host, point
        self._server, self._log = server, log
        self._process: subprocess.Popen | None = None

    @property
    def view(self) -> Path:
        """The same, as it is reached from outside."""
        return self.host.view(self.point)

    def mount(self) -> None:
        """With all of a user's defaults. Nothing is cached in the beginning, neither by the kernel nor by the mount."""
        line = ["mfsmount", "-f", "-H", self._server, "-o", "mfscfgfile=/dev/null", self.point]
        with self._log.open("wb") as output:
            self._process = self.host.start(line, stdout=output, stderr=subprocess.STDOUT)

        def otherwise() -> str:
            return f"MooseFS: no mount on {self.host.name}: {_last_line(self._log)}"

        network.until(lambda: os.path.ismount(self.view), otherwise, self._process)
        network.until(lambda: os.statvfs(self.view).f_bavail > 0, otherwise, self._process)

    def unmount(self) -> None:
        """Also forgets whatever was cached of it."""
        if self._process is None:
            return
        # Lazily: a process that was killed may still be on its way out of it.
        self.host.run("umount", "--lazy", self.point)
        network.end(self._process)
        self._process = None

    def remount(self) -> None:
        self.unmount()
        self.mount()


class MooseFs:
    """The servers, from `with` to its end, on one host; their files are in a folder that this makes."""

    def __init__(self, host: Host, root: Path) -> None:
        self.host, self.root = host, root
        self.mount_point = root / "mount"
        self._servers: list[subprocess.Popen] = []

    def __enter__(self) -> Self:
        try:
            self._make_folders()
            self._serve("mfsmaster", "master.cfg")
            self._serve("mfschunkserver", "chunkserver.cfg")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # At once: nobody needs what they have any more.
        for server in self._servers:
            server.kill()
            server.wait()
        self._servers = []

    def mount_on(self, host: Host) -> Mount:
        """A mount on a host that is settled."""
        mount = Mount(host, self.host.address, self.mount_point, self.root / f"mount-{host.what}.log")
        mount.mount()
        # There is but one server, so there can be but one copy.
        host.run("mfssetgoal", "1", self.mount_point)
        return mount

    def _make_folders(self) -> None:
        # Fails if there is one: what a run before left was removed, so it would be somebody else's.
        self.root.mkdir(mode=0o700)
        for name in ["master", "chunkserver", "chunks", "mount"]:
            (self.root / name).mkdir()
        (self.root / "master" / "metadata.mfs").write_bytes(EMPTY_METADATA)
        self._write("exports.cfg", "* / rw,alldirs,admin,maproot=0:0")
        self._write("topology.cfg", "")
        self._write("disks.cfg", f"{self.root / 'chunks'}")
        self._write(
            "master.cfg",
            *self._common("master"),
            f"EXPORTS_FILENAME = {self.root / 'exports.cfg'}",
            f"TOPOLOGY_FILENAME = {self.root / 'topology.cfg'}",
        )
        self._write(
            "chunkserver.cfg",
            *self._common("chunkserver"),
            f"HDD_CONF_FILENAME = {self.root / 'disks.cfg'}",
            # The chunkserver refuses 127.0.0.1.
            f"MASTER_HOST = {self.host.address}",
            "MASTER_RECONNECTION_DELAY = 1",
        )

    def _common(self, data: str) -> list[str]:
        return ["WORKING_USER = root", "WORKING_GROUP = root", f"DATA_PATH = {self.root / data}"]

    def _write(self, name: str, *lines: str) -> None:
        (self.root / name).write_text("".join(f"{line}\n" for line in lines))

    def _serve(self, command: str, config: str) -> None:
        log = self.root / f"{command}.log"
        with log.open("wb") as output:
            server = self.host.start(
                [command, "-f", "-c", self.root / config, "start"], stdout=output, stderr=subprocess.STDOUT
            )
        self._servers.append(server)
        ready = "initialized properly"
        network.until(
            lambda: ready in log.read_text(errors="replace"),
            lambda: f"MooseFS: {command} did not start: {_last_line(log)}",
            server,
        )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return f"{log.stem}: {lines[-1] if lines else 'silent'}"


__all__ = ["MooseFs", "Mount", "SetupError", "missing"]
