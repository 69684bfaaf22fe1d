"""``write_report``: the files it writes, the same files again from the same runs, and the errors it raises."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from gradsift import GradsiftError, RunError
from gradsift.report import export, summarise, write_report
from gradsift.report.write import ReportFiles
from tests.report.folders import comparison, config, records, write

pytestmark = pytest.mark.slow  # draws many pages

EVERY = {"loss-cost", "loss-rounds", "accuracy-cost", "accuracy-rounds", "k", "k-interval-1"}
EVERY |= {"traffic-up", "traffic-down", "contributions"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return comparison(tmp_path_factory.mktemp("comparison"))


@pytest.fixture(scope="module")
def report(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    return write_report(runs, tmp_path_factory.mktemp("report") / "new" / "out", target_loss=1.0)


def test_files(report: ReportFiles) -> None:
    assert report.page.name == "index.html"
    assert {path.name for path in report.figures} == {f"{name}.{kind}" for name in EVERY for kind in ("svg", "png")}
    assert set((report.page.parent / "figures").iterdir()) == set(report.figures)
    for path in report.figures:
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
                assert image.width >= 1260  # 4.2 inches
                colours = image.convert("RGB").resize((200, 200)).getcolors(200 * 200)
                assert colours is not None
                assert len(colours) > 20  # not an empty sheet
        else:
            root = ElementTree.parse(path).getroot()
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            # A paper's figure must not depend on the fonts of the reader.
            assert not list(root.iter("{http://www.w3.org/2000/svg}text"))
            assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 30


def test_rows_are_those_of_the_summary(report: ReportFiles, runs: list[Path]) -> None:
    assert list(report.rows) == summarise(runs, target_loss=1.0)
    assert report.notes == ()


def test_twice_the_same(report: ReportFiles, runs: list[Path], tmp_path: Path) -> None:
    # In another process, where strings hash otherwise and the clock has moved on.
    code = (
        "import sys; from gradsift.report import write_report; write_report(sys.argv[2:], sys.argv[1], target_loss=1.0)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, tmp_path, *runs], check=True)
    for path in (report.page, *report.figures):
        again = tmp_path / path.relative_to(report.page.parent)
        assert again.read_bytes() == path.read_bytes(), path.name


def test_importing_needs_no_matplotlib_and_drawing_no_pyplot(runs: list[Path], tmp_path: Path) -> None:
    code = """
import sys
import gradsift.report
assert not {name for name in sys.modules if name.startswith(("matplotlib", "jinja2"))}
gradsift.report.write_report([sys.argv[1]], sys.argv[2], formats=())
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code, runs[0], tmp_path], check=True)


def test_settings_of_matplotlib_neither_matter_nor_change(
    report: ReportFiles, runs: list[Path], tmp_path: Path
) -> None:
    with matplotlib.rc_context({"font.size": 30, "xtick.major.size": 20, "legend.handletextpad": 4}):
        before = dict(matplotlib.rcParams)
        write_report(runs, tmp_path, formats=(), target_loss=1.0)
        assert dict(matplotlib.rcParams) == before
    # The same page, but for the links to files that were not asked for.
    linked = re.sub(r'<span class="files">.*?</span>', "", report.page.read_text(), flags=re.DOTALL)
    assert (tmp_path / "index.html").read_text() == linked


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra(missing: str, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("export", "plot", "figures", "page"):
        monkeypatch.delitem(sys.modules, f"gradsift.report.{name}", raising=False)
        monkeypatch.delattr(f"gradsift.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(GradsiftError, match=rf"{missing}.*pip install '\.\[report\]'"):
        write_report(runs, tmp_path)


def test_an_older_report_in_the_same_place(tmp_path: Path) -> None:
    run = write(tmp_path / "run", config(), records(10))
    out = tmp_path / "out"
    first = write_report([run], out, formats=("svg",))
    (out / "figures" / "k.pdf").write_text("x")
    (out / "figures" / "mine.svg").write_text("x")
    (out / "figures" / "k.txt").write_text("x")
    shutil.rmtree(run)
    write(run, config(), records(10, accuracy=False))
    second = write_report([run], out, formats=("svg",))
    there = {path.name for path in (out / "figures").iterdir()}
    assert there == {path.name for path in second.figures} | {"mine.svg", "k.txt"}
    assert "accuracy-cost.svg" in {path.name for path in first.figures} - there
    assert (out / "figures" / "k.svg").read_bytes()[:5] == b"<?xml"


def test_pdf(tmp_path: Path) -> None:
    figure = Figure()
    figure.add_subplot().plot([1, 2])
    for name in "ab":
        (tmp_path / name).mkdir()
        export.save(figure, tmp_path / name / "figure.pdf")
    written = [(tmp_path / name / "figure.pdf").read_bytes() for name in "ab"]
    assert written[0].startswith(b"%PDF")
    assert written[0] == written[1]
    assert b"CreationDate" not in written[0]


def test_notes(tmp_path: Path) -> None:
    cut = write(tmp_path / "cut", config(stop={"rounds": 99}), records(10))
    again = write(tmp_path / "again", config(stop={"rounds": 99}), records(8))
    other = write(tmp_path / "other", config(0, "fub-top-k", data={"name": "digits"}, stop={"rounds": 10}), records(10))
    made = write_report([cut, again, other], tmp_path / "out", formats=())
    page = made.page.read_text()
    assert len(made.notes) == 3
    for note, said in zip(
        made.notes, (f"{again} is left out", f"{cut} is under way", "not run with the same data"), strict=True
    ):
        assert said in note
        assert said in page


def test_many_unfinished_runs_are_one_note(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"run{i}", config(i, stop={"rounds": 99}), records(2 + i)) for i in range(4)]
    made = write_report(paths, tmp_path / "out", formats=())
    assert len(made.notes) == 1
    assert "4 of 4 runs" in made.notes[0]
    assert made.page.read_text().count("of 99, not finished") == 4


def test_targets_are_those_the_runs_had(tmp_path: Path) -> None:
    stop = {"rounds": 40, "target_loss": 0.75, "target_accuracy": 0.6}
    run = write(tmp_path / "run", config(stop=stop), records(40))
    row = write_report([run], tmp_path / "a", formats=()).rows[0]
    assert (row.target_loss, row.target_accuracy) == (0.75, 0.6)
    row = write_report([run], tmp_path / "b", formats=(), target_loss=1.5).rows[0]
    assert (row.target_loss, row.target_accuracy) == (1.5, 0.6)


def test_refusals(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(GradsiftError, match="unknown format 'gif'"):
        write_report(runs, tmp_path / "out", formats=("gif",))
    with pytest.raises(GradsiftError, match="no runs"):
        write_report([], tmp_path / "out")
    with pytest.raises(GradsiftError, match="there is no folder"):
        write_report([tmp_path / "typo"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="could not write the report"):
        write_report(runs[:1], tmp_path / "file", formats=())
