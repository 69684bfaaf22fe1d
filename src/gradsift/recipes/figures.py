"""One function a figure of the paper: its experiments for one seed."""

from collections.abc import Callable
from typing import Any

from gradsift.errors import GradsiftError
from gradsift.recipes.experiment import Experiment, Switch, method
from gradsift.recipes.scale import Scale, Setup
from gradsift.registry import nearest

# The names of the paper's figures, for legends.
SPARSIFIERS = {
    "fab-top-k": "FAB-top-k",
    "fub-top-k": "FUB-top-k",
    "unidirectional-top-k": "unidirectional top-k",
    "periodic-k": "periodic-k",
    "fedavg": "FedAvg",
    "send-all": "always send all",
}
CONTROLLERS = {
    "extended-sign": "Algorithm 3",
    "sign": "Algorithm 2",
    "value": "value-based descent",
    "exp3": "EXP3",
    "continuous-bandit": "continuous bandit",
}
FAR = 100.0  # the communication time of Figure 6
COMM_TIMES = (0.1, 1.0, 10.0, 100.0)  # of Figures 7 and 8
# What a byte and a client's round cost where it is not time, right to an order of magnitude. Energy: what LTE takes for
# each byte more, 438 mW a Mbit/s up and 52 down (Huang et al., MobiSys 2012), without its base power and its tail, and
# a quarter of a second of a phone's processor at 2 W a round. Money: 5 dollars a GB of mobile data either way, about
# the world's mean of 2020, and a second of a core rented at 0.04 dollars an hour a round.
PRICES = {
    "energy": {"up": 3.5e-6, "down": 4.2e-7, "compute": 0.5},
    "money": {"up": 5e-9, "down": 5e-9, "compute": 1e-5},
}


def fig1(scale: Scale, seed: int) -> list[Experiment]:
    """Assumption 1: another k until the global loss is psi, then the same k; does the past matter?"""
    return [_switching(scale, seed, k, psi) for psi in scale.psi for k in scale.ks]


def fig4(scale: Scale, seed: int) -> list[Experiment]:
    """All methods of sparsification at the same fixed k, comm_time 10."""
    return [
        method(
            scale, scale.femnist, seed, label, sparsifier=sparsifier, k=float(scale.k), cost_budget=scale.cost_budget
        )
        for sparsifier, label in SPARSIFIERS.items()
    ]


def fig5(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 against the other ways to learn k, comm_time 10."""
    return [
        _searching(scale, seed, controller, 10.0, scale.cost_budget)
        for controller in ("extended-sign", "value", "exp3", "continuous-bandit")
    ]


def fig6(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 2 against Algorithm 3, comm_time 100."""
    return [_searching(scale, seed, controller, FAR, scale.far_budget) for controller in ("extended-sign", "sign")]


def sparsifiers(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 on other sparsifiers than FAB-top-k, each beside the same at the paper's fixed k; comm_time 10."""
    sparse = [name for name in SPARSIFIERS if name not in ("fedavg", "send-all")]
    return [
        one
        for name in sparse
        for one in (
            method(
                scale,
                scale.femnist,
                seed,
                f"{SPARSIFIERS[name]}, Algorithm 3",
                sparsifier=name,
                controller="extended-sign",
                cost_budget=scale.cost_budget,
            ),
            method(
                scale,
                scale.femnist,
                seed,
                f"{SPARSIFIERS[name]}, k = {scale.k:,}",
                sparsifier=name,
                k=float(scale.k),
                cost_budget=scale.cost_budget,
            ),
        )
    ]


def fig7(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 at four communication times on FEMNIST; each sequence of k is then clocked under all four."""
    return _sequences(scale, scale.femnist, seed)


def fig8(scale: Scale, seed: int) -> list[Experiment]:
    """The same on CIFAR-10 with one class a client."""
    return _sequences(scale, scale.cifar10, seed)


def energy(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 told to save energy, and the same told to save time, by what they use of energy."""
    return _other_cost(scale, seed, "energy")


def money(scale: Scale, seed: int) -> list[Experiment]:
    """Algorithm 3 told to save money, and the same told to save time, by what they cost."""
    return _other_cost(scale, seed, "money")


Figure = Callable[[Scale, int], list[Experiment]]
FIGURES: dict[str, Figure] = {
    "fig1": fig1,
    "fig4": fig4,
    "fig5": fig5,
    "fig6": fig6,
    "fig7": fig7,
    "fig8": fig8,
    "sparsifiers": sparsifiers,
    "energy": energy,
    "money": money,
}


def figure_named(name: str) -> Figure:
    """The recipe of a figure."""
    if name not in FIGURES:
        raise GradsiftError(f"unknown figure {name!r}{nearest(name, list(FIGURES))}")
    return FIGURES[name]


def _searching(scale: Scale, seed: int, controller: str, comm_time: float, budget: float) -> Experiment:
    """A controller over FAB-top-k with the paper's search range, which is each controller's default."""
    options = {}
    if controller in ("exp3", "continuous-bandit"):
        # These want to know how many rounds there will be: what the budget pays for with k in the middle of the range.
        options["horizon"] = max(1, round(budget / (1 + comm_time * 1.002)))
    return method(
        scale,
        scale.femnist,
        seed,
        CONTROLLERS[controller],
        controller=controller,
        comm_time=comm_time,
        options=options,
        cost_budget=budget,
    )


def _switching(scale: Scale, seed: int, k: int, psi: float) -> Experiment:
    plain = method(scale, scale.femnist, seed, f"k = {k:,}", k=float(k), rounds=scale.psi_rounds, target_loss=psi)
    return Experiment(
        f"{scale.femnist.name}-k{k}-until-loss{psi:g}-seed{seed}",
        plain.label,
        {**plain.settings, "eval_every": max(1, scale.eval_every // 4)},  # to see when the loss is psi
        Switch(loss=psi, k=float(scale.k), rounds=scale.after),
    )


def _sequences(scale: Scale, setup: Setup, seed: int) -> list[Experiment]:
    # By rounds: under the shortest communication time a round takes little more than 1, whatever k is.
    return [
        method(
            scale,
            setup,
            seed,
            f"k learned at {comm_time:g}",
            controller="extended-sign",
            comm_time=comm_time,
            rounds=scale.rounds,
        )
        for comm_time in COMM_TIMES
    ]


def _other_cost(scale: Scale, seed: int, what: str) -> list[Experiment]:
    common: dict[str, Any] = {"controller": "extended-sign", "rounds": scale.rounds}
    return [
        method(scale, scale.femnist, seed, f"Algorithm 3, saving {what}", cost=(what, what, PRICES[what]), **common),
        method(scale, scale.femnist, seed, "Algorithm 3, saving time", comm_time=10.0, **common),
    ]
