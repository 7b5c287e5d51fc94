"""Reports as a reader sees them: what is drawn, whether it fits, whether it can be read."""

import itertools
import re

import pytest

KINDS = ["plain", "two-keys", "one-key", "names"]
WIDTHS = [390, 768, 1280]

# Bars that are shown, each with its name, value, left edge and width in pixels; and the line's value and place.
BARS = """id => {
    const shown = [...document.querySelectorAll(`#${id} svg[role=img]`)].filter(svg => svg.checkVisibility())[0];
    const bars = [...shown.querySelectorAll('.bar')].map(bar => {
        const parts = [...bar.querySelectorAll('rect')].map(part => {
            // Without the stroke, which getBoundingClientRect leaves out for SVG too.
            const box = part.getBoundingClientRect();
            return [box.left, box.right];
        });
        const left = Math.min(...parts.map(part => part[0])), right = Math.max(...parts.map(part => part[1]));
        return {name: bar.dataset.name, value: +bar.dataset.value, broken: bar.dataset.broken === 'true',
                left, width: parts.length ? right - left : 0, gaps: parts.slice(1).map((p, i) => p[0] - parts[i][1])};
    });
    const mark = shown.querySelector('.mark');
    const box = mark.querySelector('.mark-line').getBoundingClientRect();
    return {bars, mark: {value: +mark.dataset.value, x: (box.left + box.right) / 2}};
}"""

# Texts of charts that are shown: content, box, box of the drawing, size in pixels of the screen.
TEXTS = """() => [...document.querySelectorAll('svg[role=img]')].filter(svg => svg.checkVisibility()).map(svg => {
    const place = box => [box.left, box.top, box.right, box.bottom];
    const scale = svg.getScreenCTM().a;
    return {chart: svg.getAttribute('aria-label'), box: place(svg.getBoundingClientRect()),
            texts: [...svg.querySelectorAll('text')].map(text => ({text: text.textContent,
                box: place(text.getBoundingClientRect()), size: parseFloat(getComputedStyle(text).fontSize) * scale}))};
})"""

# Every text that is shown, with its colour and what is behind it.
COLOURS = """() => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const isOpaque = colour => colour !== 'rgba(0, 0, 0, 0)' && colour !== 'transparent';
    while (walker.nextNode()) {
        const of = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !of.checkVisibility() || of.closest('title')) continue;
        const style = getComputedStyle(of);
        const inSvg = of instanceof SVGElement;
        let ground = null;
        const before = of.previousElementSibling;
        if (inSvg && before && before.classList.contains('cell')) ground = getComputedStyle(before).fill;
        for (let up = of; !ground && up; up = up.parentElement) {
            const colour = getComputedStyle(up).backgroundColor;
            if (isOpaque(colour)) ground = colour;
        }
        found.push({text: walker.currentNode.textContent.trim(), size: parseFloat(style.fontSize),
                    ink: inSvg ? style.fill : style.color, ground});
    }
    return found;
}"""


def luminance(colour: str) -> float:
    channels = [int(channel) / 255 for channel in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def assert_to_scale(drawn: dict, values: dict[str, float], line: float) -> None:
    """Every value has a bar, all have the same scale, and the line stands where its value is."""
    assert {bar["name"]: bar["value"] for bar in drawn["bars"]} == pytest.approx(values)
    whole = [bar for bar in drawn["bars"] if not bar["broken"]]
    longest = max(whole, key=lambda bar: bar["value"])
    px_per_one = longest["width"] / longest["value"]
    assert longest["width"] > 100
    for bar in whole:
        assert bar["width"] == pytest.approx(bar["value"] * px_per_one, abs=1), bar["name"]
        assert all(gap == pytest.approx(0, abs=0.1) for gap in bar["gaps"]), bar["name"]
    for bar in drawn["bars"]:
        if bar["broken"]:
            assert bar["width"] > longest["width"]
    assert drawn["mark"]["value"] == pytest.approx(line)
    assert drawn["mark"]["x"] == pytest.approx(longest["left"] + line * px_per_one, abs=1)


@pytest.mark.parametrize("kind", KINDS)
def test_loads_from_a_file_without_network_or_complaint(open_page, report_paths, kind):
    page = open_page(report_paths[kind])
    page.wait_for_load_state("networkidle")
    assert page.asked == [report_paths[kind].as_uri()]
    assert page.said == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_policy_has_a_bar_as_long_as_its_time(open_page, made, width):
    drawn = open_page(made.path, width).evaluate(BARS, "time")
    times = {one["policy"]: one["total_s"] for one in made.comparison["results"] if one["supported"]}
    assert len(times) > 8
    assert_to_scale(drawn, times, made.comparison["lower_bound_s"])


@pytest.mark.parametrize("width", WIDTHS)
def test_every_policy_has_a_bar_as_long_as_its_source_bytes(open_page, made, width):
    drawn = open_page(made.path, width).evaluate(BARS, "source")
    bytes_read = {one["policy"]: one["bytes"]["source"] for one in made.comparison["results"] if one["supported"]}
    assert_to_scale(drawn, bytes_read, made.comparison["source_minimum_bytes"])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_slow_policy_has_a_break_and_the_others_keep_their_scale(open_page, report_paths, width):
    page = open_page(report_paths["two-keys"], width)
    drawn = page.evaluate(BARS, "time")
    assert [bar["name"] for bar in drawn["bars"] if bar["broken"]] == ["naive"]
    assert_to_scale(drawn, {bar["name"]: bar["value"] for bar in drawn["bars"]}, 7653.0)
    assert page.locator("#time .break >> visible=true").count() == 2


def test_policies_that_cannot_run_are_listed_with_the_reason(open_page, make_report):
    made = make_report("--set", "system.tier.1.capacity_mb=50", "--policy", "lbann-preload", "--policy", "nopfs")
    refused = [one for one in made.comparison["results"] if not one["supported"]]
    assert [one["policy"] for one in refused] == ["lbann-preload"]
    page = open_page(made.path)
    assert page.locator("#refused li").inner_text() == f"lbann-preload: {refused[0]['reason']}"
    assert [bar["name"] for bar in page.evaluate(BARS, "time")["bars"]] == ["nopfs"]


@pytest.mark.parametrize(("kind", "width"), list(itertools.product(KINDS, [360, *WIDTHS])))
def test_the_page_never_scrolls_sideways(open_page, report_paths, kind, width):
    page = open_page(report_paths[kind], width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("kind", "width"), list(itertools.product(KINDS, WIDTHS)))
def test_texts_of_charts_are_whole_apart_and_large_enough(open_page, report_paths, kind, width):
    charts = open_page(report_paths[kind], width).evaluate(TEXTS)
    assert len(charts) >= 2
    for chart in charts:
        left, top, right, bottom = chart["box"]
        for text in chart["texts"]:
            where = f"{chart['chart']}: {text['text']}"
            box = text["box"]
            assert text["size"] >= 11.99, where
            assert box[0] >= left - 1 and box[1] >= top - 1 and box[2] <= right + 1 and box[3] <= bottom + 1, where
        for one, other in itertools.combinations(chart["texts"], 2):
            across = min(one["box"][2], other["box"][2]) - max(one["box"][0], other["box"][0])
            down = min(one["box"][3], other["box"][3]) - max(one["box"][1], other["box"][1])
            # Boxes of lines touch a little; letters do not.
            assert across <= 0.5 or down <= 4, f"{chart['chart']}: {one['text']} / {other['text']}"


@pytest.mark.parametrize(("kind", "scheme"), list(itertools.product(KINDS, ["light", "dark"])))
def test_all_text_has_contrast_and_size(open_page, report_paths, kind, scheme):
    texts = open_page(report_paths[kind], scheme=scheme).evaluate(COLOURS)
    assert len(texts) > 100
    for text in texts:
        assert contrast(text["ink"], text["ground"]) >= 4.5, text
        assert text["size"] >= 12, text


def test_light_and_dark_differ_and_paper_is_light(open_page, made):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = open_page(made.path, scheme="light").evaluate(ground)
    page = open_page(made.path, scheme="dark")
    dark = page.evaluate(ground)
    assert luminance(light) > 0.9 and luminance(dark) < 0.05
    page.emulate_media(media="print")
    on_paper = page.evaluate(ground)
    page.emulate_media(media="screen")
    assert on_paper == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shapes_stand_out_from_the_page(open_page, report_paths, scheme):
    page = open_page(report_paths["two-keys"], scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    fills = page.evaluate("""() => [...document.querySelectorAll('.legend rect')]
        .map(rect => [rect.getAttribute('class'), getComputedStyle(rect).fill])""")
    assert len(fills) >= 6
    for name, fill in fills:
        assert "url" in fill or contrast(fill, ground) >= 3, (name, fill)


def test_a_name_that_is_a_script_is_inert(open_page, make_report):
    name = "</title><script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
    made = make_report("--set", f'name="{name}"', "--policy", "nopfs")
    page = open_page(made.path)
    assert page.locator("h1").inner_text() == name
    assert page.title() == f"{name}: foresee report"
    assert page.locator("script, img").count() == 0
    assert page.evaluate("window.owned") is None
    assert page.said == []


def test_everything_is_there_without_scripts(open_page, made):
    page = open_page(made.path, scripts=False)
    for one in made.comparison["results"]:
        assert page.locator(f"#time .bar[data-name='{one['policy']}'] >> visible=true").count() == 1
        assert page.locator("#numbers th", has_text=one["policy"]).first.is_visible()
    assert page.locator("#inputs th", has_text="job.global_batch").is_visible()


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_says_what_it_is(open_page, report_paths, kind):
    charts = open_page(report_paths[kind]).evaluate("""() => [...document.querySelectorAll('svg:not([aria-hidden])')]
        .map(svg => [svg.getAttribute('role'), svg.getAttribute('aria-label')])""")
    assert len(charts) >= 6
    for role, label in charts:
        assert role == "img"
        assert len(label) > 10


def test_a_sweep_of_two_keys_has_a_heat_map_for_each_policy(open_page, report_paths):
    page = open_page(report_paths["two-keys"])
    panels = page.locator("#sweep .panels figure")
    assert panels.count() == 9
    assert panels.filter(has_text="nopfs").locator(".cell").count() == 20
    assert page.locator("#sweep .scale svg").is_visible()


def test_a_report_beside_a_table_leaves_the_table_as_it_was(simulate, tmp_path):
    path = tmp_path / "report.html"
    with_report = simulate("--policy", "nopfs", "--report", path)
    assert (with_report.returncode, with_report.stdout) == (0, simulate("--policy", "nopfs").stdout)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_report_that_cannot_be_written_is_named_in_one_line(simulate, tmp_path):
    for path in (tmp_path / "missing" / "report.html", tmp_path):
        done = simulate("--report", path)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert str(path) in done.stderr
