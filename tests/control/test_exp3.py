"""EXP3 against the textbook's dense array of weights, its draws against its probabilities, and what it learns."""

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gradsift
from gradsift import Observation, Proposal
from gradsift.control.exp3 import Exp3
from gradsift.draws import rng
from tests.control.harness import Training, drive, one

Floats = NDArray[np.float64]


def priced(price: Callable[[float], float]) -> Callable[[Proposal], Observation]:
    """Rounds that take a unit off the loss at a price that k decides: with bound=1 it is what the bandit sees."""
    return lambda proposal: Observation(proposal, price(one(proposal.k)), loss_before=1.0, loss_after=0.0)


class Dense:
    """Figure 1 of Auer et al. (2002): all K weights in an array.

    The draw from p is that of its mixture, uniform with probability gamma and else by weight. So that the same two
    numbers draw the same arm, the weights are laid out as Exp3 does: arms pulled before, then the others.
    """

    def __init__(self, count: int, gamma: float) -> None:
        self.weights, self.pulled = np.ones(count), np.zeros(count, dtype=bool)
        self.count, self.gamma = count, gamma

    def probabilities(self) -> Floats:
        mixed: Floats = (1 - self.gamma) * self.weights / self.weights.sum() + self.gamma / self.count
        return mixed

    def draw(self, seed: int, number: int) -> int:
        generator = rng(seed, "exploration", number=number)
        explores, position = generator.random() < self.gamma, generator.random()
        if explores:
            return int(position * self.count)
        order = np.argsort(~self.pulled, kind="stable")
        edges = self.weights[order].cumsum()
        return int(order[np.searchsorted(edges, position * edges[-1], side="right")])

    def learn(self, arm: int, gain: float) -> None:
        self.weights[arm] *= math.exp(self.gamma * gain / self.probabilities()[arm] / self.count)
        self.pulled[arm] = True


@pytest.mark.parametrize(("count", "gamma"), [(1, 0.3), (2, 0.1), (7, 0.05), (40, 0.2), (300, 1.0), (300, 0.1)])
def test_equals_the_dense_textbook(count: int, gamma: float) -> None:
    seed, rounds = 11, 1500
    controller = gradsift.controller("exp3", k_min=5, k_max=4 + count, gamma=gamma, bound=1.0)
    state: Any = controller.init(dim=1000, seed=seed)
    dense = Dense(count, gamma)
    gains = np.random.default_rng(0).random((rounds, count)) * np.linspace(0.2, 1, count)
    for number in range(1, rounds + 1):
        proposal = controller.propose(state, number)
        arm = dense.draw(seed, number)
        assert proposal.k == 5 + arm
        assert proposal.memo["probability"] == pytest.approx(dense.probabilities()[arm], rel=1e-9)
        gain = float(gains[number - 1, arm])
        state = controller.update(state, Observation(proposal, 1 - gain, loss_before=1.0, loss_after=0.0))
        dense.learn(arm, gain)
    for arm in range(count):  # and so every probability, not only those of the arms drawn
        log_weight = state["log_weights"].get(str(arm), 0.0)
        assert log_weight == pytest.approx(math.log(dense.weights[arm]), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("log_weights", "gamma"),
    [
        ({}, 0.2),
        ({"0": 1.0}, 0.1),
        ({"11": 2.0, "3": 0.5, "4": 0.0}, 0.1),
        ({str(arm): arm / 6 for arm in range(12)}, 0.3),
        ({"2": 1000.0, "3": 999.0}, 0.4),  # weights beyond the floats: an arm never pulled has weight exp(-1000), 0
        ({"0": 0.3, "1": 0.2}, 1.0),
    ],
)
def test_draws_have_the_stated_probabilities(log_weights: dict[str, float], gamma: float) -> None:
    count, draws = 12, 6000
    controller = gradsift.controller("exp3", k_min=1, k_max=count, gamma=gamma)
    state: Any = {**controller.init(dim=count, seed=3), "log_weights": log_weights}
    seen: Counter[int] = Counter()
    stated: dict[int, float] = {}
    for number in range(1, draws + 1):
        memo = controller.propose(state, number).memo
        seen[int(memo["arm"])] += 1
        stated[int(memo["arm"])] = memo["probability"]

    top = max(log_weights.values(), default=0.0)
    weights = np.exp([log_weights.get(str(arm), 0.0) - top for arm in range(count)])
    wanted = (1 - gamma) * weights / weights.sum() + gamma / count
    assert stated == pytest.approx(dict(enumerate(wanted)))
    # Chi-square of 11 degrees of freedom: above 37.4 once in ten thousand.
    assert sum((seen[arm] - draws * wanted[arm]) ** 2 / (draws * wanted[arm]) for arm in range(count)) < 37.4


def regret_bound(rounds: int, count: int) -> float:
    """Corollary 3.2: 2 sqrt(e - 1) sqrt(g K ln K), for the gamma that Exp3 takes by itself."""
    return 2 * math.sqrt((math.e - 1) * rounds * count * math.log(count))


@pytest.mark.slow
def test_every_integer_finds_the_optimum() -> None:
    """Ten arms, 5000 rounds: the expected regret is under its bound, which uniform play breaks."""
    rounds, best = 5000, 5

    def price(k: float) -> float:
        return min(1.0, 0.1 + 0.12 * abs(k - best))

    prices = [price(k) for k in range(2, 12)]
    bound = regret_bound(rounds, 10)
    assert rounds * (np.mean(prices) - min(prices)) > 1.5 * bound
    regrets = []
    for seed in range(4):
        controller = gradsift.controller("exp3", k_min=2, k_max=11, horizon=rounds, bound=1.0)
        proposals, _ = drive(controller, controller.init(dim=100, seed=seed), priced(price), rounds)
        regrets.append(sum(price(one(p.k)) for p in proposals) - rounds * min(prices))
        assert Counter(p.k for p in proposals[-rounds // 4 :]).most_common(1)[0][0] == best
    assert np.mean(regrets) < bound


@pytest.mark.slow
def test_the_logarithmic_grid_finds_the_optimum() -> None:
    rounds, dim = 5000, 100_000

    def price(k: float) -> float:
        return min(1.0, 0.05 + 0.25 * abs(math.log(k / 1500)))

    for seed in range(3):
        controller = gradsift.controller("exp3", k_min=10, grid="log", arms=10, horizon=rounds, bound=1.0)
        proposals, _ = drive(controller, controller.init(dim=dim, seed=seed), priced(price), rounds)
        grid = {one(p.k) for p in proposals}
        assert Counter(p.k for p in proposals[-rounds // 4 :]).most_common(1)[0][0] == min(grid, key=price)


def test_the_grid_is_even_in_the_logarithm_and_holds_both_ends() -> None:
    controller = Exp3(k_min=10, k_max=100_000, grid="log", arms=9)
    state = controller.init(dim=200_000)
    ks = [controller.k_of(state, arm) for arm in range(controller.count(state))]
    assert ks == [10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000]


def test_a_grid_with_more_arms_than_integers_is_every_integer() -> None:
    controller = Exp3(k_min=3, k_max=9, grid="log", arms=50)
    state = controller.init(dim=9)
    assert [controller.k_of(state, arm) for arm in range(controller.count(state))] == list(range(3, 10))


def test_gamma_is_that_of_the_corollary() -> None:
    controller = Exp3(horizon=1000)
    assert controller.exploration(10) == pytest.approx(math.sqrt(10 * math.log(10) / ((math.e - 1) * 1000)))
    assert controller.exploration(555_178) == 1.0
    assert Exp3(gamma=0.3).exploration(10) == 0.3


@pytest.mark.parametrize("gamma", [None, 0.1])
def test_survives_as_many_arms_as_weights(gamma: float | None) -> None:
    """D = 555,178: the state holds what was pulled, not D weights, and survives JSON."""
    training, rounds = Training(dim=555_178), 400
    controller = gradsift.controller("exp3", gamma=gamma)
    state: Any = controller.init(dim=training.dim)
    assert (state["low"], state["high"]) == (1111, 555_178)
    proposals, state = drive(controller, state, training.observe, rounds)
    assert len(state["log_weights"]) <= rounds
    assert len(json.dumps(state)) < 50 * rounds
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert all(1111 <= one(p.k) <= training.dim for p in proposals)
    # Nearly all arms are still at weight 1: draws spread over the whole range.
    assert len({p.k for p in proposals}) > 0.95 * rounds
    assert min(one(p.k) for p in proposals) < 0.05 * training.dim
    assert max(one(p.k) for p in proposals) > 0.95 * training.dim
