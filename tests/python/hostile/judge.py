"""Compares what a job wrote down with what its files held."""

import collections
import itertools
import json
from typing import Any

from files import Held, State, Tree, described, in_order
from trainer import Trainer


class Judge:
    """Compares what a job wrote down with what its files held."""

    def __init__(self, tree: Tree, trainer: Trainer, since_ns: int, damaged: bool) -> None:
        self.tree = tree
        self.plan = trainer.plan
        self.expected = trainer.listed
        self.log = trainer.log
        self.seen = trainer.seen
        self.damaged = damaged
        self.listing_ns = since_ns
        self.since_ns = since_ns
        self.wrong: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.paths: list[str] = []
        self.labels: list[int] = []
        self.sizes: list[int] = []
        self.overtaken: set[Held] = set()
        self.epochs: list[list[int]] = []
        self.steps = 0

    def judge(self) -> None:
        for text in self.log.read_text().splitlines(keepends=True):
            # One that was killed may have left half a line.
            if text.endswith("\n"):
                line = json.loads(text)
                getattr(self, "on_" + line["what"])(line)
        self.tree.overtaken |= self.overtaken

    def held(self, path: str, since_ns: int, until_ns: int) -> list[Held | None]:
        return [state.held.get(path) for state in self.tree.during(since_ns, until_ns)]

    def is_fair(self, path: str, got: str, until_ns: int) -> bool:
        """Whether a file that the path named held this, under this name or, once it was open, under another."""
        states = self.tree.during(self.since_ns, until_ns)
        files = {state.held[path].file for state in states if path in state.held}
        if any(got == held.digest for state in states for held in state.held.values() if held.file in files):
            return True
        data = (self.seen / got).read_bytes()
        writes = [state.write for state in states if state.write is not None]
        return any(write.could_show(data) for write in writes if write.file in files)

    def has_changed(self, path: str, until_ns: int) -> bool:
        """Whether there was anything about a file that an error could be about."""
        held = self.held(path, self.listing_ns, until_ns)
        return None in held or len(set(held)) > 1 or self.is_overtaken(path)

    def is_overtaken(self, path: str) -> bool:
        """Whether a saved catalog still had an earlier size. That may be found too late to list again, but only once."""
        held = self.tree.journal[-1].held.get(path)
        if held is None or held.size == self.sizes[self.paths.index(path)] or held in self.tree.overtaken:
            return False
        self.overtaken.add(held)
        return True

    def on_listed(self, line: dict[str, Any]) -> None:
        self.paths = line["paths"]
        self.labels = line["labels"]
        self.sizes = line["sizes"]
        states = self.tree.during(self.since_ns, line["at_ns"])
        if self.plan.kind == "folder":
            self.judge_listing(line, states)
        elif list(zip(self.paths, self.labels, strict=True)) != self.expected:
            self.wrong.append(f"listed {self.paths} {self.labels}, expected {self.expected}")

    def judge_listing(self, line: dict[str, Any], states: list[State]) -> None:
        labels = [line["classes"].index(path.split("/")[-2]) for path in self.paths]
        if labels != self.labels:
            self.wrong.append(f"labels {self.labels} of {self.paths} in {line['classes']}")
        if len(states) == 1:
            now = in_order(states[0].held)
            if self.paths != now:
                self.wrong.append(f"listed {self.paths}, there were {now}")
        unknown = [path for path in self.paths if not any(path in state.held for state in states)]
        if unknown:
            self.wrong.append(f"listed {unknown}, which were not there")

    def on_job(self, line: dict[str, Any]) -> None:
        self.counts["jobs"] += 1
        # The first one of a dataset begins with its listing.
        self.since_ns = line["at_ns"] if self.epochs else self.listing_ns
        self.epochs = [[] for _ in range(self.plan.arguments["epochs"])]
        self.steps = 0

    def on_batch(self, line: dict[str, Any]) -> None:
        per_epoch = -(-len(self.paths) // self.plan.arguments["batch_size"])
        if (line["epoch"], line["step"]) != divmod(self.steps, per_epoch):
            self.wrong.append(
                f"batch {self.steps} of {per_epoch} an epoch is epoch {line['epoch']} step {line['step']}"
            )
        self.steps += 1
        if tuple(line["position"]) != divmod(self.steps, per_epoch):
            self.wrong.append(
                f"after {self.steps} batches of {per_epoch} an epoch the job stands at {line['position']}"
            )
        self.epochs[line["epoch"]] += line["indices"]
        self.judge_samples(line, line["indices"])

    def on_sample(self, line: dict[str, Any]) -> None:
        epoch, place = divmod(self.steps, len(self.paths))
        shuffle = self.plan.arguments["shuffle"]
        index = place if shuffle == "sequential" else shuffle[epoch][place]
        self.steps += 1
        self.epochs[epoch].append(index)
        self.judge_samples(line, [index])

    def judge_samples(self, line: dict[str, Any], indices: list[int]) -> None:
        for got, label, index in zip(line["got"], line["labels"], indices, strict=True):
            self.counts["samples"] += 1
            path = self.paths[index]
            if label != self.labels[index]:
                self.wrong.append(f"{path}: label {label}, expected {self.labels[index]}")
            if not self.is_fair(path, got, line["at_ns"]):
                held = self.held(path, self.since_ns, line["at_ns"])
                names = [self.tree.contents[each.digest] if each else "nothing" for each in held]
                shown = [name for name, _ in itertools.groupby(names)]
                self.wrong.append(
                    f"{path}: got {described((self.seen / got).read_bytes())}; in this job it held {shown}"
                )

    def on_failed(self, line: dict[str, Any]) -> None:
        self.counts["errors"] += 1
        if line["path"] != self.paths[line["sample"]] or line["path"] not in line["text"]:
            self.wrong.append(f"sample {line['sample']} is named wrongly: {line['text']}")
        if not self.has_changed(line["path"], line["at_ns"]):
            self.wrong.append(f"an error about a file that nothing was done to: {line['text']}")

    def on_refused(self, line: dict[str, Any]) -> None:
        self.counts["refused"] += 1
        changed = len(self.tree.during(self.listing_ns, line["at_ns"])) > 1
        # Somebody may remove a file of a cache at the moment at which it is being made.
        fair = {"DatasetError": changed, "CacheError": self.damaged}.get(line["kind"], False)
        if not fair or str(self.log.parents[1]) not in line["text"]:
            self.wrong.append(f"{line['kind']}: {line['text']}")

    def on_interrupted(self, _line: dict[str, Any]) -> None:
        self.counts["interrupts"] += 1

    def on_ended(self, line: dict[str, Any]) -> None:
        for origin, samples in line["origins"].items():
            self.counts[f"from {origin}"] += samples
        if line["given_up"]:
            self.counts["given up"] += 1
        else:
            self.judge_epochs(line["at_ns"])

    def judge_epochs(self, until_ns: int) -> None:
        """A job that ended delivered each sample once an epoch, but for those that could be skipped."""
        for epoch, indices in enumerate(self.epochs):
            if len(indices) != len(self.paths):
                self.wrong.append(f"epoch {epoch} has {len(indices)} samples of {len(self.paths)}")
            missing = sorted(set(range(len(self.paths))) - set(indices))
            bad = [
                index
                for index in missing
                if self.plan.arguments["on_error"] != "skip" or not self.has_changed(self.paths[index], until_ns)
            ]
            if bad:
                self.wrong.append(f"epoch {epoch} lacks samples {bad}: {indices}")
