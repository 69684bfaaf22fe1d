"""Deployments and simulated runs in one report: the same method, run by either driver, has the same numbers."""

import copy
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Context
from torch import nn

import gradsift
from gradsift.cli.main import main
from gradsift.data import FederatedData
from gradsift.flower import GradientTask, SparseStrategy, gradient_app
from gradsift.report import load_run, summarise, write_report
from tests.flower.grid import LocalGrid, node_of
from tests.flower.ledger import app, arrays, strategy_of
from tests.simulation.problems import blobs, mlp

ROUNDS = 8
CLIENTS = 4


def deploy(out: Path, data: FederatedData, **options: object) -> SparseStrategy:
    """The paper's round on Flower, in this process."""
    model = mlp().double()
    double, local = data.to("cpu", torch.float64), copy.deepcopy(model)

    def task(context: Context) -> GradientTask:
        rows = data.rows(int(context.node_config["partition-id"]))
        return GradientTask(local, nn.CrossEntropyLoss(), double.x[rows], double.y[rows], 8)

    strategy = SparseStrategy(model, lr=0.3, encoded_bytes=False, out=out, **options)  # type: ignore[arg-type]
    grid = LocalGrid(lambda: gradient_app(task), CLIENTS)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)
    return strategy


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A deployment, and the same in the simulator."""
    place, data = tmp_path_factory.mktemp("runs"), blobs(CLIENTS)
    deploy(place / "deployed", data, controller="extended-sign")
    gradsift.simulate(
        mlp(),
        nn.CrossEntropyLoss(),
        data,
        controller="extended-sign",
        lr=0.3,
        rounds=ROUNDS,
        batch_size=8,
        delay=1,
        eval_every=1,
        dtype=torch.float64,
        out=place / "simulated",
    )
    return place / "deployed", place / "simulated"


def test_the_numbers_of_both_are_the_same(folders: tuple[Path, Path]) -> None:
    deployed, simulated = (load_run(folder) for folder in folders)
    assert deployed.cost == pytest.approx(simulated.cost)
    assert deployed.k == pytest.approx(simulated.k)
    assert deployed.low == pytest.approx(simulated.low)
    assert deployed.contribution.tolist() == simulated.contribution.tolist()
    assert deployed.loss == pytest.approx(simulated.loss[1:])  # the clients do not evaluate before the first round
    assert deployed.evaluated.tolist() == simulated.evaluated[1:].tolist()
    assert deployed.finished
    one, other = summarise(folders)
    assert (one.label, other.label) == ("fab-top-k, extended-sign, on Flower", "fab-top-k, extended-sign")
    assert one.loss.mean == pytest.approx(other.loss.mean)
    assert one.cost.mean == pytest.approx(other.cost.mean)
    assert one.least_used.mean == pytest.approx(other.least_used.mean)


@pytest.mark.slow
def test_one_page_has_both(folders: tuple[Path, Path], tmp_path: Path) -> None:
    made = write_report(folders, tmp_path / "report")
    assert len(made.rows) == 2
    # The same model, as far as both configurations describe it.
    assert made.notes == ("Bytes on Flower are measured; bytes of simulated runs are those that their settings count.",)
    page = made.page.read_text()
    for row in made.rows:
        assert row.label in page


@pytest.mark.slow
def test_the_command_has_both(folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *map(str, folders), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "index.html").is_file()
    printed = capsys.readouterr().out
    for row in summarise(folders):
        assert row.label in printed


@pytest.mark.slow
def test_seeds_of_a_deployment_are_one_method(tmp_path: Path) -> None:
    for seed in (0, 1):
        deploy(tmp_path / str(seed), blobs(CLIENTS), seed=seed)
    (row,) = summarise([tmp_path])
    assert row.seeds == (0, 1)


def test_a_deployment_is_read_while_it_runs_and_while_clients_come(tmp_path: Path) -> None:
    grid, seen = LocalGrid(app, 4), list[tuple[int, bool]]()
    late = grid.contexts.pop(node_of(0))

    def look(number: int, record: ArrayRecord) -> None:
        del record
        if number == 2:
            grid.contexts[node_of(0)] = late
        if number > 1:
            run = load_run(tmp_path / "run")
            seen.append((run.rounds, run.finished))

    strategy_of(out=tmp_path / "run", k=11).start(grid, arrays(), num_rounds=3, evaluate_fn=look)
    assert seen == [(1, False), (2, False)]  # a record is written when its round is over, evaluation included
    run = load_run(tmp_path / "run")
    assert (run.rounds, run.finished) == (3, True)
    assert run.contribution.tolist() == [33, 33, 33, 11]  # client 0 came last
    assert summarise([tmp_path / "run"])[0].least_used.mean == pytest.approx(11 / 27.5)


def test_the_command_to_resume_says_how_a_deployment_continues(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(folders[0])]) == 2
    assert "its server app is started again with the same out=" in capsys.readouterr().err
