"""The results in docs/results/data: they load with the numbers that they had, and give the tables that stand there."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gradsift.cli import regret
from gradsift.cli.main import main
from gradsift.experiments import trajectory
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import PAPER
from gradsift.experiments.paper.tables import table
from gradsift.experiments.store import Store
from gradsift.report import text
from tests.doc_pages import ROOT

pytestmark = pytest.mark.slow  # many runs

DATA = ROOT / "docs/results/data"
# By file: runs, rounds, the sum of their costs, the sum of their losses, and of elements up and twice down.
CONTENT = {
    "energy": (6, 10401, 603863.077044352, 1007.3797284384372, 356100138),
    "fig1": (10, 12835, 33815.58514351558, 6584.357247025142, 1397502090),
    "fig4": (18, 38871, 54016.61176142094, 6539.422697143999, 1695396024),
    "fig5": (12, 8754, 36053.009913030175, 2393.985624620078, 1818367941),
    "fig6": (6, 16298, 54007.55497205349, 1326.2743533365945, 251180706),
    "fig7": (12, 26818, 45645.7109606317, 2322.8907695878484, 1284273378),
    "fig8": (12, 18000, 27094.690251054784, 1699.058254961109, 890208726),
    "local-steps-cifar10": (2, 1137, 3160.1248995817587, 264.33060674633026, 49020000),
    "local-steps-femnist": (30, 6111, 42852.8981471056, 2838.142693709433, 367609308),
    "money": (6, 10401, 9225.372209152767, 1071.922040855864, 258555990),
    "regret-cifar10": (124, 110498, 451437.2742950901, 11363.564896992377, 16341345531),
    "regret-femnist-energy": (3, 3440, 320008.7964902402, 445.6819095671973, 31696917),
    "regret-femnist-link-time": (3, 3100, 1075.5174553599995, 405.84600146301653, 44733381),
    "regret-femnist-money": (3, 7331, 27.601916159999956, 908.9185308429096, 3885951),
    "regret-femnist": (130, 173847, 679672.9163851015, 20841.80856862189, 19245856851),
    "sparsifiers": (18, 39499, 54011.0058235114, 6194.686658909721, 1119554187),
}
SEEDS = {name: 1 if name in ("fig1", "sparsifiers") else 3 for name in FIGURES}  # in the tables
CONTROLLERS = "planned,planned[guess=10],planned[guess=0.1],extended-sign,sign,value,exp3,continuous-bandit"
COMMAND = ["--rounds", "2000", "--seeds", "3", "--comm-times", "0.1,1,10,100,1000", "--controllers", CONTROLLERS]
STOPPED_EARLY = {"femnist": 8}  # runs that no table counts
TARGETS = {"femnist": "2.5,2,1.5"}  # CIFAR-10 would take as long, through the same code


def test_every_file_is_known() -> None:
    assert {path.stem for path in DATA.glob("*.npz")} == set(CONTENT)


@pytest.mark.parametrize("name", CONTENT)
def test_a_file_holds_the_numbers_that_it_held(name: str) -> None:
    runs = list(trajectory.load(DATA / f"{name}.npz").values())
    count, rounds, cost, loss, elements = CONTENT[name]
    assert (len(runs), sum(t.rounds for t in runs)) == (count, rounds)
    assert sum(int(t.up.sum() + 2 * t.down.sum()) for t in runs) == elements
    assert sum(float(t.cost[-1]) for t in runs) == pytest.approx(cost, rel=1e-13)
    assert sum(float(t.loss.sum()) for t in runs) == pytest.approx(loss, rel=1e-13)
    for t in runs:
        assert np.all(np.diff(t.evaluated) > 0)
        assert len(t.contribution) == t.config["data"]["clients"]


def experiments(figure: str, seeds: int = 3) -> list[Experiment]:
    return [e for seed in range(seeds) for e in FIGURES[figure](PAPER, seed)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("runs"), DATA, FIGURES)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_run_is_a_finished_experiment_of_its_figure_and_gives_its_table(figure: str, store: Store) -> None:
    there = {e.name for e in experiments(figure) if store.get(e) is not None}  # a run of other settings is refused
    assert there == set(trajectory.load(DATA / f"{figure}.npz"))
    names, lines = table(figure, experiments(figure, SEEDS[figure]), store, PAPER.target_accuracy)
    assert all(store.finished(e) for e in experiments(figure, SEEDS[figure]))
    assert text.markdown(names, lines) == (DATA / f"{figure}.md").read_text()


@pytest.mark.parametrize("name", TARGETS)
def test_the_regret_tables_come_from_the_same_command_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(regret, "print_figures", lambda *_: None)
    results = tmp_path / "results"
    results.mkdir()
    for path in DATA.glob("*.npz"):
        shutil.copy(path, results)
    where = ["--results", str(results), "--out", str(tmp_path / "runs"), "--report"]
    assert main(["regret", "--like", name, "--scale", "paper", "--targets", TARGETS[name], *COMMAND, *where]) == 0
    assert f"{CONTENT[f'regret-{name}'][0] - STOPPED_EARLY[name]} of " in capsys.readouterr().out
    assert (results / f"regret-{name}.md").read_text() == (DATA / f"regret-{name}.md").read_text()
    assert set(trajectory.load(results / f"regret-{name}.npz")) == set(trajectory.load(DATA / f"regret-{name}.npz"))
