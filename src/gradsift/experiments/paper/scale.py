"""The two scales of every figure: the paper's own, and one on the embedded digits that takes minutes."""

from dataclasses import dataclass

from gradsift.experiments.experiment import Setup


@dataclass(frozen=True)
class Scale:
    """How large the experiments are and when they stop."""

    name: str
    femnist: Setup  # of every figure but the last
    cifar10: Setup  # of Figure 8
    k: int  # the paper's 1,000
    ks: tuple[int, ...]  # of Figure 1, before psi
    psi: tuple[float, ...]  # losses at which Figure 1 changes k
    psi_rounds: int  # until psi must be reached
    after: int  # rounds after psi
    cost_budget: float  # normalised time of each method at comm_time 10
    far_budget: float  # at comm_time 100, where a round with a large k takes up to 201
    rounds: int  # of the sequences of k of Figures 7 and 8
    eval_every: int
    target_accuracy: float  # whose cost the tables give


PAPER = Scale(
    name="paper",
    femnist=Setup(
        "femnist",
        444_062,
        {"data": "femnist", "clients": 156, "model": "paper-cnn", "lr": 0.01, "checkpoint_every": 1000},
    ),
    cifar10=Setup(
        "cifar10",
        555_178,
        {"data": "cifar10", "clients": 100, "partition": "one-class", "model": "paper-cnn", "lr": 0.01}
        | {"checkpoint_every": 1000},
    ),
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

SMOKE = Scale(
    name="smoke",
    femnist=Setup(
        "digits", 6090, {"data": "digits", "clients": 20, "model": "small-cnn", "lr": 0.3, "checkpoint_every": 200}
    ),
    cifar10=Setup(
        "digits-one-class",
        6090,
        {"data": "digits", "clients": 20, "partition": "one-class", "model": "small-cnn", "lr": 0.3}
        | {"checkpoint_every": 200},
    ),
    k=14,  # the paper's ratio to D
    ks=(7, 14, 137, 609, 6090),  # the same ratios, but for the first: one element a round learns nothing here
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
