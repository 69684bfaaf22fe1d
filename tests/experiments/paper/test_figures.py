"""The figures: complete experiments, with the paper's numbers at the paper's scale."""

import json

import pytest

import gradsift
from gradsift.control import unchecked
from gradsift.control.extended_sign import ExtendedSign
from gradsift.data import load
from gradsift.experiments import build
from gradsift.experiments.experiment import Experiment
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import PAPER, SMOKE, Scale
from gradsift.experiments.settings import RUN
from gradsift.experiments.work import as_jobs
from gradsift.models import model, paper_cnn


def settings(name: str, scale: Scale = PAPER) -> dict[str, dict[str, object]]:
    return {e.label: dict(e.settings) for e in FIGURES[name](scale, 0)}


@pytest.mark.parametrize("scale", [SMOKE, PAPER], ids=["smoke", "paper"])
@pytest.mark.parametrize("figure", FIGURES)
def test_experiments_are_complete_and_printable(figure: str, scale: Scale) -> None:
    for experiment in FIGURES[figure](scale, 3):
        assert set(experiment.settings) == {option.name for option in RUN} | {"set"}
        assert json.loads(json.dumps(experiment.settings)) == experiment.settings
        assert experiment.seed == 3
        assert experiment.name.endswith("-seed3")
        dim = (scale.cifar10 if figure == "fig8" else scale.femnist).dim
        chosen = dict(experiment.settings)
        controller = build.make_controller(chosen, dim)
        controller.init(dim=dim, seed=0)
        gradsift.check_pair(build.make_sparsifier(chosen), controller)
        build.make_cost(chosen)
        assert chosen["rounds"] < 10**6 or chosen["cost_budget"] is not None, "something must end it"


@pytest.mark.parametrize("figure", FIGURES)
def test_both_scales_have_the_same_recipe(figure: str) -> None:
    small, large = FIGURES[figure](SMOKE, 0), FIGURES[figure](PAPER, 0)
    parts = ("sparsifier", "controller", "comm_time", "cost")
    assert [[e.settings[part] for part in parts] for e in small] == [
        [e.settings[part] for part in parts] for e in large
    ]


def test_the_dimensions_are_those_of_the_models() -> None:
    for setup in (SMOKE.femnist, SMOKE.cifar10):
        data = load(str(setup.settings["data"]), clients=setup.settings["clients"])
        assert build.trainable(model(str(setup.settings["model"]), data)) == setup.dim
    assert build.trainable(paper_cnn(62, 1, 28)) == PAPER.femnist.dim
    assert build.trainable(paper_cnn(10, 3, 32)) == PAPER.cifar10.dim


def test_the_papers_set_up() -> None:
    for figure in FIGURES:
        for e in FIGURES[figure](PAPER, 0):
            data = ("cifar10", 100) if figure == "fig8" else ("femnist", 156)
            assert (e.settings["data"], e.settings["clients"]) == data
            assert (e.settings["model"], e.settings["lr"], e.settings["batch_size"]) == ("paper-cnn", 0.01, 32)


def test_figure_1_runs_every_k_to_every_psi_and_then_the_papers_k() -> None:
    made = FIGURES["fig1"](PAPER, 0)
    assert len({e.name for e in made}) == len(made) == 10
    assert {e.settings["k"] for e in made} == {100, 1000, 10_000, 44_406, 444_062}
    assert all(e.switch is not None and e.switch.k == 1000 and e.settings["target_loss"] == e.switch.loss for e in made)
    assert len({e.settings["target_loss"] for e in made}) == 2


def test_figure_4_compares_all_sparsifiers_at_the_same_k_and_cost() -> None:
    made = settings("fig4")
    names = ["fab-top-k", "fub-top-k", "unidirectional-top-k", "periodic-k", "fedavg", "send-all"]
    assert [s["sparsifier"] for s in made.values()] == names
    assert {(s["k"], s["comm_time"], s["cost_budget"]) for s in made.values()} == {(1000.0, 10.0, PAPER.cost_budget)}


def test_figures_5_and_6_search_the_papers_range() -> None:
    for figure, comm_time, names in (
        ("fig5", 10.0, ["extended-sign", "value", "exp3", "continuous-bandit"]),
        ("fig6", 100.0, ["extended-sign", "sign"]),
    ):
        made = settings(figure)
        assert [s["controller"] for s in made.values()] == names
        for s in made.values():
            assert (s["comm_time"], s["sparsifier"]) == (comm_time, "fab-top-k")
            controller = build.make_controller(s, PAPER.femnist.dim)
            state = controller.init(dim=PAPER.femnist.dim, seed=0)
            low, high = controller.search_interval(state) or (state["low"], state["high"])
            assert (round(low), round(high)) in ((888, 444_062), (889, 444_062))  # EXP3 has whole numbers
    extended = unchecked(build.make_controller(settings("fig6")["Algorithm 3"], PAPER.femnist.dim))
    assert isinstance(extended, ExtendedSign)
    assert (extended.alpha, extended.window) == (1.5, 20)


def test_a_run_that_two_figures_have_is_one_run() -> None:
    fixed = {e.name for e in FIGURES["fig4"](PAPER, 0)} & {e.name for e in FIGURES["sparsifiers"](PAPER, 0)}
    assert len(fixed) == 4
    both = [*FIGURES["fig5"](PAPER, 0), *FIGURES["sparsifiers"](PAPER, 0)]
    jobs = as_jobs(both)
    assert sum(len(job) for job in jobs) == len(both)
    assert [e.label for e in jobs[0]] == ["Algorithm 3", "FAB-top-k, Algorithm 3"]


def test_one_name_for_two_different_experiments_is_refused() -> None:
    one = FIGURES["fig4"](PAPER, 0)[0]
    other = Experiment(one.name, one.label, {**one.settings, "lr": 0.5})
    with pytest.raises(gradsift.GradsiftError, match="two different experiments"):
        as_jobs([one, other])
