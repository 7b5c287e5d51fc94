"""Which rank this process is, of how many, and a seed that all ranks find by themselves.

An explicit argument holds first, then an initialised torch.distributed, then what launchers leave in the environment. A
world that nobody started is a world of one: SLURM tells every shell of a job how many tasks it may start, but only srun
tells a process that it is one of them.
"""

import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import _check
from ._errors import ConfigError

_log = logging.getLogger("foresee")

#: Rank and number of ranks, by launcher: torchrun, Open MPI, PMI and PMIx, srun. SLURM_NTASKS is in batch scripts too, and so
#: are SLURM_PROCID and, by version, SLURM_STEP_ID; SLURM_STEP_NUM_TASKS is where srun started the process, only.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

#: The place among the ranks of the host, and how many these are: torchrun, Open MPI, Intel MPI and MPICH, PMIx.
_ON_HOST = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE"),
)

#: What all ranks of one launch have in common, and other launches mostly have not.
_LAUNCHES = (
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ("MASTER_ADDR", "MASTER_PORT"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("SLURM_JOB_ID",),
)

_WORLD_MAX = 2**32 - 1

#: What was said already: ranks are looked up more than once.
_said: set[str] = set()


class Consumer(NamedTuple):
    """Which of a process's consumers: each is a rank, those of the first process first."""

    number: int = 0
    of: int = 1

    def among(self, process: int, processes: int) -> tuple[int, int]:
        """The rank and the number of ranks, if this is one of so many processes."""
        return process * self.of + self.number, processes * self.of

    def among_told(self, told: tuple[int, int] | None, processes: int) -> tuple[int, int] | None:
        """The place among the ranks of the host, and how many these are, from the same of processes."""
        if told is None and self.of > 1 and processes == 1:
            told = 0, 1
        return None if told is None else self.among(*told)


def find_rank(rank: Any, world_size: Any, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank and the number of ranks; of processes, if each has several consumers."""
    if rank is None and world_size is None:
        return _found(environment)
    if world_size is None:
        raise ConfigError(f"rank={_check.shown(rank)}: give world_size too")
    if rank is None:
        raise ConfigError(f"world_size={_check.shown(world_size)}: give rank too")
    return _checked(rank, world_size, "rank", "world_size")


def find_place_on_host(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The place of this process among those of its launch on this host, and how many they are; None if nobody says so.

    They share memory, cores and disks whatever their jobs are: a job of one rank, for validation say, has it as well.
    """
    told = [*_of_variables(environment), *_of_srun(environment)]
    return next(((place, number) for place, number in told if 0 <= place < number <= _WORLD_MAX), None)


def told(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, int, int]]:
    """Who says which rank of how many this process is, the first that holds first."""
    yield from _of_torch()
    yield from _of_launchers(environment)


def make_seed(world_size: int, environment: Mapping[str, str] = os.environ) -> int:
    """A seed that nobody gave: the same on all ranks of a launch, and another one where launches differ."""
    if world_size == 1:
        return int.from_bytes(os.urandom(4), "little")
    for names in _LAUNCHES:
        if all(environment.get(name) for name in names):
            text = "\0".join(environment[name] for name in names)
            return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    raise ConfigError(
        f"seed=None: {world_size} ranks have nothing to agree on a seed by; give all of them the same seed, or start "
        "them with torchrun, mpirun or srun"
    )


def _found(environment: Mapping[str, str]) -> tuple[int, int]:
    """What the first that knows says, and a line of the log if others say something else."""
    all_told = list(told(environment))
    if not all_told:
        tasks = environment.get("SLURM_NTASKS", "1")
        if environment.get("SLURM_PROCID") and tasks != "1":
            say(f"SLURM_NTASKS={tasks}, but srun did not start this process: it is rank 0 of 1; srun starts all tasks")
        return 0, 1
    who, rank, world_size = all_told[0]
    for other, its_rank, its_world in all_told[1:]:
        # One launcher may start another: torchrun on each of srun's nodes.
        if world_size % its_world != 0 or (world_size == its_world and rank != its_rank):
            say(
                f"rank {rank} of {world_size} by {who}, {its_rank} of {its_world} by {other}: the first holds; give rank "
                "and world_size if it is wrong"
            )
    return rank, world_size


def _of_torch() -> Iterator[tuple[str, int, int]]:
    # Never imported for this: who has not imported it has not initialised it.
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield "torch.distributed", distributed.get_rank(), distributed.get_world_size()


def _of_launchers(environment: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    for rank, world_size in _VARIABLES:
        if environment.get(rank) and environment.get(world_size):
            numbers = _checked(_number(environment, rank), _number(environment, world_size), rank, world_size)
            yield f"{rank} and {world_size}", *numbers


def _of_variables(environment: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    for place, number in _ON_HOST:
        if environment.get(place, "").isdecimal() and environment.get(number, "").isdecimal():
            yield int(environment[place]), int(environment[number])


def _of_srun(environment: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """srun tells how many tasks each of its hosts has, in the order of hosts: ``4(x2),3``."""
    place, host = environment.get("SLURM_LOCALID", ""), environment.get("SLURM_NODEID", "")
    if not (environment.get("SLURM_STEP_NUM_TASKS") and place.isdecimal() and host.isdecimal()):
        return
    first = 0
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        first += int(times or 1)
        if int(host) < first:
            yield int(place), int(number)
            return


def say(line: str) -> None:
    """A line of the log, once."""
    if line not in _said:
        _said.add(line)
        _log.warning("%s", line)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        said = f"{name}={_check.shown(environment[name])}: not a whole number; unset it, or give rank and world_size"
        raise ConfigError(said) from None


def _checked(rank: Any, world_size: Any, rank_name: str, world_name: str) -> tuple[int, int]:
    world_size = _check.whole(world_name, world_size, 1, _WORLD_MAX)
    rank = _check.whole(rank_name, rank, 0, _WORLD_MAX)
    if rank >= world_size:
        raise ConfigError(f"{rank_name}={rank}: {world_name} is {world_size}; give 0 to {world_size - 1}")
    return rank, world_size
