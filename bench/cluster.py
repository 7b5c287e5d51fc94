"""A cluster in a box: hosts of a network (network.py) with SLURM on them and a MooseFS as shared storage, on this machine.

`Cluster.up` makes it and leaves it there for others to use (`Cluster.found`); `down` takes it away, also what a run that was
killed left. The head has slurmctld, and is where commands are started; each of the other hosts has a slurmd, a disk of its
own (`local`, a folder that others do not see) and a memory group that everything SLURM starts there is in. Each has the
shared storage at the same place (`shared`). SLURM's configuration, key and state are this cluster's alone: nothing of a
SLURM that the system has is used. A job finds its node-local folder in SLURM_TMPDIR, as on sites that set it; it is removed
when the job has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import moosefs
import network
from memory_group import MemoryGroup
from network import Host, SetupError

NAME = "foresee-cluster"
COMMANDS = {
    **moosefs.COMMANDS,
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "munged": "munge",
}
#: More CPUs than there are: ranks may outnumber cores here.
CPUS, MEMORY_MB = 8, 4096
READY_S_MAX = 30.0
# A job that ends, or is ended, gets so long before it is killed.
KILL_WAIT_S = 10
# A job that was requeued waits so long before it starts again: as long as its credentials hold, 120 s by default.
REQUEUE_WAIT_S = 10

PROLOG = """#!/bin/sh
mkdir -p -m 700 "{local}/job-$SLURM_JOB_ID"
"""
EPILOG = """#!/bin/sh
rm -rf "{local}/job-$SLURM_JOB_ID"
"""
TASK_PROLOG = """#!/bin/sh
echo "export SLURM_TMPDIR={local}/job-$SLURM_JOB_ID"
"""


def missing() -> str | None:
    """What keeps this machine from having one, and the remedy, in one line."""
    lacking = network.missing(COMMANDS)
    return lacking or moosefs.missing()


class Cluster:
    """All of it; made by `up`, or there already."""

    def __init__(self, lines: network.Network) -> None:
        self.lines = lines
        self.root = network.folder_of(NAME)
        self.local, self.shared = self.root / "local", self.root / "storage" / "mount"
        self.storage: Host
        self.head: Host
        self.hosts: list[Host] = []
        #: The head's and those of the hosts; only who made it has them.
        self.mounts: list[moosefs.Mount] = []

    # --- Its life ----------------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, hosts: int, mbit: int | None, host_mbit: int | None) -> Self:
        """Makes it, with lines of so many Mbit/s, or as fast as the machine can; whatever happens on the way is undone."""
        if (network.folder_of(NAME) / "up.json").exists():
            raise SetupError("there is a cluster: tools/cluster.sh down takes it away")
        with network.locked(NAME), contextlib.ExitStack() as stack:
            # Last of all, when nothing runs any more.
            stack.callback(remove_groups)
            cluster = cls(stack.enter_context(network.Network(NAME)))
            cluster._make_hosts(hosts)
            servers = stack.enter_context(moosefs.MooseFs(cluster.storage, cluster.root / "storage"))
            cluster.mounts = [servers.mount_on(host) for host in [cluster.head, *cluster.hosts]]
            cluster._start_slurm()
            cluster.slow_down(mbit, host_mbit)
            cluster._write_down()
            # From here on it stays.
            stack.pop_all()
        return cluster

    @classmethod
    def found(cls) -> Self:
        """The one that is up."""
        try:
            said = json.loads((network.folder_of(NAME) / "up.json").read_text())
        except FileNotFoundError:
            raise SetupError("there is no cluster: tools/cluster.sh up HOSTS makes one") from None
        lines = network.Network(NAME)
        cluster = cls(lines)
        cluster.storage, cluster.head, *cluster.hosts = (lines.found(*host) for host in said["hosts"])
        for host in lines.hosts:
            if not Path(f"/proc/{host.holder_pid}").exists():
                raise SetupError(f"{host.name} is gone: tools/cluster.sh down takes the rest away")
        return cluster

    def slow_down(self, mbit: int | None, host_mbit: int | None) -> None:
        """From now on the storage's line and those of hosts carry no more than this."""
        if mbit is not None:
            self.storage.slow_down(mbit)
        for host in self.hosts if host_mbit is not None else []:
            host.slow_down(host_mbit)

    def command(self, line: list[Any], folder: Path | None = None) -> list[str]:
        """A command on the head, where srun, sbatch and the like find this cluster."""
        at = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder or Path.cwd())]
        return self.head.command(["env", f"SLURM_CONF={self.conf}", *at, *line])

    @property
    def conf(self) -> Path:
        return self.root / "slurm" / "slurm.conf"

    def group(self, host: Host) -> MemoryGroup:
        """Of all that SLURM starts on a host."""
        return MemoryGroup(f"{NAME}-{host.what}")

    # --- Its parts ---------------------------------------------------------------------------------------------------

    def _make_hosts(self, number: int) -> None:
        self.root.mkdir(mode=0o755)
        for name in ("local", "slurm", "slurm/state", "log", "munge"):
            (self.root / name).mkdir(mode=0o700)
        self.storage, self.head = self.lines.host("storage"), self.lines.host("head")
        self.hosts = [self.lines.host(f"n{at}") for at in range(number)]
        names = "".join(f"{host.address} {host.what}\n" for host in self.lines.hosts)
        (self.root / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for host in self.lines.hosts:
            host.settle()
            host.run("mount", "--bind", self.root / "hosts", "/etc/hosts")
        for host in self.hosts:
            disk = self.root / f"disk-{host.what}"
            disk.mkdir(mode=0o700)
            host.run("mount", "--bind", disk, self.local)

    def _start_slurm(self) -> None:
        self._start_munge()
        self._write_scripts()
        self.conf.write_text("".join(f"{line}\n" for line in self._settings()))
        # A folder that hosts do not share: its files are named by job, not by host.
        (self.conf.parent / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.local}\n")
        (self.conf.parent / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._daemon(self.head, ["slurmctld", "-D", "-c", "-f", self.conf], "slurmctld")
        for host in self.hosts:
            group = self.group(host)
            group.make()
            self._daemon(
                host, group.command(["slurmd", "-D", "-N", host.what, "-f", str(self.conf)]), f"slurmd-{host.what}"
            )
        self._until_idle()

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        # Whoever is on a host of this machine may ask it who somebody is.
        folder.chmod(0o711)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self._daemon(self.head, ["munged", "--foreground", "--force", *options], "munged")
        network.until((folder / "socket").exists, lambda: self._last("munged"))

    def _write_scripts(self) -> None:
        for name, text in (("prolog", PROLOG), ("epilog", EPILOG), ("task-prolog", TASK_PROLOG)):
            path = self.root / "slurm" / name
            path.write_text(text.format(local=self.local))
            path.chmod(0o755)

    def _settings(self) -> Iterator[str]:
        slurm, log = self.root / "slurm", self.root / "log"
        yield "ClusterName=foresee"
        yield f"SlurmctldHost={self.head.what}({self.head.address})"
        yield from ("SlurmUser=root", "SlurmdUser=root")
        socket = self.root / "munge" / "socket"
        yield from ("AuthType=auth/munge", f"AuthInfo=socket={socket},cred_expire={REQUEUE_WAIT_S}")
        yield f"StateSaveLocation={slurm / 'state'}"
        yield f"SlurmdSpoolDir={slurm / 'spool-%n'}"
        yield from (f"SlurmctldPidFile={slurm / 'slurmctld.pid'}", f"SlurmdPidFile={slurm / 'slurmd-%n.pid'}")
        yield from (f"SlurmctldLogFile={log / 'slurmctld.log'}", f"SlurmdLogFile={log / 'slurmd-%n.log'}")
        yield from ("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none")
        yield from ("SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU_Memory")
        # More CPUs than there are.
        yield "SlurmdParameters=config_overrides"
        yield from ("ReturnToService=2", "JobRequeue=1", "MinJobAge=60", f"KillWait={KILL_WAIT_S}")
        # Quick answers: nobody else is here.
        yield "SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0"
        yield from ("SlurmctldTimeout=30", "SlurmdTimeout=30", "DefMemPerCPU=512")
        yield f"Prolog={slurm / 'prolog'}"
        yield f"Epilog={slurm / 'epilog'}"
        yield f"TaskProlog={slurm / 'task-prolog'}"
        for host in self.hosts:
            yield f"NodeName={host.what} NodeAddr={host.address} CPUs={CPUS} RealMemory={MEMORY_MB} State=UNKNOWN"
        yield "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"

    def _daemon(self, host: Host, line: list[Any], name: str) -> subprocess.Popen:
        with (self.root / "log" / f"{name}.out").open("wb") as output:
            return host.start(line, stdout=output, stderr=subprocess.STDOUT)

    def _until_idle(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            done = subprocess.run(
                self.command(["sinfo", "--noheader", "--Node", "--format=%T"], self.root),
                capture_output=True,
                text=True,
                check=False,
            )
            states = done.stdout.split()
            if done.returncode == 0 and len(states) == len(self.hosts) and set(states) == {"idle"}:
                return
            if time.monotonic() > deadline:
                raise SetupError(f"SLURM did not come up: {states or done.stderr.strip()}: {self._last('slurmctld')}")
            time.sleep(0.2)

    def _last(self, name: str) -> str:
        texts = [path.read_text(errors="replace").splitlines() for path in (self.root / "log").glob(f"{name}*")]
        return " | ".join(lines[-1] for lines in texts if lines) or f"{name} said nothing"

    def _write_down(self) -> None:
        said = {"hosts": [(host.what, host.holder_pid) for host in self.lines.hosts]}
        path = self.root / "up.json"
        path.with_suffix(".tmp").write_text(json.dumps(said))
        path.with_suffix(".tmp").rename(path)


def down() -> None:
    """Takes away whatever there is of a cluster, whoever made it."""
    with network.locked(NAME):
        remove_groups()


def remove_groups() -> None:
    """Memory groups of hosts, whose processes are gone by then."""
    for group in MemoryGroup.named(f"{NAME}-"):
        group.remove()


@contextlib.contextmanager
def lasting(hosts: int, mbit: int | None, host_mbit: int | None) -> Iterator[Cluster]:
    """A cluster from `with` to its end."""
    cluster = Cluster.up(hosts, mbit, host_mbit)
    try:
        yield cluster
    finally:
        down()


def environment() -> dict[str, str]:
    """For a command on the head: nothing of a SLURM job that this process may be in. What it starts shows whose it is,
    also where SLURM starts it."""
    common = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    return {**common, "FORESEE_NETWORK": NAME}
