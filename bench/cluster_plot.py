#!/usr/bin/env python3
"""What bench/cluster_compare.py measured, as a plot and as tables, beside what was predicted.

    bench/cluster_plot.py RESULT.json... --output FOLDER     # bench-cluster.svg and bench-cluster.md
    bench/cluster_plot.py RESULT.json... --docs docs         # the plot there, and the tables into its cluster.md

Results of several runs, alike but for their ranks and caches, are put together.
"""

from __future__ import annotations

import cluster_compare
import cluster_prediction
from hosts_plot import Panel, Report, put_together, times_and_bytes
from plot import markdown

ALIKE = ("hosts", "samples", "bytes", "mbit", "host_mbit", "global_batch", "compute_ms", "epochs", "rounds")


def panels(result: dict, setting: dict) -> list[Panel]:
    """Times beside what was predicted, and bytes."""
    times, line = times_and_bytes(result, setting)
    predicted = [(name, [each["predicted"]["later_s"]]) for name, each in setting["loaders"].items()]
    return [times, ("predicted, s", "by the simulator", 2, predicted), line]


def more_ranks(result: dict) -> list[str]:
    return [f"**{cluster_prediction.TITLE}**", markdown(*cluster_prediction.table(result))]


REPORT = Report(
    name="bench-cluster",
    heading="A cluster in a box: epochs after the first",
    page="cluster.md",
    title=cluster_compare.title,
    verdict=cluster_compare.verdict,
    table=cluster_compare.table,
    conditions=cluster_compare.conditions,
    panels=panels,
    rest=more_ranks,
)


def main() -> None:
    REPORT.write(lambda results: put_together(results, ALIKE, lambda setting: (setting["ranks"], setting["cached"])))


if __name__ == "__main__":
    main()
