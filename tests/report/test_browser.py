"""The page in a real browser: on a desktop and a phone, in dark mode, and printed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradsift.report import write_report
from tests.report.browser import Chromium
from tests.report.folders import comparison, config, records, write

pytestmark = pytest.mark.slow  # draws pages in a browser

A4_WIDTH, A4_HEIGHT = 700, 1010  # CSS pixels inside the margins

# For every element with words of its own: its contrast with what is behind it, by WCAG 2.
CONTRASTS = """
(() => {
  const parse = text => { const p = text.match(/[\\d.]+/g).map(Number); return p.length > 3 ? p : [...p, 1]; };
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
    const v = c[i] / 255; return sum + w * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const words = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!words || ['title', 'desc', 'style'].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const own = parse(e.tagName === 'text' ? style.fill : style.color);
    const [a, b] = [light(own), light(behind(e))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), words.slice(0, 40)]);
  }
  return found;
})()
"""

# Of each figure: its size, the words that stick out of it, and how far its legend reaches into its axes.
FIGURES = """
[...document.querySelectorAll('figure')].map(figure => {
  const svg = figure.querySelector('svg'), box = svg.getBoundingClientRect();
  const out = [...svg.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1; });
  const legend = svg.querySelector('.legend'), axes = svg.querySelector('.axes');
  const lines = [...svg.querySelectorAll('.axes path')].filter(p => p.getTotalLength() > 0).length;
  return {id: figure.id, width: box.width, height: box.height, out: out.map(t => t.textContent), lines: lines,
    letters: Math.min(...[...svg.querySelectorAll('text')].map(t =>
      parseFloat(getComputedStyle(t).fontSize) * box.width / svg.viewBox.baseVal.width)),
    overlap: legend ? axes.getBoundingClientRect().bottom - legend.getBoundingClientRect().top : 0};
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A comparison, a single run, twenty methods with long names, and a run that was not evaluated yet."""
    place = tmp_path_factory.mktemp("pages")
    runs = {
        "comparison": comparison(place / "comparison"),
        "single": [write(place / "single", config(), records(30))],
        "twenty": [
            write(
                place / "twenty" / f"{'verylongname' * 12}{i}",
                config(
                    0, "fab-top-k" if i % 2 else "unidirectional-top-k", {"name": "extended-sign", "alpha": 1 + i / 10}
                ),
                records(30, seed=i, k=20.0 + 9 * i, speed=0.02 + 0.004 * i),
            )
            for i in range(20)
        ],
        "early": [write(place / "early", config(stop={"rounds": 900}), records(3, every=None))],
    }

    def page(name: str) -> Path:
        return write_report(runs[name], place / name / "out", formats=(), target_loss=0.9, target_accuracy=0.999).page

    return {name: page(name) for name in runs}


NAMES = ["comparison", "single", "twenty", "early"]
SCREENS: list[dict[str, int | bool]] = [
    {"width": 1280},
    {"width": 360, "height": 780, "mobile": True},
    {"width": 800, "dark": True},
]


@pytest.mark.parametrize("screen", SCREENS, ids=["desk", "phone", "tablet"])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_everything_and_asks_for_nothing(
    browser: Chromium, pages: dict[str, Path], name: str, screen: dict[str, int | bool]
) -> None:
    browser.open(pages[name], **screen)  # type: ignore[arg-type]
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("document.compatMode") == "CSS1Compat"
    assert browser.evaluate("document.documentElement.scrollWidth") <= screen["width"]
    figures = browser.evaluate(FIGURES)
    assert len(figures) == {"comparison": 9, "single": 8, "twenty": 8, "early": 4}[name]
    for figure in figures:
        assert figure["width"] > 250, figure
        assert figure["height"] > 150, figure
        assert figure["lines"] > 10, figure
        assert figure["out"] == [], figure
        assert figure["overlap"] <= 0.5, figure
        assert figure["letters"] >= 7.5, figure
    # Only tables that say so may scroll sideways, and here none needs to.
    assert browser.evaluate("[...document.querySelectorAll('.wide')].every(e => e.scrollWidth <= e.clientWidth)")


@pytest.mark.parametrize("dark", [False, True])
def test_all_words_can_be_read(browser: Chromium, pages: dict[str, Path], dark: bool) -> None:
    browser.open(pages["comparison"], dark=dark)
    found = browser.evaluate(CONTRASTS)
    assert len(found) > 200
    assert [one for one in found if one[0] < 4.5] == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
    sheet = browser.evaluate("getComputedStyle(document.querySelector('figure svg path')).fill")
    assert sheet == paper  # figures are on the paper of the page
    lines = browser.evaluate("[...document.querySelectorAll('.axes path')].map(p => getComputedStyle(p).stroke)")
    assert ("rgb(86, 169, 240)" in lines) == dark
    assert ("rgb(10, 85, 140)" in lines) != dark


@pytest.mark.parametrize("name", NAMES)
def test_print(browser: Chromium, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], dark=True)
    with browser.printing(A4_WIDTH):
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(27, 31, 36)"
        assert browser.evaluate("document.documentElement.scrollWidth") <= A4_WIDTH
        assert browser.evaluate("[...document.querySelectorAll('table')].every(e => e.offsetWidth <= innerWidth)")
        split = "[...document.querySelectorAll('figure')].map(e => [getComputedStyle(e).breakInside, e.offsetHeight])"
        for rule, height in browser.evaluate(split):
            assert rule == "avoid"
            assert height < A4_HEIGHT
    printed = browser.pdf()
    assert printed.startswith(b"%PDF")
    pages_of_it = len(re.findall(rb"/Type /Page\b(?!s)", printed))
    assert 2 <= pages_of_it <= 20


def test_a_screen_reader_finds_tables_and_figures_on_a_phone(browser: Chromium, pages: dict[str, Path]) -> None:
    # Tables that are laid out as cards must still be tables.
    browser.open(pages["comparison"], mobile=True, width=360, height=780)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node.get("ignored")]
    assert roles.count("table") == 4
    assert roles.count("columnheader") >= 10
    assert roles.count("rowheader") >= 16
    images = [node for node in nodes if node["role"]["value"] in ("img", "image") and not node.get("ignored")]
    assert len(images) == 9
    assert all(len(node["name"]["value"]) > 40 for node in images)


def test_the_browser_would_have_noticed(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><title>x</title><img src='https://example.org/x.png'><script>console.error('no')</script>"
        "<script>null.x</script><div style='width: 2000px; color: #999'>grey</div>"
        "<figure><svg width='9' height='9' viewBox='0 0 9 9'><text y='50'>out</text></svg></figure>"
    )
    browser.open(page)
    assert browser.requests() == [page.as_uri(), "https://example.org/x.png"]
    assert len(browser.complaints()) >= 3  # the request that failed, the error that was logged, the one that was thrown
    assert browser.evaluate("document.documentElement.scrollWidth") > 1280
    assert min(one[0] for one in browser.evaluate(CONTRASTS)) < 4.5
    figure = browser.evaluate(FIGURES.replace("axes.getB", "svg.getB"))[0]
    assert figure["out"] == ["out"]
    assert figure["lines"] == 0
