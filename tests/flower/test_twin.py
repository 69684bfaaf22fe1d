"""The Flower driver against the simulator, over whole runs: the same k, the same messages, the same weights."""

import copy
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import Tensor, nn

import gradsift
from gradsift import (
    Controller,
    CostModel,
    FederatedData,
    LinkTime,
    LocalSteps,
    Method,
    NormalizedTime,
    Settings,
)
from gradsift.control.fixed import Fixed
from gradsift.cost import Energy
from gradsift.flower import GradientTask, SparseStrategy, gradient_app
from gradsift.records.record import COLUMNS
from gradsift.schedule import Constant, Cosine
from gradsift.server_step import SGD, Momentum, ServerOptimizer
from gradsift.simulation.engine import Engine
from gradsift.sparse import Sparse
from gradsift.values import ValueType, register_value_type, value_types
from tests.flower.each_its_own import EachItsOwn
from tests.flower.grid import LocalGrid
from tests.flower.ledger import end, state_of
from tests.registered import own_names
from tests.simulation.problems import blobs, mlp

pytestmark = pytest.mark.slow  # many runs

ROUNDS = 20
DIM = 57
CLIENTS = 4

CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"k": 7},
    "replay": {"sequence": [1 + (5 * m) % DIM for m in range(ROUNDS + 2)]},
    "sign": {},
    "extended-sign": {"window": 4},
    "value": {"scale": 30.0},
    "exp3": {"grid": "log", "arms": 5},
    "continuous-bandit": {},
    "planned": {},
}
PAIRS = [
    *itertools.product(["fab-top-k"], CONTROLLERS),
    *itertools.product(["fub-top-k", "unidirectional-top-k", "periodic-k"], ["extended-sign", "planned"]),
    *itertools.product(["fedavg", "send-all"], ["fixed"]),
]
BANDWIDTHS = [50.0 * (1 + i) for i in range(CLIENTS)]
COSTS = [
    NormalizedTime(comm_time=10),
    LinkTime(up_bandwidth=BANDWIDTHS, down_bandwidth=400.0, latency=0.1),
    Energy(up=2.0, down=[1.0, 0.5, 0.25, 0.125], compute=3.0),
]
# The size of an encoded message depends on its last bits, in which two ways to add up float64 may differ.
BYTES: dict[str, Any] = {"encoded_bytes": True, "values": "float32"}
# What the simulator counts and a deployment measures; and what neither has here, without evaluation.
MEASURED = {"up_bytes", "down_bytes", "global_loss", "accuracy"}
REAL = {"cost", "round_cost", "lr", "k", "low", "high", "train_loss", "loss_before", "loss_after", "loss_probe"}
REAL |= {"c", "waiting", "agreement"}  # the clients know the step only as the difference of two weights


@pytest.fixture(params=[1, 2])
def exchanges(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


class Twins:
    """The same run twice."""

    def __init__(
        self,
        method: Method,
        exchanges: int,
        *,
        model: nn.Module | None = None,
        data: FederatedData | None = None,
        out: Path | None = None,
        **settings: Any,
    ) -> None:
        model, data = (model or mlp()).double(), data or blobs(CLIENTS)
        # Only losses come with the second exchange; what waits at the clients comes with the next upload.
        delay = 2 - exchanges if method.controller.learns else 1
        how = Settings(batch_size=8, delay=delay, **settings)
        cpu, loss = torch.device("cpu"), nn.CrossEntropyLoss()
        self.engine = Engine(copy.deepcopy(model), loss, data, method, how, device=cpu, dtype=torch.float64)
        double, local = data.to("cpu", torch.float64), copy.deepcopy(model)

        def task(context: Context) -> GradientTask:
            rows = data.rows(int(context.node_config["partition-id"]))
            return GradientTask(local, loss, double.x[rows], double.y[rows], 8, how.probe_samples, method.seed)

        def make() -> SparseStrategy:
            return SparseStrategy(
                model,
                **{name: getattr(method, name) for name in Method.__dataclass_fields__},
                exchanges=exchanges,
                buffers=how.buffers,
                out=out,
                fraction_train=(how.clients_per_round or CLIENTS) / CLIENTS,
                fraction_evaluate=0,
            )

        self.make, self.strategy = make, make()
        self.grid = LocalGrid(lambda: gradient_app(task), CLIENTS)
        self.arrays = ArrayRecord(model.state_dict())

    def play(self, number: int) -> None:
        """One round as ``Strategy.start`` makes it."""
        strategy, grid, config = self.strategy, self.grid, ConfigRecord()
        messages = strategy.configure_train(number, self.arrays, config, grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
        messages = strategy.configure_evaluate(number, self.arrays, config, grid)
        strategy.aggregate_evaluate(number, grid.send_and_receive(messages))

    def assert_same_round(self) -> None:
        before = self.engine.state.server.weights
        record, ours = self.engine.step(), self.strategy.records[-1]
        assert tuple(ours) == tuple(record) == COLUMNS
        for name, ((_, mine), (_, theirs)) in zip(COLUMNS, zip(ours.items(), record.items(), strict=True), strict=True):
            if name in REAL and theirs is not None:
                assert mine == pytest.approx(theirs, rel=1e-9), name
            elif name not in MEASURED:
                assert mine == theirs, name
        state, weights = self.strategy.rounds, self.engine.state.server.weights
        if state.method.plain_step:
            stepped = (weights != before).nonzero().squeeze(-1)
            changed = (state.changed == record["round"]).nonzero().squeeze(-1)
            assert set(stepped.tolist()) <= set(changed.tolist())
        torch.testing.assert_close(state.weights, weights, rtol=0, atol=1e-9)
        torch.testing.assert_close(state.server.memory, self.engine.state.server.memory, rtol=0, atol=1e-9)
        for name, value in self.engine.state.buffers.items():
            torch.testing.assert_close(state.non_trainable[name], value, rtol=0, atol=1e-9)

    def run(self, rounds: int = ROUNDS) -> set[int]:
        """All rounds, each compared; the k that were used."""
        for number in range(1, rounds + 1):
            self.play(number)
            self.assert_same_round()
        assert self.strategy.refused == []
        return {record["used_k"] for record in self.strategy.records}

    def restart(self) -> None:
        """Another process goes on from the run folder."""
        end(self.strategy)
        self.strategy = self.make()


def method_of(sparsifier: str, controller: Controller[Any] | None = None, **others: Any) -> Method:
    """At a rate of 0.3; the controller that goes with the sparsifier, if none is named."""
    if controller is None:
        dense = gradsift.sparsifier(sparsifier).dense
        controller = gradsift.controller("fixed", k=9) if dense else gradsift.controller("extended-sign", window=3)
    return Method.of(sparsifier=sparsifier, controller=controller, **{"lr": 0.3, **others})


@pytest.mark.parametrize(("sparsifier", "control"), PAIRS)
def test_whole_runs_are_the_simulators(sparsifier: str, control: str, exchanges: int) -> None:
    controller = gradsift.controller(control, **CONTROLLERS[control])
    used = Twins(method_of(sparsifier, controller), exchanges).run()
    assert len(used) > 1 or not controller.varies


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k", "fedavg"])
def test_with_some_of_the_clients(sparsifier: str, exchanges: int) -> None:
    """Absentees catch up before they train, and take their losses at weights that they never held."""
    method = method_of(sparsifier, lr=Cosine(0.5, rounds=30), seed=5)
    Twins(method, exchanges, clients_per_round=3, probe_samples=3).run()


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "periodic-k", "unidirectional-top-k", "send-all"])
@pytest.mark.parametrize("clients", [None, 3])
def test_local_steps(sparsifier: str, clients: int | None, exchanges: int) -> None:
    method = method_of(sparsifier, local=LocalSteps(3), lr=Cosine(0.3, rounds=30), seed=2)
    twins = Twins(method, exchanges, clients_per_round=clients)
    used = twins.run(12)
    assert len(used) > 1 or method.sparsifier.dense
    assert [record["steps"] for record in twins.strategy.records] == [3] * 12
    assert twins.strategy.rounds.server.steps == 36


@pytest.mark.parametrize("values", value_types())
@pytest.mark.parametrize(("sparsifier", "exchanges"), [("fab-top-k", 1), ("periodic-k", 2), ("fedavg", 1)])
def test_value_types(values: str, sparsifier: str, exchanges: int) -> None:
    Twins(method_of(sparsifier, values=values, encoded_bytes=True), exchanges).run(12)


@dataclass(frozen=True)
class Coarse(ValueType):
    """Multiples of an eighth, as single numbers."""

    def rounded(self, message: Sparse) -> Sparse:
        return message.with_values((message.values * 8).round().float() / 8)


def test_a_value_type_of_ones_own_travels_as_what_it_returns(exchanges: int) -> None:
    with own_names():
        register_value_type("test-coarse")(Coarse)
        Twins(method_of("fab-top-k", values=Coarse()), exchanges).run(8)


MOMENTUM, NESTEROV = Momentum(0.8), Momentum(0.9, nesterov=True, rate=0.5)


@pytest.mark.parametrize("server", [SGD(rate=0.5), MOMENTUM, NESTEROV], ids=["sgd", "momentum", "nesterov"])
@pytest.mark.parametrize(
    ("sparsifier", "control"),
    [("fab-top-k", "planned"), ("fab-top-k", "extended-sign"), ("periodic-k", "fixed"), ("fedavg", "fixed")],
)
def test_server_optimizers(server: ServerOptimizer, sparsifier: str, control: str, exchanges: int) -> None:
    controller = gradsift.controller(control, **CONTROLLERS[control])
    used = Twins(method_of(sparsifier, controller, server=server, lr=0.1), exchanges).run(12)
    assert len(used) > 1 or not controller.varies


@pytest.mark.parametrize("down_values", [name for name in value_types() if name != "few-bits"])
def test_value_types_of_the_server(down_values: str, exchanges: int) -> None:
    Twins(method_of("fab-top-k", down_values=down_values, server=MOMENTUM, lr=0.1), exchanges).run(8)


FEW_BITS: dict[str, dict[str, Any]] = {
    "bits": {},
    "momentum": {"server": NESTEROV, "lr": 0.1},
    "local steps": {"local": LocalSteps(3, rate=0.5, momentum=0.5, weight_decay=0.01, residual_decay=0.9)},
    "periodic": {"sparsifier": "periodic-k"},
    "dense": {"sparsifier": "fedavg"},
    "one bit": {"bits": (8, 1)},
    "up only": {"bits": (2, 32), "server": MOMENTUM, "lr": 0.1},
}


@pytest.mark.parametrize("how", FEW_BITS)
@pytest.mark.parametrize("clients", [None, 3])
def test_few_bits_both_ways(how: str, clients: int | None, exchanges: int) -> None:
    """Absentees take the updates that they have missed, one after the other."""
    slots = {"sparsifier": "fab-top-k", "bits": (2, 4), **FEW_BITS[how]}
    Twins(method_of(**slots), exchanges, clients_per_round=clients).run(12)


@pytest.mark.parametrize("control", ["extended-sign", "planned"])
def test_local_steps_with_momentum_on_both_sides(control: str, exchanges: int) -> None:
    controller = gradsift.controller(control, **CONTROLLERS[control])
    method = method_of("fab-top-k", controller, local=LocalSteps(3, momentum=0.9), server=MOMENTUM, lr=0.05)
    Twins(method, exchanges).run(12)


@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fub-top-k", "periodic-k", "unidirectional-top-k"])
@pytest.mark.parametrize("clients", [None, 3])
def test_a_k_for_each_client(sparsifier: str, clients: int | None, exchanges: int) -> None:
    method = method_of(sparsifier, EachItsOwn(CLIENTS), cost=COSTS[1], **BYTES)
    twins = Twins(method, exchanges, clients_per_round=clients)
    twins.run()
    used = [record["client_k"] for record in twins.strategy.records]
    assert all(each is not None and len(each) == (clients or CLIENTS) and len(set(each)) > 1 for each in used)
    assert len({tuple(each or ()) for each in used}) > 3


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
@pytest.mark.parametrize(
    ("charge_probe", "dense_fallback", "encoded_bytes"), list(itertools.product([False, True], repeat=3))
)
def test_prices(cost: CostModel, charge_probe: bool, dense_fallback: bool, encoded_bytes: bool) -> None:
    counting: dict[str, Any] = {"charge_probe": charge_probe, "dense_fallback": dense_fallback}
    counting |= BYTES if encoded_bytes else {}
    method = method_of("fab-top-k", gradsift.controller("sign"), cost=cost, **counting)
    Twins(method, 1 + charge_probe, clients_per_round=3).run(10)


def test_every_way_to_count_has_its_own_price() -> None:
    """So that the twins above do not agree on one price for all."""
    spent = set()
    for charge_probe, dense_fallback, encoded_bytes in itertools.product([False, True], repeat=3):
        counting = {"charge_probe": charge_probe, "dense_fallback": dense_fallback, "encoded_bytes": encoded_bytes}
        controller = gradsift.controller("sign", k_init=40.0)
        twins = Twins(method_of("fab-top-k", controller, cost=COSTS[2], **counting), 1)
        twins.play(1)
        spent.add(twins.strategy.records[0]["cost"])
    assert len(spent) == 6  # bytes of the wire format are counted as they are, with the fallback or without


@pytest.mark.parametrize("local", [None, LocalSteps(2)])
@pytest.mark.parametrize("sparsifier", ["fab-top-k", "fedavg"])
def test_clients_with_fewer_samples_than_a_minibatch(sparsifier: str, local: LocalSteps | None, exchanges: int) -> None:
    data = blobs(CLIENTS, each=4)
    assert min(data.size) < 8 < max(data.size)
    Twins(method_of(sparsifier, local=local), exchanges, data=data, probe_samples=2).run(12)


class Normed(nn.Module):
    """With buffers that training moves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.norm, self.head = nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.body(x)).tanh())
        return logits


@pytest.mark.parametrize("encoded_bytes", [False, True])
@pytest.mark.parametrize("local", [None, LocalSteps(2)])
def test_averaged_buffers(encoded_bytes: bool, local: LocalSteps | None, exchanges: int) -> None:
    """They are the same, and counted from the first round on."""
    cost = LinkTime(up_bandwidth=BANDWIDTHS, down_bandwidth=400.0)
    method = method_of("fab-top-k", cost=cost, local=local, **(BYTES if encoded_bytes else {}))
    twins = Twins(method, exchanges, model=Normed(), buffers="average")
    twins.run(12)
    assert twins.engine.state.buffers.keys() == twins.strategy.rounds.non_trainable.keys()


class Watching(Fixed):
    """Is told of losses, and changes nothing."""

    name = "watching"
    learns = True


@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize("controller", [Fixed(9), Watching(9)], ids=["fixed", "watching"])
def test_buffers_between_exchanges(controller: Fixed, clients: int | None, exchanges: int) -> None:
    """Each client of a period goes on with its own; losses are those of the server's."""
    cost = LinkTime(up_bandwidth=BANDWIDTHS, down_bandwidth=400.0)
    method = method_of("fedavg", controller, cost=cost, seed=5)
    twins = Twins(method, exchanges, model=Normed(), clients_per_round=clients, buffers="average")
    sent = []
    for number in range(1, 14):
        twins.play(number)
        twins.assert_same_round()
        record = twins.strategy.records[-1]
        assert (record["loss_after"] is not None) == (controller.learns and number > 2 - exchanges)
        sent.append(record["up_elements"])
        states = {client: state_of(twins.strategy, twins.grid, client) for client in range(CLIENTS)}
        own = {client: state for client, state in states.items() if state is not None and state.uploaded == number}
        assert len(own) == (clients or CLIENTS)
        for (client, state), name in itertools.product(own.items(), twins.engine.state.buffers):
            if not record["up_elements"]:
                mine, theirs = state.local_buffers[name], twins.engine.state.local_buffers[name][client]
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    assert sent == [0, 0, 63] * 4 + [0]
    assert twins.strategy.refused == []


CONTINUED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a planned k": ({"sparsifier": "fab-top-k", "controller": gradsift.controller("planned")}, {}),
    "the offset of the permutation": ({"sparsifier": "periodic-k"}, {}),
    "local steps": ({"sparsifier": "fab-top-k", "local": LocalSteps(3)}, {"clients_per_round": 3}),
    "a period": ({"sparsifier": "fedavg"}, {"clients_per_round": 3}),
    "rounded values": ({"sparsifier": "fab-top-k", "values": "int8"}, {}),
    "momentum": ({"sparsifier": "fab-top-k", "server": NESTEROV, "lr": 0.1}, {"clients_per_round": 3}),
    "few bits": ({"sparsifier": "fab-top-k", "bits": (2, 4), "server": MOMENTUM, "lr": 0.1}, {"clients_per_round": 3}),
    "a k for each client": ({"sparsifier": "fab-top-k", "controller": EachItsOwn(CLIENTS)}, {}),
    "buffers": ({"sparsifier": "fab-top-k", "cost": COSTS[1]}, {"model": Normed(), "buffers": "average"}),
    "buffers of a period": ({"sparsifier": "fedavg"}, {"model": Normed(), "buffers": "average"}),
    "buffers of some clients of a period": (
        {"sparsifier": "fedavg", "cost": COSTS[1], "seed": 5},
        {"model": Normed(), "buffers": "average", "clients_per_round": 3},
    ),
}


@pytest.mark.parametrize("what", CONTINUED)
def test_a_server_that_is_started_again_and_again(what: str, exchanges: int, tmp_path: Path) -> None:
    """After every third round: everything that a round needs is in the folder."""
    slots, settings = CONTINUED[what]
    twins = Twins(method_of(**slots), exchanges, out=tmp_path / "run", **settings)
    for number in range(1, 14):
        if number % 3 == 0:
            twins.restart()
        twins.play(number)
        twins.assert_same_round()
    end(twins.strategy)
    assert twins.strategy.refused == []
    assert [record["round"] for record in twins.strategy.records] == list(range(1, 14))


def test_the_order_in_which_clients_answer_changes_nothing() -> None:
    """Rates and k belong to clients, not to the order in which the network happens to bring their messages."""
    method = method_of("fab-top-k", EachItsOwn(CLIENTS), cost=COSTS[1], **BYTES)
    twins = Twins(method, 1)
    deliver = twins.grid.send_and_receive
    source = np.random.default_rng(0)

    def shuffled(messages: Any, *, timeout: float | None = None) -> Any:
        replies = deliver(messages, timeout=timeout)
        source.shuffle(replies)
        return replies

    twins.grid.send_and_receive = shuffled  # type: ignore[method-assign]
    twins.run(8)


def test_a_rate_that_is_a_number_and_one_that_is_a_schedule_are_the_same() -> None:
    one, other = (Twins(replace(method_of("fab-top-k"), lr=lr), 1) for lr in (Constant(0.3), lambda _: 0.3))
    one.run(3)
    other.run(3)
    assert torch.equal(one.strategy.rounds.weights, other.strategy.rounds.weights)
