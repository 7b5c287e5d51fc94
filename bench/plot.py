#!/usr/bin/env python3
"""What bench/train.py and bench/raw.py measured, as a plot and as tables.

    bench/plot.py RESULT.json... --output FOLDER     # bench-NAME.svg and bench-NAME.md for each
    bench/plot.py RESULT.json... --docs docs         # the plots there, and the tables into its bench.md

A plot has a row for each loader and a panel for each figure: bars are medians, lines go from the least to the most of
all rounds. It is one file without scripts, which follows the reader's light or dark mode. In bench.md a table replaces
what is between the comments `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from html import escape
from pathlib import Path

from side_by_side import by_rate, conditions, cpu_digits, has_later, is_ours, ratios, table

ROW, BAR, HEAD, FOOT = 26, 14, 84, 58
NAMES, PANEL, GAP, EDGE = 112, 200, 56, 20
STYLE = """
    .paper { fill: #ffffff }
    text { font: 12px system-ui, sans-serif; fill: #24292f }
    .title { font-size: 15px; font-weight: 600 }
    .panel { font-weight: 600 }
    .soft { fill: #59636e; font-size: 11px }
    .ours { font-weight: 600 }
    .label { paint-order: stroke; stroke: #ffffff; stroke-width: 3px }
    .grid { stroke: #d1d9e0 }
    .bar { fill: #9aa7b5 }
    .bar.ours { fill: #1f77d0 }
    .range { stroke: #24292f; stroke-width: 1.5 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .soft { fill: #9198a1 }
      .grid { stroke: #3d444d }
      .bar { fill: #67717e }
      .bar.ours { fill: #4a9eff }
      .range { stroke: #e6edf3 }
      .label { stroke: #0d1117 }
      .paper { fill: #0d1117 }
    }"""


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to beyond the most, at most four steps, which leaves room for their digits."""
    power = 10 ** math.floor(math.log10(most / 4))
    step = next(power * each for each in (1, 2, 5, 10, 20) if power * each * 4 >= most)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def panel(left: int, head: str, note: str, digits: int, rows: list[tuple[str, list[float]]]) -> list[str]:
    """One figure of all loaders, to the right of `left`."""
    marks = ticks(max(max(values) for _, values in rows))
    scale = PANEL / marks[-1]
    bottom = HEAD + ROW * len(rows)
    parts = [
        f'<text class="panel" x="{left}" y="{HEAD - 26}">{escape(head)}</text>',
        f'<text class="soft" x="{left}" y="{HEAD - 10}">{escape(note)}</text>',
    ]
    for mark in marks:
        x = left + mark * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{mark:,g}</text>')
    for number, (name, values) in enumerate(rows):
        middle = statistics.median(values)
        y = HEAD + ROW * number + ROW / 2
        ours = " ours" if is_ours(name) else ""
        parts.append(
            f'<rect class="bar{ours}" x="{left}" y="{y - BAR / 2}" width="{middle * scale:.1f}" height="{BAR}" rx="2"/>'
        )
        least, most = left + min(values) * scale, left + max(values) * scale
        parts.append(f'<line class="range" x1="{least:.1f}" x2="{most:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="label{ours}" x="{most + 5:.1f}" y="{y + 4}">{middle:,.{digits}f}</text>')
    return parts


def plot(result: dict) -> str:
    """The SVG."""
    unit, one = result["unit"], result["unit"][:-1]
    rate = "later_per_s" if has_later(result) else "per_s"
    note = "epochs after the first; more is better" if has_later(result) else "after the first batch; more is better"
    panels = [
        (f"{unit}/s", note, rate, 0),
        (f"CPU ms/{one}", "after the first batch; less is better", "cpu_ms", cpu_digits(result)),
        ("first batch, s", "from the start of Python; less is better", "first_batch_s", 2),
    ]
    names = by_rate(result, rate)
    width = NAMES + len(panels) * (PANEL + GAP) + EDGE
    height = HEAD + ROW * len(names) + FOOT
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">',
        f"<title>{escape(result['title'])}</title>",
        f"<style>{STYLE}\n</style>",
        f'<rect class="paper" {size}/>',
        f'<text class="title" x="{EDGE}" y="26">{escape(result["title"])}</text>',
    ]
    for number, name in enumerate(names):
        y = HEAD + ROW * (number + 0.5) + 4
        ours = ' class="ours"' if is_ours(name) else ""
        parts.append(f'<text{ours} x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(name)}</text>')
    for number, (head, about, key, digits) in enumerate(panels):
        rows = [(name, [run[key] for run in result["runs"][name]]) for name in names]
        parts += panel(NAMES + number * (PANEL + GAP), head, about, digits, rows)
    host = result["machine"]
    foot = f"Median of {result['rounds']} rounds, lines from least to most. {host['cpu']}, {host['cores']} cores, "
    foot += f"{result['options']['threads']} threads or workers, page cache warm, {result['date']}."
    parts.append(f'<text class="soft" x="{EDGE}" y="{height - 14}">{escape(foot)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def tables(result: dict) -> str:
    """Ratios first, then the plot, the figures, and under what they were taken."""
    head, rows = ratios(result)
    parts = [markdown(head, rows)] if rows else []
    parts += [f"![{result['title']}](bench-{result['benchmark']}.svg)", markdown(*table(result)), conditions(result)]
    return "\n\n".join(parts) + "\n"


def into(text: str, name: str, content: str) -> str:
    """A page with what is between the comments replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    replaced, count = re.subn(
        re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n\n{content}\n{end}", text, flags=re.DOTALL
    )
    if count != 1:
        sys.exit(f"the page has {count} places between {begin} and {end}, not one")
    return replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    parser.add_argument("--docs", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    for path in args.results:
        result = json.loads(path.read_text(encoding="utf-8"))
        name = f"bench-{result['benchmark']}"
        for folder in filter(None, (args.output, args.docs)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.svg").write_text(plot(result), encoding="utf-8")
            print(folder / f"{name}.svg")
        if args.output:
            (args.output / f"{name}.md").write_text(tables(result), encoding="utf-8")
        if args.docs:
            page = args.docs / "bench.md"
            page.write_text(into(page.read_text(encoding="utf-8"), name, tables(result)), encoding="utf-8")


if __name__ == "__main__":
    main()
