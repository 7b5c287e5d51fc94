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
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import hosts
from plot import EDGE, FOOT, GAP, HEAD, NAMES, PANEL, ROW, STYLE, into, markdown, panel
from side_by_side import is_ours

#: Between the title of the plot and the first block, and between blocks.
TOP, BELOW = 18, 34

#: A figure of all loaders: what it is called, a note, its digits, and the values of each loader.
Panel = tuple[str, str, int, list[tuple[str, list[float]]]]


@dataclass(frozen=True)
class Report:
    """How one benchmark's results are shown."""

    #: Of its plot and of the place on the page.
    name: str
    heading: str
    page: str
    title: Callable[[dict, dict], str]
    verdict: Callable[[dict, dict], str]
    table: Callable[[dict], tuple[list[str], list[list[str]]]]
    conditions: Callable[[dict], str]
    panels: Callable[[dict, dict], list[Panel]]
    #: What comes after the tables.
    rest: Callable[[dict], list[str]] = lambda _: []

    def block(self, result: dict, setting: dict, top: int) -> list[str]:
        """All loaders in one setting, below `top`."""
        parts = [
            f'<g transform="translate(0 {top})">',
            f'<text class="title" x="{EDGE}" y="{HEAD - 48}">{escape(self.title(result, setting))}</text>',
        ]
        for number, name in enumerate(setting["loaders"]):
            ours = ' class="ours"' if is_ours(name) else ""
            y = HEAD + ROW * (number + 0.5) + 4
            parts.append(f'<text{ours} x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(name)}</text>')
        for number, each in enumerate(self.panels(result, setting)):
            parts += panel(NAMES + number * (PANEL + GAP), *each)
        return [*parts, "</g>"]

    def plot(self, result: dict) -> str:
        """The SVG."""
        heights = [HEAD + ROW * len(setting["loaders"]) + BELOW for setting in result["settings"]]
        panels = len(self.panels(result, result["settings"][0]))
        width = NAMES + panels * (PANEL + GAP) + 120 + EDGE
        height = TOP + sum(heights) + FOOT
        size = f'width="{width}" height="{height}"'
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">',
            f"<title>{escape(self.heading)}</title>",
            f"<style>{STYLE}\n</style>",
            f'<rect class="paper" {size}/>',
            f'<text class="title" x="{EDGE}" y="26">{escape(self.heading)}</text>',
        ]
        top = TOP
        for setting, needed in zip(result["settings"], heights, strict=True):
            parts += self.block(result, setting, top)
            top += needed
        for number, line in enumerate(textwrap.wrap(self.conditions(result), width // 6)):
            parts.append(f'<text class="soft" x="{EDGE}" y="{top + 10 + 15 * number}">{escape(line)}</text>')
        return "\n".join([*parts, "</svg>"]) + "\n"

    def tables(self, result: dict) -> str:
        parts = [f"![{self.heading}]({self.name}.svg)"]
        for setting in result["settings"]:
            verdict = self.verdict(result, setting)
            parts += [f"**{self.title(result, setting)}**: {verdict}.", markdown(*self.table(setting))]
        parts += [textwrap.fill(self.conditions(result), 120, break_on_hyphens=False), *self.rest(result)]
        return "\n\n".join(parts) + "\n"

    def write(self, together: Callable[[list[dict]], dict]) -> None:
        """What the command line asks for."""
        parser = argparse.ArgumentParser(description=self.heading)
        parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
        parser.add_argument("--output", type=Path, metavar="FOLDER")
        parser.add_argument("--docs", type=Path, metavar="FOLDER")
        args = parser.parse_args()
        result = together([json.loads(path.read_text(encoding="utf-8")) for path in args.results])
        for folder in filter(None, (args.output, args.docs)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.name}.svg").write_text(self.plot(result), encoding="utf-8")
            print(folder / f"{self.name}.svg")
        if args.output:
            (args.output / f"{self.name}.md").write_text(self.tables(result), encoding="utf-8")
        if args.docs:
            page = args.docs / self.page
            page.write_text(into(page.read_text(encoding="utf-8"), self.name, self.tables(result)), encoding="utf-8")


def times_and_bytes(result: dict, setting: dict) -> list[Panel]:
    """Epochs after the first, and what came over the storage's line for them."""
    loaders = setting["loaders"]
    times = [(name, each["later_s_all"]) for name, each in loaders.items()]
    bytes_of = [(name, [count / 1e6 for count in each["line_bytes_all"]]) for name, each in loaders.items()]
    least = max(0.0, 1 - setting["cached"]) * result["bytes"] / 1e6
    note = f"MB an epoch; no loader can do with less than {least:,.0f}"
    return [("an epoch, s", "less is better", 2, times), ("over the storage's line", note, 0, bytes_of)]


def put_together(results: list[dict], alike: tuple[str, ...], key: Callable[[dict], tuple]) -> dict:
    """Several runs as one: what differs by `key` side by side."""
    first, *others = results
    for other in others:
        if differing := [name for name in alike if other[name] != first[name]]:
            sys.exit(f"these are not to be put together: {', '.join(differing)} differ")
    settings: dict[tuple, dict] = {}
    for setting in (setting for result in results for setting in result["settings"]):
        known = settings.setdefault(key(setting), {**setting, "loaders": {}})
        known["loaders"] |= setting["loaders"]
    return {**first, "settings": list(settings.values())}


REPORT = Report(
    name="bench-hosts",
    heading="Hosts on one slow shared storage: epochs after the first",
    page="bench.md",
    title=hosts.title,
    verdict=hosts.verdict,
    table=hosts.table,
    conditions=hosts.conditions,
    panels=times_and_bytes,
)
ALIKE = ("hosts", "ranks", "samples", "bytes", "mbit", "host_mbit", "batch", "compute_ms", "rounds")


def main() -> None:
    REPORT.write(lambda results: put_together(results, ALIKE, lambda setting: (setting["loop"], setting["cached"])))


if __name__ == "__main__":
    main()
