#!/usr/bin/env python3
"""What bench/hosts.py measured, as a plot and as tables.

    bench/hosts_plot.py RESULT.json... --output FOLDER     # bench-hosts.svg and bench-hosts.md
    bench/hosts_plot.py RESULT.json... --docs docs         # the plot there, and the tables into its bench.md

Results of several runs, alike but for their loops and caches, are put together.

The plot has a block for each loop and cache, in it a row for each loader, and panels for the time of an epoch and for what came
over the storage's line: bars are medians, lines go from the least to the most of all rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from html import escape
from pathlib import Path

from hosts import conditions, table, title, verdict
from plot import EDGE, FOOT, GAP, HEAD, NAMES, PANEL, ROW, STYLE, into, markdown, panel
from side_by_side import is_ours

TITLE = "Hosts on one slow shared storage: epochs after the first"
#: Between the title of the plot and the first block, and between blocks.
TOP, BELOW = 18, 34


def block(result: dict, setting: dict, top: int) -> list[str]:
    """All loaders in one setting, below `top`."""
    loaders = setting["loaders"]
    parts = [
        f'<g transform="translate(0 {top})">',
        f'<text class="title" x="{EDGE}" y="{HEAD - 48}">{escape(title(result, setting))}</text>',
    ]
    for number, name in enumerate(loaders):
        ours = ' class="ours"' if is_ours(name) else ""
        y = HEAD + ROW * (number + 0.5) + 4
        parts.append(f'<text{ours} x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(name)}</text>')
    times = [(name, each["later_s_all"]) for name, each in loaders.items()]
    bytes_of = [(name, [count / 1e6 for count in each["line_bytes_all"]]) for name, each in loaders.items()]
    least = max(0.0, 1 - setting["cached"]) * result["bytes"] / 1e6
    parts += panel(NAMES, "an epoch, s", "less is better", 2, times)
    note = f"MB an epoch; no loader can do with less than {least:,.0f}"
    parts += panel(NAMES + PANEL + GAP, "over the storage's line", note, 0, bytes_of)
    return [*parts, "</g>"]


def plot(result: dict) -> str:
    """The SVG."""
    heights = [HEAD + ROW * len(setting["loaders"]) + BELOW for setting in result["settings"]]
    width = NAMES + 2 * (PANEL + GAP) + 120 + EDGE
    height = TOP + sum(heights) + FOOT
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">',
        f"<title>{escape(TITLE)}</title>",
        f"<style>{STYLE}\n</style>",
        f'<rect class="paper" {size}/>',
        f'<text class="title" x="{EDGE}" y="26">{escape(TITLE)}</text>',
    ]
    top = TOP
    for setting, needed in zip(result["settings"], heights, strict=True):
        parts += block(result, setting, top)
        top += needed
    for number, line in enumerate(textwrap.wrap(conditions(result), width // 6)):
        parts.append(f'<text class="soft" x="{EDGE}" y="{top + 10 + 15 * number}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def tables(result: dict) -> str:
    parts = [f"![{TITLE}](bench-hosts.svg)"]
    for setting in result["settings"]:
        parts += [f"**{title(result, setting)}**: {verdict(result, setting)}.", markdown(*table(setting))]
    return "\n\n".join([*parts, textwrap.fill(conditions(result), 120, break_on_hyphens=False)]) + "\n"


def together(results: list[dict]) -> dict:
    """Several runs as one."""
    first, *others = results
    alike = ("hosts", "ranks", "samples", "bytes", "mbit", "host_mbit", "batch", "compute_ms", "rounds")
    for other in others:
        if differing := [key for key in alike if other[key] != first[key]]:
            sys.exit(f"these are not to be put together: {', '.join(differing)} differ")
    settings: dict[tuple[str, float], dict] = {}
    for setting in (setting for result in results for setting in result["settings"]):
        known = settings.setdefault((setting["loop"], setting["cached"]), {**setting, "loaders": {}})
        known["loaders"] |= setting["loaders"]
    return {**first, "settings": list(settings.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    parser.add_argument("--docs", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    result = together([json.loads(path.read_text(encoding="utf-8")) for path in args.results])
    for folder in filter(None, (args.output, args.docs)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench-hosts.svg").write_text(plot(result), encoding="utf-8")
        print(folder / "bench-hosts.svg")
    if args.output:
        (args.output / "bench-hosts.md").write_text(tables(result), encoding="utf-8")
    if args.docs:
        page = args.docs / "bench.md"
        page.write_text(into(page.read_text(encoding="utf-8"), "bench-hosts", tables(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
