"""The page as a document: well formed, complete without other files, every value escaped."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gradsift.report import write_report
from tests.report.folders import comparison, config, records, write

pytestmark = pytest.mark.slow  # draws many pages

VOID = {"meta", "link", "br"}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'{{ 7 * 7 }}{% raw %}$x_\\frac$</style></svg>"


class Page(HTMLParser):
    """A page's elements and text; fails on tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    place = tmp_path_factory.mktemp("page")
    return Page(write_report(comparison(place / "runs"), place / "out", target_loss=0.9, target_accuracy=0.999).page)


def test_ids_are_there_once_and_for_every_reference(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    wanted = [word for _, a in page.elements for word in a.get("aria-labelledby", "").split()]
    wanted += [a["href"][1:] for a in page.all("use")]
    wanted += [a["clip-path"][5:-1] for _, a in page.elements if "clip-path" in a]
    assert len(wanted) > 50
    assert set(wanted) <= set(ids)


def test_nothing_is_fetched(page: Page) -> None:
    assert not {"script", "img", "iframe", "object", "embed", "image", "base", "form"} & {
        tag for tag, _ in page.elements
    }
    assert [a["href"] for a in page.all("link")] == ["data:,"]
    assert all(a["href"].startswith("#") for a in page.all("use"))
    for link in page.all("a"):
        assert link["href"].startswith("figures/")
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert all("url(" not in text and "@import" not in text for tag, text in page.text if tag == "style")


def test_every_figure_has_words_and_every_table_its_headers(page: Page) -> None:
    figures = [a for a in page.all("svg") if a.get("role") == "img"]
    assert len(figures) == len(page.all("figure")) == len(page.all("figcaption")) == 9
    titles = [text for tag, text in page.text if tag == "title"]
    assert len(titles) == 1 + len(figures)
    described = [text for tag, text in page.text if tag == "desc"]
    assert len(described) == len(figures)
    assert all(text.startswith("Line chart") and "fab-top-k" in text for text in described)
    assert len(page.all("table")) == 4
    assert len(page.all("caption")) == 1
    assert all(a.get("scope") in ("row", "col") for a in page.all("th"))
    # A browser may forget what a table is that is laid out as cards, unless it is told.
    stacked = [a for a in page.all("table") if "stack" in a["class"].split()]
    assert len(stacked) == 3
    assert all(a.get("role") == "table" for a in stacked)


def test_the_numbers_of_the_summary_are_in_the_table(page: Page) -> None:
    words = [text.strip() for _, text in page.text]
    for expected in ("not reached", "Cost to loss 0.9", "fab-top-k, extended-sign", "send-all"):
        assert expected in words
    assert "Cost to accuracy 99.9\N{NO-BREAK SPACE}%" in words


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    about: dict[str, Any] = {
        "sparsifier": HOSTILE,
        "controller": {"name": f"_{HOSTILE}", HOSTILE: HOSTILE},
        "model": {"class": HOSTILE, "dim": 1000, "text": f"{HOSTILE}\n{HOSTILE}"},
        "data": {"name": HOSTILE, "clients": 6},
        "cost": {"class": HOSTILE},
        HOSTILE: {HOSTILE: [HOSTILE, "\x00\x1b\ud800\uffff日本"]},
    }
    bad = write(tmp_path / "<b>&bold", config(stop={"rounds": 99}, **about), records(10, interval=True))
    good = write(tmp_path / "good", config(), records(10))
    made = write_report([bad, good], tmp_path / "out", title=HOSTILE, formats=("svg",))
    found = Page(made.page)
    for tag in ("script", "img", "b"):
        assert found.all(tag) == []
    assert all("onerror" not in attributes for _, attributes in found.elements)
    words = [text for _, text in found.text]
    assert sum(HOSTILE in text for text in words) >= 8
    assert "49" not in words  # a template in a name is not run
    h1 = [text for tag, text in found.text if tag == "h1"]
    assert h1 == [HOSTILE]
    assert any(str(bad) in text for tag, text in found.text if tag == "code")
    # The labels of the figures are there in letters, cut to what a legend has room for, dollar signs and all.
    assert any(HOSTILE[:20] in text for tag, text in found.text if tag == "text")


def test_text_of_a_figure_is_never_taken_for_anything_else(tmp_path: Path) -> None:
    # Not for colours or ids; not for a formula, which would not even parse; not for an entry that the legend hides.
    name = "_#ffffff url(#p) $\\frac_$"
    made = write_report([write(tmp_path / "run", config(0, name), records(10))], tmp_path / "out", formats=())
    texts = [text.strip() for tag, text in Page(made.page).text if tag == "text"]
    assert f"{name}, k = 50" in texts


def test_names_that_no_file_can_hold(tmp_path: Path) -> None:
    odd = "日本a\x00b\x1b[31m\ud800\uffff"  # nor has the font of the figures letters for all of it
    run = write(tmp_path / "run", config(0, odd, data={"name": odd, "clients": 6}), records(10))
    made = write_report([run], tmp_path / "out", title=odd, formats=("svg",))
    words = [text for _, text in Page(made.page).text]
    assert words.count("日本a\ufffdb\ufffd[31m\ufffd\ufffd") >= 3  # in the title, as a heading, in the configuration


@pytest.mark.parametrize(
    ("options", "figures", "said"),
    [
        ({"every": None}, 4, "No run has been evaluated after its start"),
        ({"accuracy": False}, 6, "no test accuracy"),
        ({"dense": True}, 7, "no k to show"),
        ({"rounds": 1}, 8, "One seed each"),
        ({"interval": True}, 8, "search interval"),
        ({"rounds": 1500, "every": 400}, 8, "One point is 3 rounds"),
        ({"clients": 1}, 8, "Fairness"),
    ],
)
def test_runs_of_every_kind(tmp_path: Path, options: dict[str, Any], figures: int, said: str) -> None:
    rounds = options.pop("rounds", 20)
    about = config(data={"name": "x", "clients": options.get("clients", 6)})
    made = write_report([write(tmp_path / "run", about, records(rounds, **options))], tmp_path / "out", formats=())
    page = Page(made.page)
    assert len(page.all("figure")) == figures
    assert any(said in text for _, text in page.text)


def test_a_run_that_used_nothing_yet(tmp_path: Path) -> None:
    lines = records(3, every=None)
    for line in lines:
        line |= {"contribution": [0] * 6, "up_bytes": 0.0, "down_bytes": 0.0, "up_elements": 0}
    made = write_report([write(tmp_path / "run", config(0, "fedavg"), lines)], tmp_path / "out", formats=())
    page = Page(made.page)
    assert [a["id"] for a in page.all("figure")] == ["figure-traffic-up", "figure-traffic-down"]
