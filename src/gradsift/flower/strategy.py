"""The server's side on Flower: a strategy that exchanges sparse gradients.

``Strategy.start`` trains and evaluates in each round. With one exchange per round, a train message applies round m and
asks for uploads of round m + 1, and the losses of round m come with the reply. With two exchanges, the paper's Fig. 3,
an evaluate message applies round m and asks for its losses.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import nn

from gradsift import check, round
from gradsift.control import Controller
from gradsift.cost import CostModel
from gradsift.draws import rng
from gradsift.errors import GradsiftError, RunError
from gradsift.flower.inbox import Inbox, Refusal
from gradsift.flower.metrics import averaged
from gradsift.flower.options import FlowerArguments, Options
from gradsift.flower.orders import Orders
from gradsift.flower.protocol import Order
from gradsift.flower.roster import Roster
from gradsift.flower.rounds import Rounds
from gradsift.flower.run_log import TRAIN_LOSS, RunLog, first_number
from gradsift.local import LocalComputation
from gradsift.method import COUNTING, SLOTS
from gradsift.records.record import Record
from gradsift.round import Plan
from gradsift.sampling import participants
from gradsift.schedule import Schedule
from gradsift.server_step import ServerOptimizer
from gradsift.sparsify import Sparsifier
from gradsift.values import ValueType


@dataclass(eq=False, repr=False)
class SparseStrategy(FlowerArguments, Strategy):
    """A strategy to use in place of Flower's FedAvg, with ``SparseMod`` on the clients.

    The slots and their short forms are those of ``gradsift.Method.of``. By default k is planned to lower ``cost`` and
    learned from what waits at the clients; it is fixed if ``k`` is given. A controller that learns from losses needs
    clients with a probe: k is fixed if none has one. Clients are sent the weights that changed; with ``down_values`` or
    ``server`` they are sent the updates, and make the server's steps. The arguments that are not listed here are
    Flower's.
    """

    model: nn.Module  # defines which entries of the state_dict are trainable parameters
    _: KW_ONLY
    sparsifier: str | Sparsifier = "fab-top-k"
    controller: str | Controller[Any] | None = None  # default: "planned", or "fixed" with ``k`` or a dense sparsifier
    cost: str | CostModel | None = None  # default: the paper's normalised time, comm_time 10
    local: str | LocalComputation | None = None  # default: what goes with the sparsifier
    values: str | ValueType = "exact"  # how the values of uploads are rounded
    down_values: str | ValueType = "exact"  # how the server's updates are rounded
    server: str | ServerOptimizer = "sgd"  # the step that is made of an update
    local_steps: int | None = None  # short for local=LocalSteps(local_steps); the train function must return gradients
    bits: int | tuple[int, int] | None = None  # short for values and down_values of so many bits, up and down
    k: float | None = None  # the elements that each client sends if k is fixed; default: 1 % of the weights
    lr: float | Schedule = 1.0  # the server's step size
    seed: int = 0
    charge_probe: bool = False
    dense_fallback: bool = False
    encoded_bytes: bool = True  # count the bytes of the wire format instead of 4 for each index and each value
    exchanges: int = 1  # exchanges per round: 1 or 2
    buffers: str = "refuse"  # what to do with buffers that training changes: "refuse" or "average"
    out: str | Path | None = None  # a run folder, written every round; a run that is in it already is continued

    def __post_init__(self) -> None:
        """Validate the arguments, and the folder if it exists."""
        super().__post_init__()
        names = (*SLOTS, "local_steps", "bits", "k", "lr", "seed", "exchanges", "buffers", *COUNTING)
        self.options = Options.of(self.model, **{name: getattr(self, name) for name in names})
        path = None if self.out is None else check.path("out", self.out)
        self._log = RunLog(path, self.options, self.fraction_train)
        self._roster = Roster()
        self.refused: list[Refusal] = self._roster.refused
        self._timeout = 3600.0
        self._rounds: Rounds | None = None
        self._orders: Orders | None = None  # of the current exchange
        self._merged: list[int] = []  # the clients whose uploads were merged last
        self._clock = time.monotonic
        self._sent_at = 0.0  # when the orders to train were handed to Flower

    @property
    def records(self) -> list[Record]:
        """One record for each round; the last one may still lack its evaluation."""
        return self._log.records

    @property
    def rounds(self) -> Rounds:
        """The state of the run, from the first round on."""
        if self._rounds is None:
            raise GradsiftError("the strategy has not begun its first round")
        return self._rounds

    def summary(self) -> None:
        """Log what is about to run; how k is chosen is logged once the clients have replied."""
        options = self.options
        log(INFO, "\t├── gradsift: %s of %d weights", options.method.sparsifier.name, options.layout.dim)
        log(INFO, "\t├── fractions: train %s, evaluate %s", self.fraction_train, self.fraction_evaluate)
        log(INFO, "\t└── exchanges per round, apart from evaluation: %d", options.exchanges)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train as every Flower strategy does; ``num_rounds`` includes the rounds of a run that is continued."""
        self._timeout, self._log.num_rounds = timeout, num_rounds
        done = 0

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = None if evaluate_fn is None else evaluate_fn(number + done, arrays)
            self._log.add_evaluation(metrics, start=number + done == 0)
            return metrics

        try:
            if self._log.exists:
                self._connect(initial_arrays, grid)
                done, initial_arrays = self.rounds.version, self._arrays()
                log(INFO, "gradsift: continuing after round %d from %s", done, self._log.path)
            left = max(0, num_rounds - done)
            result = super().start(
                grid, initial_arrays, left, timeout, train_config, evaluate_config, evaluate_fn and evaluate
            )
            self._log.finish_round()
            if self._rounds is not None:
                self._log.save(self._rounds)
        finally:
            self._log.close()
        if not left:
            result.arrays = initial_arrays
        for metrics in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            counted = {number + done: record for number, record in metrics.items()}  # Flower counts from 1 again
            metrics.clear()
            metrics.update(counted)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Orders to train for the clients of the next round."""
        del server_round
        self._orders = None
        if self.fraction_train == 0:
            return []
        nodes = self._connect(arrays, grid)
        self._log.finish_round()
        count = _count(nodes, self.fraction_train, self.min_train_nodes)
        self.rounds.price(count)
        plan = self.rounds.plan()
        chosen = [
            sorted(nodes)[i] for i in participants(len(nodes), count, self.options.method.seed, plan.period_start)
        ]
        log(INFO, "gradsift: round %d, k = %d, %d of %d clients", plan.rnd.number, plan.rnd.k, count, len(nodes))
        probing = chosen if self.options.exchanges == 1 else []
        messages = self._messages(plan, nodes, dict.fromkeys(chosen, "train"), probing, config)
        self._sent_at = self._clock()
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge the valid uploads; every other reply is refused with its reason."""
        del server_round
        if self._orders is None:
            return None, None
        replies = list(replies)
        seconds = self._clock() - self._sent_at
        inbox = self._inbox(replies, train=True)
        observed = None
        if not self._asks_again:
            observed = self.rounds.observe([*inbox.losses.values()], inbox.left, inbox.uploads)
        self.rounds.average_buffers(self._orders.plan, inbox.buffers, inbox.uploads)
        record = self.rounds.merge(self._orders.plan, inbox.uploads, inbox.mass, seconds)
        self._merged = list(inbox.uploads)
        if observed is not None:
            round.note_observation(record, observed)
        record["refused"], record["resets"] = len(inbox.refused), inbox.resets
        record["up_bytes"], record["down_bytes"] = float(inbox.bytes), float(self._orders.bytes)
        metrics = averaged(inbox.accepted.values(), self.weighted_by_key, self.train_metrics_aggr_fn)
        record["train_loss"] = first_number(metrics, TRAIN_LOSS)
        self._log.add(record)
        self._log.save(self.rounds)
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        metrics |= {f"gradsift-{name.replace('_', '-')}": value for name, value in numbers.items()}
        return self._arrays(), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Orders to evaluate and, with two exchanges per round, to take the losses of the round."""
        del server_round
        trained, self._orders = self._orders, None
        probing = self._merged if self._asks_again else []
        if not (probing or self.fraction_evaluate):
            return []
        nodes = self._connect(arrays, grid)
        plan = self.rounds.plan() if trained is None else trained.plan
        acts = {client: "probe" for client in probing if client in nodes}
        if self.fraction_evaluate:
            count = _count(nodes, self.fraction_evaluate, self.min_evaluate_nodes)
            draw = rng(self.options.method.seed, "evaluators", number=plan.rnd.number)
            acts |= {sorted(nodes)[i]: "evaluate" for i in draw.choice(len(nodes), count, replace=False)}
        return self._messages(plan, nodes, acts, probing, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics; with two exchanges per round, the controller learns from their losses."""
        del server_round
        if self._orders is None:
            return None
        inbox = self._receive_evaluation(replies)
        metrics = averaged(inbox.accepted.values(), self.weighted_by_key, self.evaluate_metrics_aggr_fn)
        self._log.add_evaluation(metrics)
        self._log.save(self.rounds)
        return MetricRecord(metrics) if metrics else None

    @property
    def _asks_again(self) -> bool:
        """Whether a second exchange of each round asks for its losses."""
        return self.options.exchanges == 2 and self._rounds is not None and self._rounds.method.controller.learns

    def _connect(self, arrays: ArrayRecord, grid: Grid) -> dict[int, int]:
        """The connected clients and their nodes; the first call starts the run, or continues that of the folder."""
        resumed = self._log.resume()
        if resumed is not None:
            self._rounds = resumed
            self._roster.restart()
        number = 1 if self._rounds is None else self._rounds.version + 1
        hello = Order("hello", self._log.experiment, self._roster.session, number)
        least = max(self.min_available_nodes, self.min_train_nodes)
        nodes, reports = self._roster.call(grid, least, hello, self._timeout)
        if not nodes:
            raise RunError("no client has identified itself: are they ClientApps with SparseMod?")
        if self._rounds is None:
            self._rounds = self.options.start(arrays, any(report.can_probe for report in reports))
        self._rounds.register(reports)
        self._log.create(self._rounds, len(nodes))
        if resumed is not None and resumed.pending is not None and self._asks_again:
            self._request_pending_losses(nodes, grid)
        return nodes

    def _request_pending_losses(self, nodes: dict[int, int], grid: Grid) -> None:
        """Ask again for the losses of a round if the server ended after the merge and before it received them."""
        rounds = self.rounds
        uploads = {client: rounds.clients[client].merged_upload for client in nodes}
        clients = [client for client, upload in uploads.items() if upload and upload.number == rounds.version]
        log(INFO, "gradsift: asking %d clients again for the losses of round %d", len(clients), rounds.version)
        acts = dict.fromkeys(clients, "probe")
        messages = self._messages(rounds.plan_again(), nodes, acts, clients, ConfigRecord())
        self._receive_evaluation(grid.send_and_receive(messages, timeout=self._timeout))
        self._log.save(rounds)

    def _messages(
        self, plan: Plan, nodes: dict[int, int], acts: dict[int, str], probing: list[int], config: ConfigRecord
    ) -> list[Message]:
        """A message for each client in ``acts``; the clients in ``probing`` must report losses too."""
        config["server-round"] = number = plan.rnd.number  # Flower's own count starts again in a continued run
        order = Order("train", self._log.experiment, self._roster.session, number, buffers=self.options.buffers)
        order = replace(order, arrays_key=self.arrayrecord_key, config_key=self.configrecord_key)
        self._orders = orders = Orders(self.rounds, self.options.layout, order, plan)
        messages = []
        for client, act in sorted(acts.items()):
            content = orders.content(client, act, client in probing)
            content[self.configrecord_key] = config
            kind = MessageType.TRAIN if act == "train" else MessageType.EVALUATE
            messages.append(Message(content, nodes[client], kind))
        return messages

    def _inbox(self, replies: Iterable[Message], *, train: bool) -> Inbox:
        assert self._orders is not None
        inbox = Inbox(self._orders, replies, self._roster.client_of, self.weighted_by_key, train=train)
        self.refused += inbox.refused
        return inbox

    def _receive_evaluation(self, replies: Iterable[Message]) -> Inbox:
        """The replies to evaluate messages; with two exchanges per round, the controller learns from their losses."""
        inbox = self._inbox(replies, train=False)
        observed = self.rounds.observe([*inbox.losses.values()], {}, {}) if self._asks_again else None
        record = self._log.open_record
        if record is not None:
            record["up_bytes"] += inbox.bytes
            record["down_bytes"] += inbox.orders.bytes
        if record is not None and observed is not None:
            round.note_observation(record, observed)
        return inbox

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord(self.options.layout.unflatten(self.rounds.weights) | self.rounds.non_trainable)


def _count(nodes: dict[int, int], fraction: float, least: int) -> int:
    """The number of clients that Flower's own strategies would choose."""
    return min(len(nodes), max(int(len(nodes) * fraction), least))
