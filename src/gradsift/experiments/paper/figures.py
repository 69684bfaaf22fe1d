"""The experiments of each figure of the paper for one seed, one function per figure."""

from collections.abc import Callable
from typing import Any

import gradsift
from gradsift.experiments.experiment import CONTROLLERS, SPARSIFIERS, Experiment, Setup, Switch, make_experiment
from gradsift.experiments.paper.scale import Scale

FAR = 100.0  # the communication time of Figure 6
COMM_TIMES = (0.1, 1.0, 10.0, 100.0)  # of Figures 7 and 8
# What a byte and a client's round cost in joules and in dollars, to an order of magnitude. Energy: 438 mW per Mbit/s up
# and 52 down on LTE (Huang et al., MobiSys 2012), without its base power and tail energy, and a quarter of a second of
# a phone's processor at 2 W. Money: 5 dollars per GB of mobile data up or down, about the world's mean of 2020, and a
# second of a core rented at 0.04 dollars an hour.
PRICES = {
    "energy": {"up": 3.5e-6, "down": 4.2e-7, "compute": 0.5},
    "money": {"up": 5e-9, "down": 5e-9, "compute": 1e-5},
}


def fig1(scale: Scale, seed: int) -> list[Experiment]:
    """Assumption 1: different k until the global loss is psi, then the same k for all."""
    return [_switching(scale, seed, k, psi) for psi in scale.psi for k in scale.ks]


def fig4(scale: Scale, seed: int) -> list[Experiment]:
    """All sparsifiers at the same fixed k, comm_time 10."""
    common = {"k": float(scale.k), "cost_budget": scale.cost_budget}
    return [_femnist(scale, seed, label, sparsifier=name, **common) for name, label in SPARSIFIERS.items()]


def fig5(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 against the other controllers, comm_time 10."""
    controllers = ("extended-sign", "value", "exp3", "continuous-bandit")
    return [_searching(scale, seed, controller, 10.0, scale.cost_budget) for controller in controllers]


def fig6(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 2 against Algorithm 3, comm_time 100."""
    return [_searching(scale, seed, controller, FAR, scale.far_budget) for controller in ("extended-sign", "sign")]


def sparsifiers(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 over every sparsifier that has a k, and the same sparsifiers at the paper's k; comm_time 10."""
    experiments = []
    for name, label in SPARSIFIERS.items():
        if not gradsift.sparsifier(name).dense:
            common: dict[str, Any] = {"sparsifier": name, "cost_budget": scale.cost_budget}
            experiments.append(_femnist(scale, seed, f"{label}, Algorithm 3", controller="extended-sign", **common))
            experiments.append(_femnist(scale, seed, f"{label}, k = {scale.k:,}", k=float(scale.k), **common))
    return experiments


def fig7(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 at four communication times on FEMNIST; the cost of each run is then counted at all four."""
    return _sequences(scale, scale.femnist, seed)


def fig8(scale: Scale, seed: int) -> list[Experiment]:
    """Figure 7 on CIFAR-10 with one class per client."""
    return _sequences(scale, scale.cifar10, seed)


def energy(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 minimising energy and Algorithm 3 minimising time, compared by their energy."""
    return _other_cost(scale, seed, "energy")


def money(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 minimising money and Algorithm 3 minimising time, compared by their money."""
    return _other_cost(scale, seed, "money")


Figure = Callable[[Scale, int], list[Experiment]]
FIGURES: dict[str, Figure] = {f.__name__: f for f in (fig1, fig4, fig5, fig6, fig7, fig8, sparsifiers, energy, money)}


def _femnist(scale: Scale, seed: int, label: str, **options: Any) -> Experiment:
    return make_experiment(scale.femnist, seed, label, eval_every=scale.eval_every, **options)


def _searching(scale: Scale, seed: int, controller: str, comm_time: float, budget: float) -> Experiment:
    """Make the experiment of a controller over FAB-top-k in the paper's search range, the default of controllers."""
    options = {}
    if controller in ("exp3", "continuous-bandit"):
        # They need the number of rounds: as many as the budget pays for with k in the middle of the range.
        options["horizon"] = max(1, round(budget / (1 + comm_time * 1.002)))
    common: dict[str, Any] = {"controller": controller, "comm_time": comm_time, "cost_budget": budget}
    return _femnist(scale, seed, CONTROLLERS[controller], options=options, **common)


def _switching(scale: Scale, seed: int, k: int, psi: float) -> Experiment:
    plain = _femnist(scale, seed, f"k = {k:,}", k=float(k), rounds=scale.psi_rounds, target_loss=psi)
    return Experiment(
        f"{scale.femnist.name}-k{k}-until-loss{psi:g}-seed{seed}",
        plain.label,
        {**plain.settings, "eval_every": max(1, scale.eval_every // 4)},  # to see early that the loss is psi
        Switch(loss=psi, k=float(scale.k), rounds=scale.after),
    )


def _sequences(scale: Scale, setup: Setup, seed: int) -> list[Experiment]:
    # Limited by rounds, not cost: at the shortest communication time a round costs little more than 1, whatever k is.
    common: dict[str, Any] = {"controller": "extended-sign", "eval_every": scale.eval_every, "rounds": scale.rounds}
    return [make_experiment(setup, seed, f"k learned at {time:g}", comm_time=time, **common) for time in COMM_TIMES]


def _other_cost(scale: Scale, seed: int, what: str) -> list[Experiment]:
    common: dict[str, Any] = {"controller": "extended-sign", "rounds": scale.rounds}
    return [
        _femnist(scale, seed, f"Algorithm 3, saving {what}", cost=(what, PRICES[what]), **common),
        _femnist(scale, seed, "Algorithm 3, saving time", comm_time=10.0, **common),
    ]
