"""Scenarios (docs/scenarios.md) of what benchmarks measure, and what the simulator says of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common

# What the loader does at the speed of memory is next to nothing beside the source; so it is in the scenario.
FAST_MB_PER_S = 10_000


@dataclass(frozen=True)
class Tier:
    """The first of a scenario is the staging buffer."""

    name: str
    capacity_mb: float
    threads: int
    scope: str = "rank"


@dataclass(frozen=True)
class Scenario:
    """A job on a machine."""

    name: str
    sizes_mb: list[float]
    tiers: list[Tier]
    epochs: int
    global_batch: int
    #: What a step takes of all ranks; 0: next to nothing.
    compute_ms: float
    #: What the source gives to so many readers together.
    source_mb_per_s: dict[int, float]
    source_latency_ms: float = 0
    source_link_mb_per_s: float = FAST_MB_PER_S
    network_mb_per_s: float = FAST_MB_PER_S
    ranks: int = 1
    ranks_per_host: int = 1

    def text(self) -> str:
        """The scenario's file; its sizes are in `sizes.txt` beside it."""
        lines = [
            f'name = "{self.name}"',
            "[job]",
            f"ranks = {self.ranks}",
            f"ranks_per_host = {self.ranks_per_host}",
            f"global_batch = {self.global_batch}",
            f"epochs = {self.epochs}",
            'shuffle = "torch"',
            f"compute_mb_per_s = {self._compute_mb_per_s()}",
            f"preprocess_mb_per_s = {FAST_MB_PER_S}",
            "[dataset]",
            f"samples = {len(self.sizes_mb)}",
            'size_mb = { file = "sizes.txt" }',
            "[system]",
            f"network_mb_per_s = {self.network_mb_per_s}",
            f"source_link_mb_per_s = {self.source_link_mb_per_s}",
            f"source_read_mb_per_s = {curve(self.source_mb_per_s)}",
            f"source_latency_ms = {self.source_latency_ms}",
            'contention = "reads"',
            'extrapolate = "clamp"',
        ]
        for tier in self.tiers:
            lines += [
                "[[system.tier]]",
                f'name = "{tier.name}"',
                f"capacity_mb = {tier.capacity_mb}",
                f"threads = {tier.threads}",
                f'scope = "{tier.scope}"',
                f"read_mb_per_s = {curve({1: FAST_MB_PER_S})}",
            ]
        return "".join(f"{line}\n" for line in lines)

    def _compute_mb_per_s(self) -> float:
        """Of one rank, for the mean batch."""
        if self.compute_ms == 0:
            return FAST_MB_PER_S
        batch_mb = sum(self.sizes_mb) / len(self.sizes_mb) * self.global_batch / self.ranks
        return min(FAST_MB_PER_S, batch_mb / self.compute_ms * 1e3)

    def simulate(self, scratch: Path, policy: str) -> dict[str, Any]:
        """What is predicted for a policy, and for the whole scenario."""
        (scratch / "sizes.txt").write_text("".join(f"{size:.6f}\n" for size in self.sizes_mb))
        file = scratch / f"{self.name}.toml"
        file.write_text(self.text())
        said = common.run(scratch, "simulate", file, "--policy", policy)
        (result,) = said["results"]
        return {**result, "source_minimum_bytes": said["source_minimum_bytes"]}


def curve(points: dict[int, float]) -> str:
    return "{ " + ", ".join(f"{readers} = {rate}" for readers, rate in points.items()) + " }"
