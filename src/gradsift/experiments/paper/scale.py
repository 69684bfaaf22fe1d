"""The two scales of every figure: the paper's own, and a small one on the embedded digits that takes minutes."""

from dataclasses import dataclass
from typing import Any

from gradsift.experiments.experiment import Setup


@dataclass(frozen=True)
class Scale:
    """How large the experiments are and when they stop."""

    name: str
    femnist: Setup  # of every figure but Figure 8
    cifar10: Setup  # of Figure 8
    k: int  # the fixed k, 1,000 in the paper
    ks: tuple[int, ...]  # the k of Figure 1 before psi
    psi: tuple[float, ...]  # the losses at which Figure 1 changes k
    psi_rounds: int  # limit of rounds in which psi must be reached
    after: int  # rounds after psi
    cost_budget: float  # normalised time of each method at comm_time 10
    far_budget: float  # the same at comm_time 100, where a round with a large k takes up to 201
    rounds: int  # of the runs of Figures 7 and 8
    eval_every: int
    target_accuracy: float  # the tables show the cost of reaching it


PAPER_CNN: dict[str, Any] = {"model": "paper-cnn", "lr": 0.01, "checkpoint_every": 1000}
PAPER = Scale(
    name="paper",
    femnist=Setup("femnist", 444_062, {"data": "femnist", "clients": 156, **PAPER_CNN}),
    cifar10=Setup("cifar10", 555_178, {"data": "cifar10", "clients": 100, "partition": "one-class", **PAPER_CNN}),
    k=1000,
    ks=(100, 1000, 10_000, 44_406, 444_062),
    psi=(2.5, 2.0),
    psi_rounds=8000,
    after=500,
    cost_budget=3000.0,
    far_budget=9000.0,
    rounds=1500,
    eval_every=20,
    target_accuracy=0.7,
)

DIGITS: dict[str, Any] = {"data": "digits", "clients": 20, "model": "small-cnn", "lr": 0.3, "checkpoint_every": 200}
SMOKE = Scale(
    name="smoke",
    femnist=Setup("digits", 6090, DIGITS),
    cifar10=Setup("digits-one-class", 6090, {**DIGITS, "partition": "one-class"}),
    k=14,  # the paper's ratio to D
    ks=(7, 14, 137, 609, 6090),  # the paper's ratios, except for the first: with one element a round nothing is learned
    psi=(2.0, 1.5),
    psi_rounds=1000,
    after=100,
    cost_budget=250.0,
    far_budget=2000.0,
    rounds=250,
    eval_every=5,
    target_accuracy=0.7,
)

SCALES = {scale.name: scale for scale in (SMOKE, PAPER)}
