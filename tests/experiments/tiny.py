"""The smoke scale made so small that a figure takes a second or two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gradsift.experiments.experiment import Experiment, Setup, make_experiment
from gradsift.experiments.paper.scale import SMOKE, Scale
from gradsift.records.record import Record

MLP = {"data": "digits", "clients": 4, "model": "mlp", "lr": 0.3, "checkpoint_every": 5}
SETUP = Setup("digits", 4810, MLP)
TINY: Scale = replace(
    SMOKE,
    femnist=SETUP,
    cifar10=Setup("digits-one-class", 4810, {**MLP, "partition": "one-class", "clients": 10}),
    ks=(500, 4810),
    psi=(2.2, 2.1),
    psi_rounds=300,
    after=6,
    cost_budget=14.0,
    far_budget=150.0,
    rounds=12,
    eval_every=4,
)


def one(seed: int = 0, **options: Any) -> Experiment:
    """One method on the tiny set-up."""
    return make_experiment(SETUP, seed, "it", eval_every=TINY.eval_every, **options)


def quiet(record: Record) -> None:
    del record


def records(folder: Path) -> list[str]:
    return (folder / "records.jsonl").read_text().splitlines()
