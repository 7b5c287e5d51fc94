"""Where the ranks of a launch meet, to serve each other: in MPI where the program has it or the configuration wants it, else at
rank 0, which the launcher's store or its variables lead to.

Jobs meet there, and datasets before them: rank 0 lists, the others get its catalog. Nothing here is a collective: perhaps
only some ranks make a job or a dataset, and nobody may wait for the others without an end. (MPI's ranks meet in a step that
all of them take, but it is looked at, not waited for.) What a store of torch is asked, and what is done with MPI, is done in
short calls, between which Ctrl-C is heard; a store that fails is one that says nothing.
"""

import contextlib
import importlib
import os
import re
import secrets
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from . import _launch, _native
from ._errors import ConfigError, ForeseeError

#: All that is put into a launcher's store begins with this; another form of it gets another number.
_PREFIX = "foresee/peers/1/"
#: How long a store may take to answer.
_STORE_ANSWERS = timedelta(seconds=10)
#: How long to wait for what was not there when it was waited for once: programs start together, or not at all.
_SECOND_LOOK_S = 1.0
#: Between two looks, at first and at most.
_LOOK_S, _LOOK_MAX_S = 0.01, 0.2

#: Where launchers name no port: these are free on most hosts.
_PORTS_FROM, _PORTS = 20_000, 10_000
#: Rank 0 is not to be met.
_NOWHERE = "-"
#: torch's, where nobody names one.
_MASTER_PORT = 29_500

#: Rank, world, launch, whether a store leads to rank 0: there may be one only once torch.distributed is initialised, and
#: ranks that it leads to each other must not depend on what was found before; and how many of the ranks a process is.
_Key = tuple[int, int, str, bool, int]
#: The ways to the other ranks, whatever the number of jobs.
_meshes: dict[_Key, "_native.Mesh"] = {}
#: The same where ranks have met by MPI, by rank and world, and those who have not all come so far.
_by_mpi: dict[tuple[int, int], "_native.Mesh"] = {}
_seeking: dict[tuple[int, int], "_native.Mpi"] = {}
#: Those that were looked for in vain, by jobs and by datasets.
_in_vain: set[tuple[_Key, bool]] = set()
#: Ranks, worlds and launches that are a parent's: a child that was forked has no peers.
_of_parents: set[tuple[int, int, str]] = set()
_lock = threading.Lock()
_here = threading.local()


class _OwnStore:
    """What a launcher's store is to processes, for consumers of one process."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._told[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self._told for key in keys)

    def get(self, key: str) -> bytes:
        return self._told[key].encode()


_own_store = _OwnStore()


class Meeting(NamedTuple):
    """Where ranks meet."""

    host: str
    #: 0 on rank 0 only: any.
    port: int
    #: What only the ranks know; None: only loopback is listened at.
    secret: bytes | None
    launch: str


class _Seeker(NamedTuple):
    """Who looks for the other ranks."""

    settings: Mapping[str, Any]
    rank: int
    world_size: int
    launch: str
    #: How long rank 0 may take to come.
    patience_s: float
    #: Whether it says why there is no way to them: a job does.
    speaks: bool
    #: How many of the ranks each process is.
    consumers: int = 1

    @property
    def processes(self) -> int:
        return self.world_size // self.consumers

    def is_told(self) -> bool:
        """Whether the launcher says that this process is this rank, or has it among its consumers."""
        own = (self.rank // self.consumers, self.processes)
        return any((rank, world_size) == own for _, rank, world_size in _launch.told())

    def say_why(self, why: str) -> None:
        if self.speaks:
            _launch.say(f"rank {self.rank} of {self.world_size}: no peers: {_native.one_line(why)}")


def mesh(settings: Mapping[str, Any], rank: int, world_size: int, consumers: int = 1) -> "_native.Mesh | None":
    """A job's way to the other ranks of this launch; None where there is none, which is said once."""
    if settings["transport"] == "none" or not settings["keeps"]:
        return None
    launch = launch_id(os.environ)
    return _found(_Seeker(settings, rank, world_size, launch, settings["patience_s"], speaks=True, consumers=consumers))


def for_listing(config: Any, rank: int | None = None, world_size: int | None = None) -> "_native.Mesh | None":
    """The way to rank 0, which lists a dataset for all; None where this process lists by itself, which jobs give reasons for."""
    if getattr(_here, "alone", False):
        return None
    try:
        rank, world_size = _launch.find_rank(rank, world_size)
    except ConfigError:
        # Jobs say what is wrong.
        return None
    settings = _native.peer_settings(config)
    if world_size == 1 or settings["transport"] == "none":
        return None
    patience_s = min(settings["patience_s"], _native.LISTING_PATIENCE_S)
    return _found(_Seeker(settings, rank, world_size, launch_id(os.environ), patience_s, speaks=False))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Datasets that are made in here are listed by this process: it may be no rank itself, whatever it inherited."""
    before, _here.alone = getattr(_here, "alone", False), True
    try:
        yield
    finally:
        _here.alone = before


def _found(seeker: _Seeker) -> "_native.Mesh | None":
    if (seeker.rank, seeker.world_size, seeker.launch) in _of_parents:
        return None
    # Somebody else may be about to make it, and waits for rank 0: Ctrl-C is heard here meanwhile.
    lock = _lock
    while not lock.acquire(timeout=0.1):
        pass
    try:
        return _known_or_made(seeker)
    finally:
        lock.release()


def _known_or_made(seeker: _Seeker) -> "_native.Mesh | None":
    # MPI knows processes.
    may_be_mpi = seeker.settings["wants_mpi"] is not False and seeker.consumers == 1
    if may_be_mpi and (known := _by_mpi.get((seeker.rank, seeker.world_size))) is not None:
        return known
    own = seeker.is_told()
    key = (seeker.rank, seeker.world_size, seeker.launch, own and _has_store(), seeker.consumers)
    if (known := _meshes.get(key)) is not None:
        return known
    if (key, seeker.speaks) in _in_vain:
        seeker = seeker._replace(patience_s=_SECOND_LOOK_S)
    made = _made(seeker, own)
    if made is None:
        _in_vain.add((key, seeker.speaks))
    elif made not in _by_mpi.values():
        _meshes[key] = made
    return made


def _made(seeker: _Seeker, own: bool) -> "_native.Mesh | None":
    if seeker.processes == 1:
        return _by_store(seeker, _own_store)
    if not own and any(_launch.told()):
        # Another world than the launcher's: its store would lead to ranks of that one.
        return _by_variables(seeker, {})
    if seeker.settings["wants_mpi"] is not False and seeker.consumers == 1:
        try:
            if (found := _mpi(seeker)) is not None:
                return _met_by_mpi(seeker, found)
        except ForeseeError as wrong:
            seeker.say_why(str(wrong))
            return None
    store = _store() if own else None
    if store is None:
        return _by_variables(seeker, os.environ)
    try:
        return _by_store(seeker, store)
    except (RuntimeError, OSError, ValueError) as wrong:
        # torch's errors of stores are RuntimeErrors.
        seeker.say_why(f"the launcher's store: {wrong}")
        return None


def _mpi(seeker: _Seeker) -> "_native.Mpi | None":
    """This rank among those of MPI; None where it is not to be used."""
    key = (seeker.rank, seeker.world_size)
    if (known := _seeking.get(key)) is not None:
        return known
    settings = seeker.settings
    found = _native.Mpi.begin(*key, bool(settings["wants_mpi"]), settings["mpi_library"])
    if found is not None:
        _seeking[key] = found
    return found


def _met_by_mpi(seeker: _Seeker, found: "_native.Mpi") -> "_native.Mesh | None":
    """All ranks of MPI's world come, and rank 0 tells the others how they are served: by MPI, or over TCP where it cannot."""
    deadline = time.monotonic() + seeker.patience_s
    while not found.await_all(_LOOK_MAX_S):
        if time.monotonic() > deadline:
            seeker.say_why(
                f"not all ranks of MPI came within {seeker.settings['patience_s']:g} s; make the first dataset or job on all "
                'of them, or use TCP (peers.transport = "tcp")'
            )
            return None
    told, started = None, None
    if seeker.rank == 0:
        told, started = _told_by_mpi(seeker, found)
    while (heard := found.share(told, _LOOK_MAX_S)) is None:
        if time.monotonic() > deadline:
            seeker.say_why(f"rank 0 of MPI said nothing within {seeker.settings['patience_s']:g} s")
            return None
    host, port, secret, launch = heard.decode().split("\n")
    meeting = Meeting(host, int(port), seeker.settings["secret"] or secret.encode() or None, launch)
    if host == _NOWHERE:
        return None
    met = started if host else found.mesh(_arguments(seeker, meeting, "127.0.0.1"))
    if met is None:
        met = _started(seeker, meeting)
    if met is not None:
        key = (seeker.rank, seeker.world_size)
        _by_mpi[key] = met
        del _seeking[key]
    return met


def _told_by_mpi(seeker: _Seeker, found: "_native.Mpi") -> "tuple[bytes, _native.Mesh | None]":
    """What rank 0 tells the others, and its end of the way to them if that is TCP."""
    given = seeker.settings["secret"]
    # Only ranks of this launch hear it.
    secret = given or secrets.token_hex(32).encode()
    launch = f"{seeker.launch} {secrets.token_hex(8)}"
    host, port, started = "", 0, None
    # MPI sends what it is given as it is.
    if not found.carries or seeker.settings["encrypt"]:
        host = _own_host(seeker.world_size, None)
        started = _started(seeker, Meeting(host, seeker.settings["port"] or 0, secret, launch))
        host, port = (host, started.port) if started else (_NOWHERE, 0)
    told = "" if given else secret.decode()
    return "\n".join((host, str(port), told, launch)).encode(), started


def launch_id(environment: Mapping[str, str]) -> str:
    """What all ranks of a launch have in common, and those of another one, or of a restart, have not."""
    get = environment.get
    if run := get("TORCHELASTIC_RUN_ID"):
        return f"torchrun {run} {get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if get("SLURM_STEP_NUM_TASKS") and (job := get("SLURM_JOB_ID")):
        return f"slurm {job} {get('SLURM_STEP_ID', '')} {get('SLURM_RESTART_COUNT', '0')}"
    if address := get("MASTER_ADDR"):
        return f"{address}:{get('MASTER_PORT', '')}"
    return next((f"{name} {get(name)}" for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid") if get(name)), "")


def is_one_host(processes: int, environment: Mapping[str, str]) -> bool:
    """Whether all processes are known to be on one host."""
    on_host = _launch.find_place_on_host(environment)
    if on_host is not None:
        return on_host[1] == processes
    if environment.get("SLURM_STEP_NUM_NODES") == "1":
        return True
    return is_loopback(environment.get("MASTER_ADDR", ""))


def is_loopback(host: str) -> bool:
    """Whether a host is this one by its name."""
    return host in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None


def first_host(nodes: str) -> str:
    """The first of SLURM's list of hosts: ``r[1-2]n[03,07-09],gpu5`` begins with ``r1n03``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group() if first else "")


def meeting_of(
    settings: Mapping[str, Any], processes: int, launch: str, environment: Mapping[str, str]
) -> Meeting | None:
    """Where variables, and the configuration, say that ranks meet."""
    host, port = environment.get("MASTER_ADDR", ""), 0
    one_host = is_one_host(processes, environment)
    if host:
        given = environment.get("MASTER_PORT", "")
        torch_port = int(given) if given.isdecimal() else _MASTER_PORT
        # torch listens at the port itself: the one above is ours, or below where there is none above.
        port = torch_port - 1 if torch_port == 2**16 - 1 else torch_port + 1
    elif environment.get("SLURM_STEP_NUM_TASKS"):
        host = first_host(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", ""))
        if environment.get("SLURM_JOB_ID", "").isdecimal():
            port = _PORTS_FROM + int(environment["SLURM_JOB_ID"]) % _PORTS
    elif one_host and launch:
        port = _PORTS_FROM + zlib.crc32(launch.encode()) % _PORTS
    port = settings["port"] or port
    if one_host or not host:
        host = "::1" if host == "::1" else "127.0.0.1"
    if not 0 < port < 2**16:
        return None
    return Meeting(host, port, settings["secret"], launch)


def _by_variables(seeker: _Seeker, environment: Mapping[str, str]) -> "_native.Mesh | None":
    meeting = meeting_of(seeker.settings, seeker.processes, seeker.launch, environment)
    if meeting is None:
        return None
    return _started(seeker, meeting)


def _by_store(seeker: _Seeker, store: Any) -> "_native.Mesh | None":
    """Rank 0 listens and tells the others where; what it puts into the store is text."""
    given = seeker.settings["secret"]
    # A store outlives a restart of its ranks.
    key = f"{_PREFIX}{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{seeker.world_size}"
    if seeker.rank == 0:
        # Only ranks of this launch can look into its store.
        secret = given or secrets.token_hex(32).encode()
        launch = f"{seeker.launch} {secrets.token_hex(8)}"
        host = _own_host(seeker.processes, store)
        started = _started(seeker, Meeting(host, seeker.settings["port"] or 0, secret, launch))
        told = "" if given else secret.decode()
        store.set(key, "none" if started is None else "\n".join((host, str(started.port), told, launch)))
        return started
    found = _awaited(store, key, seeker.patience_s)
    if found is None:
        seeker.say_why(f"rank 0 did not come within {seeker.settings['patience_s']:g} s")
        return None
    if found == "none":
        return None
    host, port, told, launch = found.split("\n")
    return _started(seeker, Meeting(host, int(port), given or told.encode() or None, launch))


def _awaited(store: Any, key: str, patience_s: float) -> str | None:
    """What rank 0 put into the store, within a time. A call that waited in the store would be deaf to Ctrl-C, and keep
    others from the store."""
    deadline, pause_s = time.monotonic() + patience_s, _LOOK_S
    while not store.check([key]):
        if time.monotonic() > deadline:
            return None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_MAX_S)
    return str(store.get(key).decode())


def _started(seeker: _Seeker, meeting: Meeting) -> "_native.Mesh | None":
    settings = seeker.settings
    bind = settings["bind"] or _address_to_bind(meeting.host)
    if meeting.secret is None and not (is_loopback(meeting.host) and is_loopback(bind)):
        seeker.say_why(
            f"there is no secret, which ranks on several hosts need ({meeting.host}); set FORESEE_PEERS_SECRET to the "
            "same on all ranks, as `openssl rand -hex 32` makes one",
        )
        return None
    try:
        return _native.Mesh(_arguments(seeker, meeting, bind))
    except (ForeseeError, OSError) as wrong:
        seeker.say_why(str(wrong))
        return None


def _arguments(seeker: _Seeker, meeting: Meeting, bind: str) -> dict[str, Any]:
    """What a mesh is made of."""
    return {
        "rank": seeker.rank,
        "world": seeker.world_size,
        "host": meeting.host,
        "port": meeting.port,
        "bind": bind,
        "secret": meeting.secret,
        "launch": meeting.launch,
        "encrypt": seeker.settings["encrypt"],
        "sample_bytes_max": seeker.settings["sample_bytes_max"],
    }


def _address_to_bind(host: str) -> str:
    """Loopback for ranks of one host, else all addresses of the family that rank 0 is reached by."""
    if is_loopback(host):
        return "::1" if host == "::1" else "127.0.0.1"
    families = set()
    with contextlib.suppress(OSError):
        families = {found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return "::" if families == {socket.AF_INET6} else "0.0.0.0"


def _own_host(processes: int, store: Any) -> str:
    """What others reach rank 0 by: what the launcher calls it where that is this host, else its name."""
    inner = store
    while hasattr(inner, "underlying_store"):
        inner = inner.underlying_store
    host = str(os.environ.get("MASTER_ADDR") or getattr(inner, "host", ""))
    if processes == 1 or is_one_host(processes, os.environ) or is_loopback(host):
        return "::1" if host == "::1" else "127.0.0.1"
    return host if host and _is_here(host) else socket.getfqdn()


def _is_here(host: str) -> bool:
    """Whether an address is one of this host: only those can be bound."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as trial:
                trial.bind(address)
                return True
    return False


def _has_store() -> bool:
    """Whether there should be a store that all ranks have."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available():
        return False
    return _agents_listen_at() is not None or bool(distributed.is_initialized())


def _store() -> Any:
    """The launcher's store that all ranks have: of torchrun's agents, or of an initialised torch.distributed."""
    # Never imported for this.
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available():
        return None
    of_agents = _store_of_agents(distributed)
    if of_agents is not None:
        return of_agents
    if not distributed.is_initialized():
        return None
    inner = importlib.import_module("torch.distributed.distributed_c10d")
    default: Callable[[], Any] | None = getattr(inner, "_get_default_store", None)
    return None if default is None else default()


def _store_of_agents(distributed: Any) -> Any:
    """A line of our own to the store of torchrun's agents: others may be in the middle of a call on theirs."""
    if (place := _agents_listen_at()) is None:
        return None
    with contextlib.suppress(RuntimeError):
        return distributed.TCPStore(*place, is_master=False, wait_for_workers=False, timeout=_STORE_ANSWERS)
    return None


def _agents_listen_at() -> tuple[str, int] | None:
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not address or not port.isdecimal():
        return None
    return address, int(port)


def _leave_to_parent() -> None:
    global _lock
    # It may be held by a thread that is not here.
    _lock = threading.Lock()
    _of_parents.update(key[:3] for key in _meshes)
    launch = launch_id(os.environ)
    _of_parents.update((*key, launch) for key in (*_by_mpi, *_seeking))
    _of_parents.update(key[:3] for key, _ in _in_vain)
    _meshes.clear()
    _by_mpi.clear()
    _seeking.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
