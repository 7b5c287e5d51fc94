"""A job as a case plans it, and what runs it in a process of its own and writes down, line by line, what it got."""

import collections
import json
import logging
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import foresee
from files import digest

POLICIES = ["foresee", "foresee", "nopfs", "lobster", "monarch", "staging-buffer"]


@dataclass(frozen=True)
class Plan:
    """What a job is told, and what is done to it."""

    kind: str
    arguments: dict[str, Any]
    tiers: list[dict[str, Any]]
    jobs: int
    single: bool
    pause_s: float
    closes: bool
    trouble: int
    trouble_every_s: float
    kill_after_s: float | None
    interrupt_s: float | None


def plan_tiers(rng: random.Random, cache: Path, paths: list[str]) -> list[dict[str, Any]]:
    """Tiers that hold a part of a dataset, or more than all of it."""
    total = sum(Path(path).stat().st_size for path in paths)
    memory = {"kind": "memory"}
    disk = {"kind": "disk", "path": str(cache), "free_space_floor": 0}
    kinds = rng.choice([[], [memory], [disk], [disk], [disk], [memory, disk]])
    return [{**tier, "capacity": 1 + int(total * rng.choice([0.2, 0.5, 1, 2]))} for tier in kinds]


def plan_job(rng: random.Random, kind: str, tiers: list[dict[str, Any]], paths: list[str]) -> Plan:
    """A job on the dataset as it is now."""
    epochs = rng.randint(1, 4)
    single = kind != "folder" and rng.random() < 0.5
    orders = [rng.sample(range(len(paths)), len(paths)) for _ in range(epochs)]
    arguments = {
        "batch_size": rng.randint(1, 6),
        "epochs": epochs,
        "seed": rng.randrange(1000),
        # Single samples come without their number: there the order has to be known.
        "shuffle": rng.choice(["sequential", orders]) if single else rng.choice(["torch", "feistel"]),
        "policy": rng.choice(POLICIES),
        "on_error": "raise" if single else rng.choice(["raise", "raise", "skip"]),
        "threads": rng.choice([None, 1, 2, 4]),
    }
    return Plan(
        kind,
        arguments,
        tiers,
        rng.choice([1, 1, 1, 2]),
        single,
        pause_s=rng.choice([0, 0.001, 0.005]),
        closes=rng.random() < 0.8,
        trouble=rng.choice([0, 0, rng.randint(1, 12), rng.randint(1, 60)]),
        trouble_every_s=rng.choice([0.0005, 0.008]),
        kill_after_s=rng.uniform(0, 0.15) if rng.random() < 0.15 else None,
        interrupt_s=rng.uniform(0.0005, 0.01) if rng.random() < 0.2 else None,
    )


class Interrupted(Exception):
    """What a signal handler raises."""


class Trainer:
    """Runs a job and writes down, line by line, what it got."""

    def __init__(self, plan: Plan, root: Path, listed: list[tuple[str, int]], folder: Path) -> None:
        self.plan = plan
        self.root = root
        self.listed = listed
        self.log = folder / "log"
        self.stderr = folder / "stderr"
        self.seen = folder / "seen"
        self.armed = False
        self.seen.mkdir(parents=True)
        self.log.touch()
        self.stderr.touch()

    def say(self, what: str, **more: Any) -> None:
        line = json.dumps({"what": what, "at_ns": time.monotonic_ns(), **more})
        with self.log.open("a") as log:
            log.write(line + "\n")

    def run(self) -> None:
        try:
            dataset = self.dataset()
            classes = dataset.classes if isinstance(dataset, foresee.ImageFolder) else []
            labels, sizes = dataset.labels.tolist(), dataset.sizes.tolist()
            self.say("listed", paths=dataset.paths(), labels=labels, sizes=sizes, classes=classes)
            still_open = []
            for _ in range(self.plan.jobs):
                self.say("job")
                job = foresee.Job(dataset, **self.plan.arguments, config={"tier": self.plan.tiers})
                given_up = self.train(job)
                origins = {name: origin["samples"] for name, origin in job.stats()["origins"].items()}
                self.say("ended", origins=origins, given_up=given_up)
                if self.plan.closes:
                    job.close()
                still_open.append(job)
        except foresee.ForeseeError as error:
            self.say("refused", kind=type(error).__name__, text=str(error))

    def dataset(self) -> foresee.Dataset:
        if self.plan.kind == "folder":
            return foresee.ImageFolder(self.root)
        if self.plan.kind == "files":
            return foresee.Files([path for path, _ in self.listed], [label for _, label in self.listed])
        return foresee.Files.from_manifest(self.root.with_name("manifest.tsv"))

    def train(self, job: foresee.Job) -> bool:
        """Takes all there is; returns whether it gave up because of a sample."""
        if self.plan.interrupt_s is not None:
            # What a handler raises while a warning is logged ends there.
            logging.raiseExceptions = False
            signal.signal(signal.SIGALRM, self.interrupt)
            signal.setitimer(signal.ITIMER_REAL, self.plan.interrupt_s, self.plan.interrupt_s)
        failed: collections.Counter[int] = collections.Counter()
        more = True
        while more and 3 not in failed.values():
            try:
                more = self.take(job)
            except Interrupted:
                self.say("interrupted")
            except foresee.SampleError as error:
                self.say("failed", sample=error.sample, path=error.path, text=str(error))
                failed[error.sample] += 1
            time.sleep(self.plan.pause_s)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return more

    def take(self, job: foresee.Job) -> bool:
        self.armed = True
        try:
            for got in iter(job.get, None) if self.plan.single else job:
                # The interpreter looks after signals at calls and at the ends of loops: what is here was handed over.
                self.armed = False
                self.note(got, job)
                return True
            return False
        finally:
            self.armed = False

    def note(self, got: Any, job: foresee.Job) -> None:
        if isinstance(got, foresee.Batch):
            where = {"epoch": got.epoch, "step": got.step, "position": job.position}
            numbers = {"labels": got.labels.tolist(), "indices": got.indices.tolist()}
            self.say("batch", got=[self.keep(data) for data in got.data], **numbers, **where)
        else:
            self.say("sample", got=[self.keep(got[0])], labels=[got[1]])

    def keep(self, data: Any) -> str:
        """For the judge to look at; returns its name."""
        name = digest(memoryview(data))
        if not (self.seen / name).exists():
            (self.seen / name).write_bytes(data)
        return name

    def interrupt(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise Interrupted
