"""What every server optimizer must do. A new one is tested by adding a line to the table in table.py.

Shapes: D weights; update [k].
"""

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradsift
from gradsift import FewBits, GradsiftError, Method, ServerOptimizer, Sparse, densify, round
from gradsift.server import ERROR, Server, advance, taken
from gradsift.server_step import SGD, Momentum
from gradsift.sparse import everything, nothing, top_k
from tests.examples import examples
from tests.reference import server as literal
from tests.registered import own_names
from tests.server.table import TABLE, Row
from tests.sparsify.cases import unchanged

CASES = [pytest.param(name, row, id=f"{name} {row.options}") for name, rows in TABLE.items() for row in rows]
every = pytest.mark.parametrize(("name", "row"), CASES)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
FIXED = gradsift.controller("fixed", k=3)
DIM = 12


def make(name: str, row: Row) -> ServerOptimizer:
    return gradsift.server_optimizer(name, **row.options)


def updates(seed: int, count: int, dtype: torch.dtype, dense: bool) -> Iterator[Sparse]:
    source = np.random.default_rng(seed)
    for _ in range(count):
        vector = torch.from_numpy(source.standard_normal(DIM)).to(dtype)
        yield everything(vector) if dense else top_k(vector, int(source.integers(1, DIM)))


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_no_server_optimizer_is_missing() -> None:
    found = [cls for cls in subclasses(ServerOptimizer) if cls.__module__.startswith("gradsift.")]
    assert {cls.name for cls in found if not inspect.isabstract(cls)} == set(TABLE)
    assert set(TABLE) <= set(gradsift.server_optimizers())


@every
def test_it_carries_its_name_and_equals_another_of_its_kind(name: str, row: Row) -> None:
    assert make(name, row).name == name
    assert make(name, row) == make(name, row)
    assert hash(make(name, row)) == hash(make(name, row))


@every
@dtypes
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@given(seed=st.integers(0, 2**32))
@examples(20)
def test_it_is_that_of_torch(name: str, row: Row, dtype: torch.dtype, dense: bool, seed: int) -> None:
    """Which is given the update as a dense gradient."""
    optimizer, start = make(name, row), torch.linspace(-1, 1, DIM, dtype=dtype)
    weights, memory = start, optimizer.init(start)
    assert set(memory) == set(row.memory)
    parameter = start.clone().requires_grad_()
    by_torch = row.torch([parameter])
    for update in updates(seed, 8, dtype, dense):
        weights, memory = taken(optimizer, weights, memory, update)
        parameter.grad = densify(update).clone()
        by_torch.step()
        assert weights.dtype == dtype
        assert set(memory) == set(row.memory)
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(weights, parameter.detach(), rtol=0, atol=tolerance)


@every
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_a_step_changes_nothing_that_it_is_given(name: str, row: Row, dense: bool) -> None:
    optimizer, weights = make(name, row), torch.linspace(-1, 1, DIM)
    memory = optimizer.init(weights)
    for update in updates(3, 5, torch.float32, dense):
        names = list(memory)
        with unchanged(weights, *memory.values(), *update[:2]):
            after, later = taken(optimizer, weights, memory, update)
        assert list(memory) == names
        held = {weights.untyped_storage().data_ptr(), update.values.untyped_storage().data_ptr()}
        assert after.untyped_storage().data_ptr() not in held
        weights, memory = after, later


@every
def test_a_dense_update_is_the_sparse_one_with_all_elements(name: str, row: Row) -> None:
    optimizer, start = make(name, row), torch.zeros(DIM, dtype=torch.float64)
    whole, sparse = (start, optimizer.init(start)), (start, optimizer.init(start))
    for update in updates(1, 5, torch.float64, dense=True):
        order = torch.randperm(DIM, generator=torch.Generator().manual_seed(0))
        whole = taken(optimizer, *whole, update)
        sparse = taken(optimizer, *sparse, Sparse(order, update.values[order], DIM))
    assert torch.equal(whole[0], sparse[0])


@every
@given(seed=st.integers(0, 2**32))
@examples(20)
def test_it_is_its_slow_twin(name: str, row: Row, seed: int) -> None:
    options: dict[str, Any] = {"server": make(name, row), "down_values": FewBits(2), "controller": FIXED}
    method = Method.of(**options)
    server = other = round.start(method, torch.linspace(-1, 1, DIM, dtype=torch.float64))
    assert set(server.memory) == {*row.memory, ERROR}
    for number, merged in enumerate(updates(seed, 8, torch.float64, dense=False)):
        lr = 0.5 / (1 + number)
        server, sent = advance(method, server, merged, lr)
        other, literally = literal.advance(method, other, merged, lr)
        torch.testing.assert_close(densify(sent), densify(literally), rtol=0, atol=1e-12)
        torch.testing.assert_close(server.weights, other.weights, rtol=0, atol=1e-12)
        assert server.memory.keys() == other.memory.keys()
        for key, value in server.memory.items():
            torch.testing.assert_close(value, other.memory[key], rtol=0, atol=1e-12)


# The memory of a server.


def started(down_values: Any, server: Any, dtype: torch.dtype = torch.float64) -> tuple[Method, Server]:
    method = Method.of(controller=FIXED, down_values=down_values, server=server)
    return method, round.start(method, torch.zeros(DIM, dtype=dtype))


def test_what_a_server_remembers() -> None:
    assert started("exact", "sgd")[1].memory == {}
    assert started("exact", SGD(0.5))[1].memory == {}
    assert set(started("exact", "momentum")[1].memory) == {"velocity"}
    assert set(started("few-bits", "sgd")[1].memory) == {ERROR}
    assert set(started("int8", "momentum")[1].memory) == {"velocity", ERROR}


@pytest.mark.parametrize("down_values", gradsift.value_types())
@every
@dtypes
def test_every_type_of_values_goes_with_every_optimizer(
    name: str, row: Row, down_values: str, dtype: torch.dtype
) -> None:
    """Also one whose values arrive in another precision than the weights have."""
    method, server = started(down_values, make(name, row), dtype)
    total = torch.zeros(DIM, dtype=torch.float64)
    for merged in updates(0, 6, dtype, dense=False):
        server, sent = advance(method, server, merged, 0.5)
        update = densify(sent).double() * (0.5 if method.plain_step else 1.0)  # plainly, the gradient is sent
        total += 0.5 * densify(merged).double() - update
        assert server.weights.dtype == dtype
        assert all(value.dtype == dtype for value in server.memory.values())
    left = server.memory.get(ERROR, torch.zeros(DIM, dtype=dtype))
    torch.testing.assert_close(left.double(), total, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)


def test_advancing_changes_no_server() -> None:
    for down_values, optimizer in (("exact", "sgd"), ("few-bits", "sgd"), ("few-bits", "momentum")):
        method, server = started(down_values, optimizer)
        for merged in updates(0, 4, torch.float64, dense=False):
            with unchanged(server.weights, *server.memory.values(), *merged[:2]):
                after, sent = advance(method, server, merged, 0.5)
                again, resent = advance(method, server, merged, 0.5)
            assert torch.equal(after.weights, again.weights)
            assert torch.equal(sent.values, resent.values)
            server = after


def test_a_round_without_an_exchange_makes_no_step() -> None:
    """Momentum does not carry the weights on where nobody has sent anything."""
    method, server = started("few-bits", "momentum")
    server, _ = advance(method, server, everything(torch.ones(DIM, dtype=torch.float64)), 0.5)
    after, sent = advance(method, server, nothing(server.weights), 0.5)
    assert sent.size == 0
    assert torch.equal(after.weights, server.weights)
    assert after.memory == server.memory


def test_coordinates_that_are_not_sent_keep_their_error() -> None:
    method, server = started("few-bits", "sgd")
    first = Sparse(torch.tensor([0, 1, 2]), torch.tensor([1.0, 1.5, 9.0]).double(), DIM)
    server, _ = advance(method, server, first, 1.0)
    left = server.memory[ERROR]
    assert left[:2].tolist() == pytest.approx([-0.25, 0.25])
    second = Sparse(torch.tensor([1, 7]), torch.tensor([2.75, 3.0]).double(), DIM)
    server, sent = advance(method, server, second, 1.0)
    assert densify(sent)[[1, 7]].tolist() == pytest.approx([3.0, 3.0])  # what was left of 1.5 came along
    assert server.memory[ERROR][0] == left[0]
    assert float(server.memory[ERROR][1]) == pytest.approx(0.0)


# One's own.


@dataclass(frozen=True)
class Decaying(ServerOptimizer):
    """Momentum, written in another way: everything in its memory decays."""

    keep: float = 0.5

    def init(self, weights: Tensor) -> dict[str, Tensor]:
        return {"trace": torch.zeros_like(weights)}

    def step(self, memory: dict[str, Tensor], update: Sparse) -> tuple[dict[str, Tensor], Sparse]:
        after = {name: value * self.keep + densify(update) for name, value in memory.items()}
        return after, everything(after["trace"])


def test_a_registered_one_is_found_by_its_name_and_runs() -> None:
    with own_names():
        gradsift.register_server_optimizer("decaying")(Decaying)
        assert "decaying" in gradsift.server_optimizers()
        own, own_server = started("few-bits", "decaying")
        assert own.server == Decaying()
        assert own.describe()["server"] == {"name": "decaying", "keep": 0.5}
        same, same_server = started("few-bits", Momentum(0.5))
        for merged in updates(0, 6, torch.float64, dense=False):
            own_server, _ = advance(own, own_server, merged, 0.5)
            same_server, _ = advance(same, same_server, merged, 0.5)
        torch.testing.assert_close(own_server.weights, same_server.weights)
        # It was not given what rounding has left, which is not its own.
        torch.testing.assert_close(own_server.memory[ERROR], same_server.memory[ERROR])
    assert "decaying" not in gradsift.server_optimizers()


@pytest.mark.parametrize(
    ("memory", "named"),
    [
        ({"v": torch.zeros(3)}, "got 'v': torch.float32 [3]"),
        ({"v": torch.zeros(DIM, 1)}, f"got 'v': torch.float32 [{DIM}, 1]"),
        ({"v": torch.zeros(DIM, dtype=torch.float64)}, f"got 'v': torch.float64 [{DIM}]"),
        ({"v": torch.zeros(())}, "got 'v': torch.float32 []"),
        ({ERROR: torch.zeros(DIM)}, "and not called 'error', got 'error'"),
    ],
)
def test_a_memory_that_is_not_like_the_weights_is_refused(memory: dict[str, Tensor], named: str) -> None:
    class Bad(Decaying):
        """With a memory of another kind."""

        name = "bad"

        def init(self, weights: Tensor) -> dict[str, Tensor]:
            del weights
            return memory

    with pytest.raises(GradsiftError, match=re.escape(named)) as caught:
        started("exact", Bad(), torch.float32)
    assert "the memory of server optimizer 'bad' must be like the weights" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("sgd", {"rate": -1.0}, "rate must be at least 0, got -1.0"),
        ("sgd", {"rate": math.nan}, "rate must be a finite number, got nan"),
        ("momentum", {"momentum": 1.5}, "momentum must be in [0.0, 1.0], got 1.5"),
        ("momentum", {"momentum": -0.1}, "momentum must be in [0.0, 1.0], got -0.1"),
        ("momentum", {"momentum": "0.9"}, "momentum must be a finite number, got '0.9'"),
        ("momentum", {"nesterov": 1}, "nesterov must be True or False, got 1"),
        ("momentum", {"rate": math.inf}, "rate must be a finite number, got inf"),
        ("momentum", {"momentun": 0.5}, "'momentum' has no option 'momentun'; did you mean 'momentum'"),
        ("momentun", {}, "unknown server optimizer 'momentun'; did you mean 'momentum'"),
    ],
)
def test_bad_options_are_refused_by_their_value(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(named)):
        gradsift.server_optimizer(name, **options)


def test_what_is_no_optimizer_is_not_registered() -> None:
    with pytest.raises(GradsiftError, match="must be a subclass of ServerOptimizer"):
        gradsift.register_server_optimizer("no optimizer")(dict)
