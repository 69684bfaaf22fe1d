"""A ClientApp whose gradients are known, and books of what became of them.

Gradients are multiples of 1/64 and float64: every sum is exact, so equal means equal. What a client has computed is
summed up in its context, which is kept, lost and rolled back together with the rest of its state.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from gradsift.flower import Probe, SparseMod, SparseStrategy
from gradsift.flower.client_state import ClientState, Store
from gradsift.flower.rounds import Rounds, Upload
from gradsift.records.record import Record
from gradsift.round import Plan
from gradsift.sparse import Sparse, densify
from tests.flower.grid import LocalGrid

DIM = 11
BOOKS = "books"


def model() -> nn.Module:
    """Eleven weights, zero."""
    net = nn.Linear(10, 1).double()
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def app(folder: Path | None = None, probe: bool = True) -> ClientApp:
    """Its gradients are drawn; its probe says that smaller weights are better."""
    looks = Probe(
        loss=lambda state, batch: float(sum((value - batch).square().sum() for value in state.values())),
        batch=lambda _, number: float(number % 3),
    )
    made = ClientApp(mods=[SparseMod(looks if probe else None, state_folder=folder)])

    @made.train()
    def train(message: Message, context: Context) -> Message:
        records = context.state.array_records
        total = records[BOOKS]["sum"].numpy() if BOOKS in records else np.zeros(DIM)
        client, number = (
            int(context.node_config["partition-id"]),
            message.content.config_records["config"]["server-round"],
        )
        # The seed includes what was drawn before: a client that trains twice in a round draws twice.
        source = np.random.default_rng([client, int(str(number)), abs(int(total.sum() * 64))])
        gradient = source.integers(-64, 65, DIM) / 64
        context.state[BOOKS] = ArrayRecord({"sum": ArrayRecord([total + gradient])["0"]})
        flat = torch.from_numpy(gradient)
        named = ArrayRecord({"weight": flat[:10].view(1, 10), "bias": flat[10:]})
        metrics = MetricRecord({"num-examples": 2**client})
        return Message(RecordDict({"gradient": named, "metrics": metrics}), reply_to=message)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        del context
        weights = message.content.array_records["arrays"].to_torch_state_dict()
        loss = float(sum((value - 1).square().sum() for value in weights.values()))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": loss})}), reply_to=message)

    return made


class Books:
    """What the servers took from each client, round by round, as their merges say."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.delivered: dict[int, dict[int, Tensor]] = {}  # client -> round -> [D]
        merge = Rounds.merge

        def written(rounds: Rounds, plan: Plan, uploads: dict[int, Upload], *others: Any) -> Record:
            record = merge(rounds, plan, uploads, *others)
            for client, upload in uploads.items():
                merged, sent = rounds.clients[client].merged_upload, upload.sent
                assert merged is not None
                kept = Sparse(sent.indices[merged.kept], sent.values[merged.kept], sent.dim)
                self.delivered.setdefault(client, {})[plan.rnd.number] = densify(kept)
            return record

        patch.setattr(Rounds, "merge", written)

    def total(self, client: int) -> Tensor:
        return sum(self.delivered.get(client, {}).values(), torch.zeros(DIM, dtype=torch.float64))

    def last(self, client: int) -> int:
        """The last round that took something from this client."""
        return max(self.delivered.get(client, {}), default=0)


def strategy_of(**options: Any) -> SparseStrategy:
    """Three elements a round, of eleven."""
    given: dict[str, Any] = {"controller": "fixed", "k": 3, "fraction_evaluate": 0, "lr": 0.5}
    return SparseStrategy(model(), **{**given, **options})


def arrays() -> ArrayRecord:
    return ArrayRecord(model().state_dict())


def play(strategy: SparseStrategy, grid: LocalGrid, number: int = 1) -> Record:
    """One round as ``Strategy.start`` makes it."""
    config = ConfigRecord()
    strategy.aggregate_train(number, grid.send_and_receive(strategy.configure_train(number, arrays(), config, grid)))
    messages = strategy.configure_evaluate(number, arrays(), config, grid)
    strategy.aggregate_evaluate(number, grid.send_and_receive(messages))
    return strategy.records[-1]


def end(strategy: SparseStrategy) -> None:
    """The server's process ends, whatever it was doing: it writes no more, and its lock is gone."""
    strategy._log.close()


def go_back(out: Path, old: Path) -> None:
    """The run folder as it was when ``old`` was copied from it."""
    shutil.rmtree(out)
    shutil.copytree(old, out)


def state_of(strategy: SparseStrategy, grid: LocalGrid, client: int, folder: Path | None = None) -> ClientState | None:
    return Store(grid.context(client), strategy._log.experiment, str(client), folder).load()


def computed(grid: LocalGrid, client: int) -> Tensor:
    """The sum of the gradients that this client has computed, as far as it remembers."""
    records = grid.context(client).state.array_records
    return (
        torch.from_numpy(records[BOOKS]["sum"].numpy()) if BOOKS in records else torch.zeros(DIM, dtype=torch.float64)
    )


def catch_up(strategy: SparseStrategy, grid: LocalGrid) -> None:
    """All clients update their weights and settle, without training."""
    fraction, strategy.fraction_evaluate = strategy.fraction_evaluate, 1.0
    for _ in range(2):  # a client that is behind in the first is sent the full weights in the second
        messages = strategy.configure_evaluate(0, arrays(), ConfigRecord(), grid)
        strategy.aggregate_evaluate(0, grid.send_and_receive(messages))
    strategy.fraction_evaluate = fraction
