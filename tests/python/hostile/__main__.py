"""Random trouble for jobs: every sample that one delivers is the file's content at some moment of that job, or an error
names the file.

A case is a dataset, its caches and a few jobs one after the other, all drawn from a seed. Source files are changed between
the jobs and during them, bytes of caches are damaged, jobs are killed and interrupted. Each job runs in a process of its
own, which writes down what it got and when; the process that changes the files judges it by its journal. Cases run side
by side, because many of them rest: what was written less than two seconds ago is trusted by nobody, and it is what is
trusted that can be wrong.

    python tests/python/hostile --cases 2000 --seed 7
    python tests/python/hostile --seed 7 --case 4711        # again, as far as timing lets it be the same
"""

import argparse
import collections
import faulthandler
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from files import Tree, damage
from judge import Judge
from trainer import Plan, Trainer, plan_job, plan_tiers

# Longer than a file's times have to be old to be trusted.
REST_S = 2.1
# Nothing here takes a second; a machine with much else to do may take many.
HANG_S = 90.0


@dataclass
class Case:
    """One dataset, or two that look alike, with caches and jobs."""

    folder: Path
    rng: random.Random
    with_interrupts: bool
    wrong: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def run(self) -> None:
        os.environ["XDG_CACHE_HOME"] = str(self.folder / "user")
        self.caches = [self.folder / "tier", self.folder / "user"]
        alike = self.rng.random()
        self.trees = [
            Tree(self.folder / name, random.Random(alike), first_version)
            for name, first_version in [("one", 0), ("other", 2**16 + 128)][: self.rng.choice([1, 1, 1, 2])]
        ]
        self.tree = self.trees[0]
        kind = self.rng.choice(["folder", "folder", "files", "manifest"])
        self.say(f"{kind} with {len(self.tree.paths)} files")
        tiers = plan_tiers(self.rng, self.caches[0], self.tree.paths)
        for number in range(self.rng.randint(2, 4)):
            if self.rng.random() < 0.2:
                tiers = plan_tiers(self.rng, self.caches[0], self.tree.paths)
            if number > 0:
                self.between()
                self.tree = self.rng.choice(self.trees)
            if self.rng.random() < 0.6:
                self.say("rest")
                time.sleep(REST_S)
            self.run_job(number, kind, tiers)
            if self.wrong:
                return

    def say(self, what: str) -> None:
        self.history.append(f"{time.monotonic():.4f} {what}")

    def between(self) -> None:
        for _ in range(self.rng.choice([0, 1, 1, 2, 5])):
            self.mutate()
        for _ in range(self.rng.choice([0, 0, 0, 1, 3])):
            self.damage()
        if self.rng.random() < 0.2:
            self.turn_back()

    def turn_back(self) -> None:
        """Puts caches back as they were when this was done last, as from a backup."""
        before = self.folder / "before"
        now = self.folder / "now"
        for cache in self.caches:
            if cache.exists():
                shutil.copytree(cache, now / cache.name)
            if (before / cache.name).exists():
                shutil.rmtree(cache, ignore_errors=True)
                (before / cache.name).rename(cache)
        shutil.rmtree(before, ignore_errors=True)
        if now.exists():
            now.rename(before)
        for tree in self.trees:
            tree.overtaken.clear()
        self.say("caches put back")

    def mutate(self) -> None:
        self.tree.rng = self.rng
        self.say(self.tree.mutate())
        self.counts["changes"] += 1

    def damage(self) -> None:
        self.say(f"damage: {damage(self.caches, self.rng)}")
        self.counts["damages"] += 1

    def run_job(self, number: int, kind: str, tiers: list[dict[str, Any]]) -> None:
        plan = plan_job(self.rng, kind, tiers, self.tree.paths)
        if not self.with_interrupts:
            plan = replace(plan, interrupt_s=None)
        self.say(f"job {number} on {self.tree.root.parent.name}: {plan}")
        # Labels change from job to job, their length does not.
        listed = [(path, self.rng.randrange(100, 1000)) for path in self.tree.paths]
        if kind == "manifest":
            self.write_manifest(listed)
        # How many changes a job lives to see must not matter to what is drawn after it.
        after = self.rng
        self.rng = random.Random(after.random())
        damages = self.counts["damages"]
        since_ns = time.monotonic_ns()
        trainer = Trainer(plan, self.tree.root, listed, self.folder / f"job{number}")
        child = os.fork() or in_child(trainer)
        status, killed = self.accompany(child, plan)
        self.rng = after
        judge = Judge(self.tree, trainer, since_ns, self.counts["damages"] > damages)
        judge.judge()
        self.counts += judge.counts
        self.wrong += judge.wrong
        errors = trainer.stderr.read_text()
        if (status != 0 and not killed) or "panicked" in errors or "Traceback" in errors:
            self.wrong.append(f"the job's process ended with {status}: {errors[-2000:]}")

    def write_manifest(self, listed: list[tuple[str, int]]) -> None:
        manifest = self.tree.root.with_name("manifest.tsv")
        lines = [f"{Path(path).relative_to(manifest.parent)}\t{label}\n" for path, label in listed]
        manifest.write_text("".join(lines))
        if self.rng.random() < 0.5:
            os.utime(manifest, ns=(0, 0))

    def accompany(self, child: int, plan: Plan) -> tuple[int, bool]:
        """Makes trouble until the job ends."""
        began = time.monotonic()
        changes = plan.trouble
        next_at = began + self.rng.uniform(0, 0.06)
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            now = time.monotonic()
            if ended:
                return os.waitstatus_to_exitcode(status), False
            if plan.kill_after_s is not None and now > began + plan.kill_after_s:
                self.say("kill")
                self.counts["kills"] += 1
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return -signal.SIGKILL, True
            if now > began + HANG_S:
                self.wrong.append("the job hangs")
                os.kill(child, signal.SIGABRT)
                os.waitpid(child, 0)
                return -signal.SIGABRT, True
            if changes and now > next_at:
                self.damage() if self.rng.random() < 0.2 else self.mutate()
                next_at = now + self.rng.expovariate(1 / plan.trouble_every_s)
                changes -= 1
            time.sleep(0.0003)


def in_child(trainer: Trainer) -> NoReturn:
    try:
        os.dup2(os.open(trainer.stderr, os.O_WRONLY), 2)
        faulthandler.enable()
        trainer.run()
        os._exit(0)
    except BaseException:  # noqa: BLE001  whatever it was, the case is told
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


# In the process that runs cases.


def run_case(folder: Path, seed: int, number: int, with_interrupts: bool) -> NoReturn:
    """Writes down how a case went, and ends the process."""
    case = Case(folder, random.Random(f"{seed}/{number}"), with_interrupts)
    try:
        case.run()
    except BaseException:  # noqa: BLE001  whatever it was, it is shown with the case's history
        case.wrong.append(traceback.format_exc())
    (folder / "result.json").write_text(
        json.dumps({"wrong": case.wrong, "history": case.history, "counts": case.counts})
    )
    os._exit(0)


@dataclass
class Lanes:
    """Runs cases side by side, each in a process and a folder of its own."""

    folder: Path
    options: argparse.Namespace
    running: dict[int, int] = field(default_factory=dict)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: list[int] = field(default_factory=list)

    def start(self, number: int) -> None:
        folder = self.folder / f"{number}"
        folder.mkdir()
        child = os.fork() or run_case(folder, self.options.seed, number, not self.options.no_interrupts)
        self.running[child] = number

    def finish(self) -> None:
        child, _ = os.wait()
        number = self.running.pop(child)
        folder = self.folder / f"{number}"
        result = json.loads((folder / "result.json").read_text())
        self.counts += collections.Counter(cases=1, **result["counts"])
        if result["wrong"]:
            self.failed.append(number)
            print(
                f"WRONG: --seed {self.options.seed} --case {number}",
                *result["history"],
                *result["wrong"][:20],
                sep="\n  ",
            )
            sys.stdout.flush()
        if not (result["wrong"] and self.options.keep):
            shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100, help="how many; 100")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after so many")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 10**6, help="of all cases; else one from the clock"
    )
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--lanes", type=int, default=32, help="cases side by side; 32")
    parser.add_argument("--no-interrupts", action="store_true", help="without exceptions from signal handlers")
    parser.add_argument("--keep", action="store_true", help="keep folders of cases that failed, and say where")
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("FORESEE_")]:
        del os.environ[name]
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="hostile-")).resolve()
    lanes = Lanes(folder, options)
    print(f"seed {options.seed}, in {folder}", flush=True)
    for number in [options.case] if options.case is not None else range(options.cases):
        if time.monotonic() > began + options.seconds:
            break
        if len(lanes.running) == options.lanes:
            lanes.finish()
        lanes.start(number)
    while lanes.running:
        lanes.finish()
    if not (lanes.failed and options.keep):
        shutil.rmtree(folder)
    print(", ".join(f"{count} {name}" for name, count in sorted(lanes.counts.items())))
    print(f"seed {options.seed}: {len(lanes.failed)} wrong of {lanes.counts['cases']} cases: {lanes.failed}")
    return 1 if lanes.failed else 0


if __name__ == "__main__":
    sys.exit(main())
