"""What the simulator says of the runs of bench/cluster_compare.py, and of the same job on many more ranks.

Each program is a policy: the bare one reads ahead and keeps nothing (`staging-buffer`); torch's loader does, too, but has page
cache, of which so much is hit as a host keeps of the dataset, whatever the kernel keeps (`monarch`); nopfs and foresee are
themselves. The machine is told by what the storage gives, measured before, and by the rates of the lines.
"""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scenario import Scenario, Tier

POLICIES = {"bare": "staging-buffer", "nopfs": "nopfs", "foresee": "foresee"}
PAGE_CACHE = "monarch"
# torch's loader has so many batches on their way for each worker.
PREFETCH = 2
# The loader's default for a tier.
TIER_THREADS = 2
# What a line carries of samples, beside the protocols.
PAYLOAD = 0.94
TITLE = "Predicted for more ranks, one a host, K = 1.02 S"
GROWN_CACHED = 1.02
# So many files are one sample there: their bytes are what takes time, and so many reads the fewer are simulated.
GRAIN = 8


def add(result: dict, sizes: list[int], scratch: Path) -> None:
    """Puts beside each measured epoch what was predicted, and predicts for more ranks."""
    sizes_mb = [size / 1e6 for size in sizes]
    runs = [(setting, loader) for setting in result["settings"] for loader in setting["loaders"]]
    loaders = result["settings"][0]["loaders"]
    grown_jobs = [
        {"ranks": ranks, "storage": storage, "loader": loader}
        for ranks in result["more_ranks"]
        for storage in (1, ranks // result["hosts"])
        for loader in loaders
    ]
    scenarios = [of_run(result, sizes_mb, loader, setting["ranks"], setting["cached"]) for setting, loader in runs]
    scenarios += [grown(result, sizes_mb, **job) for job in grown_jobs]
    names = [loader for _, loader in runs] + [job["loader"] for job in grown_jobs]
    folders = [scratch / str(number) for number in range(len(scenarios))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = list(pool.map(predicted, scenarios, names, folders))
    for (setting, loader), figures in zip(runs, said[: len(runs)], strict=True):
        setting["loaders"][loader]["predicted"] = figures
    result["grown"] = [{**job, **figures} for job, figures in zip(grown_jobs, said[len(runs) :], strict=True)]


def policy(loader: str) -> str:
    return POLICIES.get(loader, PAGE_CACHE)


def of_run(result: dict, sizes_mb: list[float], loader: str, ranks_per_host: int, cached: float) -> Scenario:
    """The scenario of a program on the cluster."""
    ranks = result["hosts"] * ranks_per_host
    total_mb, batch = sum(sizes_mb), result["global_batch"] // ranks
    line_mb_per_s = result["host_mbit"] / 8 * PAYLOAD
    tiers = [Tier("staging", result["staging"] / 1e6 / ranks_per_host, result["threads"])]
    if policy(loader) == PAGE_CACHE:
        workers = int(loader.partition("-")[2])
        staged_mb = PREFETCH * workers * batch * total_mb / len(sizes_mb)
        tiers = [
            Tier("staging", staged_mb, workers),
            Tier("memory", cached * total_mb / result["hosts"], TIER_THREADS, "host"),
        ]
    elif loader != "bare":
        tiers.append(Tier("memory", cached * total_mb / ranks, TIER_THREADS))
    return Scenario(
        f"{loader}-{ranks}-{cached:g}",
        sizes_mb,
        tiers,
        epochs=result["epochs"],
        global_batch=result["global_batch"],
        compute_ms=result["compute_ms"],
        source_mb_per_s={int(readers): rate for readers, rate in result["source_mb_per_s"].items()},
        source_link_mb_per_s=line_mb_per_s,
        network_mb_per_s=line_mb_per_s,
        ranks=ranks,
        ranks_per_host=ranks_per_host,
    )


def grown(result: dict, sizes_mb: list[float], loader: str, ranks: int, storage: int) -> Scenario:
    """So many ranks, each with as much to train on and as much memory as here; a storage that gives so many times as much."""
    times = ranks // result["hosts"]
    coarse = [sum(sizes_mb[at : at + GRAIN]) for at in range(0, len(sizes_mb), GRAIN)] * times
    told = {**result, "hosts": ranks, "global_batch": result["global_batch"] * times // GRAIN, "epochs": 2}
    told["source_mb_per_s"] = {
        int(readers) * storage: rate * storage for readers, rate in result["source_mb_per_s"].items()
    }
    return of_run(told, coarse, loader, 1, GROWN_CACHED)


def predicted(scenario: Scenario, loader: str, scratch: Path) -> dict[str, Any]:
    """Seconds of the first epoch and of later ones, and bytes."""
    scratch.mkdir()
    said = scenario.simulate(scratch, policy(loader))
    first_s, *later_s = said["epochs_s"]
    return {
        "first_s": first_s,
        "later_s": statistics.mean(later_s or [first_s]),
        "job_source_bytes": said["bytes"].get("source", 0),
        "job_minimum_bytes": said["source_minimum_bytes"],
    }


def table(result: dict) -> tuple[list[str], list[list[str]]]:
    head = ["ranks", "storage", "program", "epoch 1 s", "later s", "job from source GB", "minimum GB"]
    # Who keeps nothing has a minimum of its own; all could have kept as much.
    least = {
        ranks: min(each["job_minimum_bytes"] for each in result["grown"] if each["ranks"] == ranks)
        for ranks in result["more_ranks"]
    }
    rows = [
        [
            f"{each['ranks']:,}",
            "as measured" if each["storage"] == 1 else f"{each['storage']} times that",
            each["loader"],
            f"{each['first_s']:,.1f}",
            f"{each['later_s']:,.2f}",
            f"{each['job_source_bytes'] / 1e9:,.1f}",
            f"{least[each['ranks']] / 1e9:,.1f}",
        ]
        for each in result["grown"]
    ]
    return head, rows
