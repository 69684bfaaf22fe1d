"""Optimizers of clients and server, and values of few bits both ways: whole runs, against the slow twin.

What the textbooks say of them is in tests/simulation/test_textbooks.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradsift
from gradsift import Cosine, FewBits, LinkTime, LocalSteps, Method
from gradsift.server_step import SGD, Momentum
from gradsift.simulation.engine import Engine
from tests.simulation import hand
from tests.simulation.hand import assert_same, with_twin
from tests.simulation.problems import blobs, mlp, sized
from tests.simulation.test_run import assert_same_end
from tests.simulation.ways import WAYS, going

pytestmark = pytest.mark.slow  # many runs

LOSS = nn.CrossEntropyLoss()
DIM = 57
SPARSIFIERS = gradsift.sparsifiers()
LOCAL = LocalSteps(3, rate=0.5, momentum=0.7, weight_decay=0.02, residual_decay=0.9)
NESTEROV = Momentum(momentum=0.6, nesterov=True, rate=0.8)
ALL: dict[str, Any] = {"local": LOCAL, "values": FewBits(2), "down_values": FewBits(3), "server": NESTEROV}
METHODS: dict[str, dict[str, Any]] = {
    "local optimizer": {"local": LOCAL},
    "few bits up": {"values": FewBits(2)},
    "few bits down": {"down_values": FewBits(3)},
    "one bit both ways": {"values": FewBits(1), "down_values": FewBits(1)},
    "eight bits both ways": {"values": FewBits(8), "down_values": FewBits(8)},
    "int8 down": {"down_values": "int8"},
    "a rate": {"server": SGD(rate=0.4)},
    "momentum": {"server": Momentum(0.7)},
    "nesterov": {"server": NESTEROV},
    "rounded momentum": {"down_values": FewBits(2), "server": Momentum(0.7)},
    "all": ALL,
}


def controller(sparsifier: str, name: str = "extended-sign") -> gradsift.Controller[Any]:
    """One that learns, where there is one for the sparsifier."""
    if gradsift.sparsifier(sparsifier).dense:
        return gradsift.controller("fixed", k=9)
    return gradsift.controller(name, **({"window": 3} if name == "extended-sign" else {}))


def check_run(sparsifier: str, control: str = "extended-sign", rounds: int = 8, **options: Any) -> Engine:
    """A run of an engine is that of its slow twin."""
    parts = (mlp(), LOSS, options.pop("data", None) or blobs(), sparsifier, controller(sparsifier, control))
    engine, twin = with_twin(*parts, **{"lr": 0.1, **options})
    for _ in range(rounds):
        assert_same(engine, engine.step(), next(twin))
    return engine


@pytest.mark.parametrize(("clients_per_round", "delay"), [(None, 0), (4, 1)], ids=["all", "some, late"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("method", METHODS)
def test_runs_are_those_of_the_twin(method: str, sparsifier: str, clients_per_round: int | None, delay: int) -> None:
    check_run(sparsifier, clients_per_round=clients_per_round, delay=delay, **METHODS[method])


@pytest.mark.parametrize(("clients_per_round", "delay"), [(None, 1), (4, 0)], ids=["all, late", "some"])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_through_memory_is_the_same(
    way: str, sparsifier: str, clients_per_round: int | None, delay: int
) -> None:
    with going(way):
        check_run(sparsifier, clients_per_round=clients_per_round, delay=delay, clients_per_chunk=2, **ALL)


@pytest.mark.parametrize("method", ["few bits down", "rounded momentum", "all"])
@pytest.mark.parametrize("control", ["sign", "value", "exp3", "continuous-bandit", "planned"])
def test_other_controllers_see_the_same(control: str, method: str) -> None:
    """Their losses are those at the weights that rounding and momentum lead to, and at those of the probe."""
    check_run("fab-top-k", control, clients_per_round=4, delay=1, rounds=12, **METHODS[method])


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
def test_schedules_costs_and_probe_charges_are_the_same(sparsifier: str) -> None:
    cost = LinkTime(up_bandwidth=[50.0 * (1 + i) for i in range(6)], down_bandwidth=400.0, latency=0.1, compute=0.5)
    options: dict[str, Any] = {
        "cost": cost,
        "lr": Cosine(0.3, rounds=12),
        "charge_probe": True,
        "probe_samples": 3,
        "seed": 5,
    }
    check_run(sparsifier, rounds=10, clients_per_round=3, **options, **ALL)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS)
@pytest.mark.parametrize("method", ["few bits up", "few bits down", "one bit both ways", "all"])
def test_encoded_bytes_in_the_cost_are_the_same(method: str, sparsifier: str) -> None:
    engine = check_run(sparsifier, encoded_bytes=True, clients_per_round=4, **METHODS[method])
    assert engine.state.server.spent > 8  # a gradient in each round, and the bytes


def test_small_clients_are_the_same() -> None:
    check_run("fab-top-k", data=sized(20, 3, 12, 8, 1, 15), clients_per_chunk=2, **ALL)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "send-all"])
def test_runs_repeat_to_the_bit(sparsifier: str, stochastic: bool) -> None:
    """Draws of stochastic rounding too, which the twin cannot repeat: they depend on the last bit of a value."""
    options = ALL | {"values": FewBits(2, stochastic), "down_values": FewBits(3, stochastic)}
    one, other = (
        hand.engine(mlp(), LOSS, blobs(), sparsifier, controller(sparsifier), dtype=torch.float32, **options)
        for _ in range(2)
    )
    for _ in range(8):
        assert one.step() == other.step()
    assert torch.equal(one.state.server.weights, other.state.server.weights)
    assert torch.equal(one.state.residual, other.state.residual)
    assert one.state.server.memory.keys() == {"velocity", "error"}
    for name, value in one.state.server.memory.items():
        assert torch.equal(value, other.state.server.memory[name])
        assert value.any()


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "send-all"])
def test_options_that_change_nothing_change_no_bit(sparsifier: str) -> None:
    """A momentum of zero is no momentum, a rate of one no rate."""
    plain, spelled = (
        hand.engine(mlp(), LOSS, blobs(), sparsifier, controller(sparsifier), **options)
        for options in (
            {"local": LocalSteps(3)},
            {
                "local": LocalSteps(3, rate=1, momentum=0, weight_decay=0, residual_decay=1),
                "server": SGD(rate=1),
                "down_values": "exact",
            },
        )
    )
    for _ in range(6):
        assert plain.step() == spelled.step()
    assert torch.equal(plain.state.server.weights, spelled.state.server.weights)
    assert plain.state.server.memory == spelled.state.server.memory == {}


# The short forms.


@pytest.mark.parametrize("control", ["planned", "extended-sign"])
def test_simulate_takes_short_forms_for_long_ones(control: str) -> None:
    """And plans k with the bytes of few bits."""

    def simulated(**options: Any) -> gradsift.Result:
        chosen = controller("fab-top-k", control)
        return gradsift.simulate(mlp(), LOSS, blobs(), controller=chosen, rounds=6, batch_size=8, **options)

    short = simulated(local_steps=3, bits=(2, 4), server="momentum")
    few = {"values": FewBits(2), "down_values": FewBits(4), "encoded_bytes": True}
    long = simulated(local=LocalSteps(3), server=Momentum(), **few)
    assert short.records == long.records
    assert torch.equal(short.weights, long.weights)
    assert short.config == long.config
    counted = simulated(local_steps=3, bits=(2, 4), server="momentum", encoded_bytes=False)
    assert counted.config["settings"]["encoded_bytes"] is False
    assert counted.records[0]["up_bytes"] == 6 * 8 * counted.records[0]["up_elements"]
    exact = simulated(local_steps=3, encoded_bytes=True)
    if control == "planned":  # cheaper elements are more elements
        assert short.records[0]["k"] > exact.records[0]["k"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"local_steps": 2, "local": "one-gradient"}, "give either local_steps, 2, or local, 'one-gradient'"),
        ({"bits": 2, "down_values": "int8"}, "give either bits, 2, or values and down_values"),
        ({"bits": 12}, "bits must be 1 to 8, or 32 for exact values, up and down, got 12"),
        ({"server": "adam"}, "unknown server optimizer 'adam'"),
        ({"momentum": 0.9}, "unknown setting 'momentum'"),
    ],
)
def test_simulate_refuses_what_does_not_go_together(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(gradsift.GradsiftError, match=re.escape(named)):
        run(tmp_path / "run", 3, **options)
    assert not (tmp_path / "run").exists()


# Resume.

RUNS: dict[str, dict[str, Any]] = {
    "momentum": {"server": Momentum(0.7)},
    "rounded updates": {"down_values": FewBits(2), "server": SGD(0.9)},
    "stochastic": {"values": FewBits(2, True), "down_values": FewBits(2, True)},
    "all": ALL,
}


def run(folder: Path, rounds: int, sparsifier: str = "fab-top-k", **options: Any) -> gradsift.Result:
    others = {"batch_size": 8, "eval_every": 1, "checkpoint_every": 2, "controller": controller(sparsifier)}
    chosen: dict[str, Any] = {"sparsifier": sparsifier, "rounds": rounds, **others, **options}
    return gradsift.simulate(mlp(), LOSS, blobs(), out=folder, **chosen)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fedavg"])
@pytest.mark.parametrize("kind", RUNS)
def test_a_resumed_run_is_the_same_run(kind: str, sparsifier: str, delay: int, tmp_path: Path) -> None:
    options = {"clients_per_round": 4, "delay": delay, **RUNS[kind]}
    run(tmp_path / "whole", 7, sparsifier, **options)
    run(tmp_path / "parts", 3, sparsifier, **options)
    run(tmp_path / "parts", 7, sparsifier, **options, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_an_interrupted_run_is_the_same_run(tmp_path: Path) -> None:
    """Stopped in the middle of a round's work, it goes on from its last checkpoint."""
    run(tmp_path / "whole", 7, **ALL)

    def stop(record: Any) -> bool:
        if record["round"] == 5:
            raise KeyError("stop")
        return False

    with pytest.raises(KeyError):
        run(tmp_path / "parts", 7, **ALL, on_round=stop)
    run(tmp_path / "parts", 7, **ALL, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(
    ("was", "given", "named"),
    [
        ({"server": Momentum(0.7)}, {}, r"server\.momentum was 0\.7, not None"),
        ({"server": Momentum(0.7)}, {"server": Momentum(0.8)}, r"server\.momentum was 0\.7, not 0\.8"),
        ({"server": Momentum(0.7)}, {"server": NESTEROV}, r"server\.nesterov was False, not True"),
        ({}, {"server": "momentum"}, r"server\.name was 'sgd', not 'momentum'"),
        ({}, {"down_values": FewBits(2)}, r"down_values\.bits was None, not 2"),
        ({"down_values": FewBits(2)}, {"down_values": FewBits(3)}, r"down_values\.bits was 2, not 3"),
        ({"local": LOCAL}, {"local": LocalSteps(3)}, r"local\.momentum was 0\.7, not 0\.0"),
    ],
)
def test_another_run_is_refused_with_the_difference(
    was: dict[str, Any], given: dict[str, Any], named: str, tmp_path: Path
) -> None:
    run(tmp_path / "run", 3, **was)
    with pytest.raises(gradsift.GradsiftError, match=f"run is another run: .*{named}"):
        run(tmp_path / "run", 5, **given, resume=True)


@pytest.mark.parametrize(("was", "given"), [("momentum", "sgd"), ("sgd", "momentum")])
def test_a_checkpoint_with_another_memory_is_refused(was: str, given: str, tmp_path: Path) -> None:
    """Also where the configuration says otherwise."""
    run(tmp_path / "run", 3, server=was)
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["server"] = Method.of(server=given).describe()["server"]
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    with pytest.raises(gradsift.GradsiftError, match=r"memory/velocity is (float32|missing)"):
        run(tmp_path / "run", 5, server=given, resume=True)


@pytest.mark.parametrize("local", [None, LocalSteps(3)], ids=["one gradient", "local steps"])
@pytest.mark.parametrize("delay", [0, 1])
def test_a_run_from_before_there_were_these_slots_is_resumed(
    delay: int, local: LocalSteps | None, tmp_path: Path
) -> None:
    run(tmp_path / "whole", 7, delay=delay, local=local)
    run(tmp_path / "parts", 3, delay=delay, local=local)
    config = json.loads((tmp_path / "parts/config.json").read_text())
    del config["server"], config["down_values"]
    for name in ("rate", "momentum", "weight_decay", "residual_decay"):
        assert (config["local"].pop(name, None) is not None) == (local is not None)
    (tmp_path / "parts/config.json").write_text(json.dumps(config))
    others: list[tuple[dict[str, Any], str]] = [
        ({"server": "momentum"}, "server.name was 'sgd', not 'momentum'"),
        ({"down_values": "int8"}, "down_values.name was 'exact', not 'int8'"),
        ({"local": LocalSteps(3, momentum=0.5)}, "local.momentum was 0.0, not 0.5" if local else "local.name was"),
    ]
    for options, named in others:
        with pytest.raises(gradsift.GradsiftError, match=re.escape(named)):
            run(tmp_path / "parts", 7, **{"delay": delay, "local": local, **options}, resume=True)
    run(tmp_path / "parts", 7, delay=delay, local=local, resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
