"""The page of real runs as a reader sees it. What all pages share (contrast, fit, print) is in test_report.py."""

import itertools
import json

import pytest

TOTALS = {"plain": 13.5, "nopfs": 10.5, "foresee": 9.5}
SOURCE = {"plain": 336_000_000, "nopfs": 260_000_000, "foresee": 235_000_000}
MINIMUM = 235_000_000
LOWER_BOUND_S = 6.84

BALANCE = {
    "members": [0, 1, 2, 3],
    "steps": 240,
    "imbalanced_steps": 0.15,
    "late_by": [{}, {"source": 30, "preprocess": 4}, {"source": 2}, {}],
    "late_steps": [{"step": 201, "late": [{"rank": 1, "waited_s": 0.03, "cause": "source"}]}],
    "waited_s": [0.2, 3.5, 0.4, 0.1],
    "utilisation": 0.91,
    "steps_s": {"p50": 0.056, "p95": 0.071, "p99": 0.09, "max": 0.12},
    "steps_histogram": [[0.055 * 1.05**at, max(120 - 11 * at, 1)] for at in range(16)],
    "threads_over_time": [[0, [3, 3, 3, 3]], [40, [2, 6, 2, 2]], [96, [3, 3, 3, 3]], [130, [1, 8, 2, 1]]],
}

# Name and value of the bars that are shown, and whether their right ends are in the order of the values.
BARS = """id => {
    const shown = [...document.querySelectorAll(`#${id} svg[role=img]`)].filter(svg => svg.checkVisibility())[0];
    return [...shown.querySelectorAll('.bar')].map(bar => ({name: bar.dataset.name, value: +bar.dataset.value,
        width: [...bar.querySelectorAll('rect')].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0)}));
}"""
OVERFLOWING = """() => [...document.querySelectorAll('svg[role=img]')].filter(svg => svg.checkVisibility()).flatMap(svg => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(text => {
        const it = text.getBoundingClientRect();
        return it.left < box.left - 1 || it.right > box.right + 1 || it.bottom > box.bottom + 1;
    }).map(text => text.textContent);
})"""


def a_run(name: str) -> dict:
    total_s, source = TOTALS[name], SOURCE[name]
    shares = (0.4, 0.3, 0.3)
    return {
        "name": name,
        "epochs": [
            {"total_s": total_s * part, "stall_s": total_s * part / 3, "read_bytes": {"source": int(source * part)}}
            for part in shares
        ],
        "stats": {
            "policy": name,
            "first_batch_s": 0.2,
            "stall_by_s": {"source": total_s / 4, "tier1": total_s / 12},
            "origins": {"source": {"bytes": source}, "tier1": {"bytes": 400_000_000 - source}},
            "source_bytes": source,
            "source_minimum_bytes": MINIMUM,
            "balance": BALANCE if name == "foresee" else None,
        },
        "prediction": {"total_s": total_s * 1.02, "stall_s": total_s / 3, "bytes": {"source": source}},
    }


@pytest.fixture(scope="module")
def page_path(report_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = {"name": "<b>three</b> runs", "lower_bound_s": LOWER_BOUND_S, "inputs": {"job.batch": 32}}
    (folder / "runs.json").write_text(json.dumps({**runs, "runs": [a_run(name) for name in TOTALS]}))
    report_runs(folder / "runs.json", folder / "runs.html")
    return folder / "runs.html"


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_bars_are_as_long_as_what_was_measured_and_predicted(open_page, page_path, width):
    page = open_page(page_path, width)
    predicted = {f"{name}, predicted": total_s * 1.02 for name, total_s in TOTALS.items()}
    bars = page.evaluate(BARS, "time")
    assert {bar["name"]: bar["value"] for bar in bars} == pytest.approx({**TOTALS, **predicted})
    for one, other in itertools.combinations(bars, 2):
        assert one["width"] * other["value"] == pytest.approx(other["width"] * one["value"], rel=0.02)
    source = {bar["name"]: bar["value"] for bar in page.evaluate(BARS, "source")}
    assert {name: source[name] for name in SOURCE} == SOURCE


@pytest.mark.parametrize(("width", "scheme"), list(itertools.product([360, 390, 768, 1280], ["light", "dark"])))
def test_nothing_is_cut_off_and_nothing_scrolls_sideways(open_page, page_path, width, scheme):
    page = open_page(page_path, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOWING) == []


def test_the_page_is_whole_inert_and_alone(open_page, page_path):
    page = open_page(page_path)
    page.wait_for_load_state("networkidle")
    assert (page.asked, page.said) == ([page_path.as_uri()], [])
    assert page.locator("h1").inner_text() == "<b>three</b> runs"
    for part in ("time", "stall", "source", "bytes", "balance", "epoch-times", "epoch-source", "numbers"):
        assert page.locator(f"#{part}").is_visible(), part
    assert page.locator("#epoch-times figure").count() == 3
    assert page.locator(".tile", has_text="Fastest run").locator(".value").inner_text() == "foresee"


# How high each line of threads ends above its axis, as a part of the highest.
LEVELS = """() => [...document.querySelectorAll('#threads .staircase')].map(group => {
    const way = group.querySelector('path').getAttribute('d');
    return {last: +group.dataset.last, y: +way.split(/[ML]/).at(-1).trim().split(' ')[1]};
})"""


@pytest.mark.parametrize("width", [390, 1280])
def test_who_was_late_and_who_had_how_many_threads(open_page, page_path, width):
    page = open_page(page_path, width)
    late = {bar["name"]: bar["value"] for bar in page.evaluate(BARS, "late")}
    assert late == {f"foresee, rank {rank}": times for rank, times in enumerate((0, 34, 2, 0))}
    levels = page.evaluate(LEVELS)
    assert [level["last"] for level in levels] == BALANCE["threads_over_time"][-1][1]
    by_threads = sorted(levels, key=lambda level: level["last"])
    assert [level["y"] for level in by_threads] == sorted((level["y"] for level in levels), reverse=True)
    assert page.locator("#step-times .column").count() == len(BALANCE["steps_histogram"])
    assert "15.0\u00a0% of 240 steps were imbalanced" in page.locator("#balance").inner_text()
    assert "step 201: rank 1, source" in page.locator("#numbers").inner_text()
