"""The server's side: a Flower strategy that trains by sparse rounds.

``Strategy.start`` trains, then evaluates, once a round. In the one-exchange form a train message applies round m and
asks for round m + 1, and the losses of round m come with the answer. In the two-exchange form, the paper's Fig. 3, the
evaluate message applies round m and asks for its losses.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from secrets import token_hex
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import nn

from gradsift import check, round
from gradsift.control import Controller
from gradsift.cost import CostModel
from gradsift.describe import qualified_name
from gradsift.draws import rng
from gradsift.errors import GradsiftError, RunError
from gradsift.flower import checkpoint
from gradsift.flower.inbox import Inbox, Refusal
from gradsift.flower.metrics import Aggregate, averaged
from gradsift.flower.options import Options, check_flowers
from gradsift.flower.orders import Orders
from gradsift.flower.protocol import Order, payload
from gradsift.flower.roster import Roster, enter
from gradsift.flower.rounds import Rounds
from gradsift.flower.run_log import TRAIN_LOSS, RunLog, first_number
from gradsift.flower.server_state import Client
from gradsift.local import LocalComputation
from gradsift.method import COUNTING
from gradsift.records.files import Arrays, Facts
from gradsift.records.record import Record
from gradsift.round import Plan
from gradsift.sampling import participants
from gradsift.schedule import Schedule
from gradsift.sparsify import Sparsifier
from gradsift.values import ValueType

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class SparseStrategy(Strategy):
    """In the place of Flower's FedAvg, with ``SparseMod`` on the clients.

    ``model`` says which entries of its state_dict are trainable parameters. The five slots are those of
    ``gradsift.Method``. ``k`` is how many elements each client sends where k is fixed (default: 1 % of them): where no
    client has a probe, or ``controller`` is "fixed". Otherwise ``controller`` learns k to lower ``cost`` (default: the
    paper's normalised time, comm_time 10), in which traffic counts with the bytes of the wire format unless
    ``encoded_bytes`` is False. ``lr`` is the server's rate. ``out`` is a run folder, with a record and a checkpoint
    after every round; a run that is there is continued. The other arguments are Flower's.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sparsifier: str | Sparsifier = "fab-top-k",
        controller: str | Controller[Any] | None = None,
        cost: str | CostModel | None = None,
        local: str | LocalComputation | None = None,
        values: str | ValueType = "exact",
        k: float | None = None,
        lr: float | Schedule = 1.0,
        seed: int = 0,
        charge_probe: bool = False,
        dense_fallback: bool = False,
        encoded_bytes: bool = True,
        exchanges: int = 1,
        buffers: str = "refuse",
        out: str | Path | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
    ) -> None:
        self.options = Options.of(
            model,
            controller=controller,
            k=k,
            exchanges=exchanges,
            buffers=buffers,
            sparsifier=sparsifier,
            cost=cost,
            local=local,
            values=values,
            lr=lr,
            seed=seed,
            charge_probe=charge_probe,
            dense_fallback=dense_fallback,
            encoded_bytes=encoded_bytes,
        )
        self._model = qualified_name(type(model))
        check_flowers(
            {"fraction_train": fraction_train, "fraction_evaluate": fraction_evaluate},
            {
                "min_train_nodes": min_train_nodes,
                "min_evaluate_nodes": min_evaluate_nodes,
                "min_available_nodes": min_available_nodes,
            },
            {
                "weighted_by_key": weighted_by_key,
                "arrayrecord_key": arrayrecord_key,
                "configrecord_key": configrecord_key,
            },
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self._log = RunLog(None if out is None else check.path("out", out))
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrays_key, self.config_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn, self.evaluate_metrics_aggr_fn = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self._roster = Roster()
        self.refused: list[Refusal] = self._roster.refused
        self._experiment, self._session = token_hex(8), token_hex(8)
        self._timeout = 3600.0
        self._rounds: Rounds | None = None
        self._plan: Plan | None = None
        self._sent = self._order("hello")
        self._down = 0
        self._merged: list[int] = []

    @property
    def records(self) -> list[Record]:
        """One for each round, the last one maybe without its evaluation."""
        return self._log.records

    @property
    def rounds(self) -> Rounds:
        """The state of the run, from the first round on."""
        if self._rounds is None:
            raise GradsiftError("the strategy has not begun its first round")
        return self._rounds

    def summary(self) -> None:
        """Say what is about to run; how k is chosen is said once the clients have answered."""
        options = self.options
        log(INFO, "\t├── gradsift: %s of %d weights", options.method.sparsifier.name, options.layout.dim)
        log(INFO, "\t├── fractions: train %s, evaluate %s", self.fraction_train, self.fraction_evaluate)
        log(INFO, "\t└── exchanges a round, apart from evaluation: %d", options.exchanges)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """As every strategy; the rounds of a checkpoint count among ``num_rounds``."""
        self._timeout, self._log.rounds = timeout, num_rounds
        done = 0

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = None if evaluate_fn is None else evaluate_fn(number + done, arrays)
            self._log.evaluated(metrics, start=number + done == 0)
            return metrics

        try:
            if self._log.is_there:
                self._open(initial_arrays, grid)
                done, initial_arrays = self.rounds.state.version, self._arrays()
                log(INFO, "gradsift: continuing after round %d from %s", done, self._log.path)
            left = max(0, num_rounds - done)
            result = super().start(
                grid, initial_arrays, left, timeout, train_config, evaluate_config, evaluate_fn and evaluate
            )
            self._log.finish_round()
            self._save()
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
        """Orders to train, for the clients of the next round."""
        del server_round
        if self.fraction_train == 0:
            self._plan = None
            return []
        nodes = self._open(arrays, grid)
        self._log.finish_round()
        self._plan = plan = self.rounds.plan()
        count = _count(nodes, self.fraction_train, self.min_train_nodes)
        chosen = [sorted(nodes)[i] for i in participants(len(nodes), count, self.options.method.seed, plan.first)]
        log(INFO, "gradsift: round %d, k = %d, %d of %d clients", plan.rnd.number, plan.rnd.k, count, len(nodes))
        probing = chosen if self.options.exchanges == 1 else []
        return self._messages(nodes, dict.fromkeys(chosen, "train"), probing, MessageType.TRAIN, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge the uploads that can be merged; the others are refused, each with its reason."""
        del server_round
        if self._plan is None:
            return None, None
        inbox = self._inbox(replies, train=True)
        observed = self.rounds.observe(inbox.all_losses) if self.options.exchanges == 1 else None
        self.rounds.average(inbox.moved, inbox.uploads)
        record = self.rounds.merge(self._plan, inbox.uploads)
        self._merged = sorted(inbox.uploads)
        if observed is not None:
            round.note_observation(record, observed)
        record["refused"], record["resets"] = len(inbox.refused), inbox.resets
        record["up_bytes"], record["down_bytes"] = float(inbox.bytes), float(self._down)
        metrics = averaged(inbox.contents.values(), self.weighted_by_key, self.train_metrics_aggr_fn)
        record["train_loss"] = first_number(metrics, TRAIN_LOSS)
        self._log.add(record)
        self._save()
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        metrics |= {f"gradsift-{name.replace('_', '-')}": value for name, value in numbers.items()}
        return self._arrays(), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Orders to evaluate, and in the two-exchange form to take the losses of the round."""
        del server_round
        self._down = 0
        learning = self.options.exchanges == 2 and self._rounds is not None and self._rounds.method.controller.learns
        probing = self._merged if learning else []
        if not (probing or self.fraction_evaluate):
            return []
        nodes = self._open(arrays, grid)
        self._plan = self._plan or self.rounds.plan()
        acts = {client: "probe" for client in probing if client in nodes}
        if self.fraction_evaluate:
            count = _count(nodes, self.fraction_evaluate, self.min_evaluate_nodes)
            draw = rng(self.options.method.seed, "evaluators", number=self._plan.rnd.number)
            acts |= {sorted(nodes)[i]: "evaluate" for i in draw.choice(len(nodes), count, replace=False)}
        return self._messages(nodes, acts, probing, MessageType.EVALUATE, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics; and in the two-exchange form what the controller learns."""
        del server_round
        if self._plan is None:
            return None
        inbox = self._inbox(replies, train=False)
        self._add_traffic(inbox)
        metrics = averaged(inbox.contents.values(), self.weighted_by_key, self.evaluate_metrics_aggr_fn)
        self._log.evaluated(metrics)
        if self.options.exchanges == 2:
            self._observe(inbox)
        elif inbox.contents:
            self._save()
        return MetricRecord(metrics) if metrics else None

    def _open(self, arrays: ArrayRecord, grid: Grid) -> Mapping[int, int]:
        """Begin, if that has not been done; the connected clients and their nodes."""
        continued = self._log.is_there and not self._log.is_open
        if continued:
            self._continue(arrays)
        least = max(self.min_available_nodes, self.min_train_nodes)
        nodes, reports = self._roster.call(grid, least, self._order("hello"), self._timeout)
        if not nodes:
            raise RunError("no client has said who it is: are they ClientApps with SparseMod?")
        if self._rounds is None:
            self._rounds = self.options.rounds(arrays, any(report.can_probe for report in reports))
        enter(self.rounds.state, reports)
        if self._log.path is not None and not self._log.is_open:
            self._log.create(self._config(len(nodes)), *self._contents())
        if continued and self.options.exchanges == 2:
            self._ask_again(nodes, grid)
        return nodes

    def _continue(self, arrays: ArrayRecord) -> None:
        """Go back to the checkpoint of the run folder, as another run of the same experiment."""
        try:
            state, self._experiment, controller = self._log.continued(
                lambda arrays, facts: checkpoint.restored(arrays, facts, self.options)
            )
            self._rounds = self.options.rounds(arrays, False, controller)
            self._rounds.state = state
            self._log.amend(self._config(len(state.clients)))
        except BaseException:
            self._log.close()
            raise
        self._session = token_hex(8)
        self._roster.client_of.clear()  # all are asked again what they hold

    def _config(self, clients: int) -> dict[str, Any]:
        """What the run folder says of the run."""
        options, method = self.options, self.rounds.method
        settings = {name: getattr(method, name) for name in ("seed", *COUNTING)}
        settings |= {"exchanges": options.exchanges, "buffers": options.buffers, "fraction_train": self.fraction_train}
        return {
            "model": {"class": self._model, "dim": options.layout.dim},
            "data": {"clients": clients},
            **method.describe(),
            "settings": settings,
        }

    def _ask_again(self, nodes: Mapping[int, int], grid: Grid) -> None:
        """The losses of a round that a run before this one merged, and was ended before it had them."""
        state = self.rounds.state
        if state.pending is None:
            return
        self._plan = self.rounds.last_plan(state.pending)
        took_part = [client for client in nodes if _merged_in(state.clients[client], state.version)]
        log(INFO, "gradsift: asking %d clients again for the losses of round %d", len(took_part), state.version)
        acts = dict.fromkeys(took_part, "probe")
        messages = self._messages(nodes, acts, took_part, MessageType.EVALUATE, ConfigRecord())
        inbox = self._inbox(grid.send_and_receive(messages, timeout=self._timeout), train=False)
        self._add_traffic(inbox)
        self._observe(inbox)

    def _add_traffic(self, inbox: Inbox) -> None:
        """Another exchange of the round whose record is open."""
        record = self._log.open_record
        if record is not None:
            record["down_bytes"] += self._down
            record["up_bytes"] += inbox.bytes

    def _observe(self, inbox: Inbox) -> None:
        """Two exchanges a round: the losses of the round itself have come."""
        observed = self.rounds.observe(inbox.all_losses)
        if observed is not None and self._log.open_record is not None:
            round.note_observation(self._log.open_record, observed)
        self._save()

    def _order(self, act: str) -> Order:
        number = 0 if self._plan is None else self._plan.rnd.number
        return Order(
            act,
            self._experiment,
            self._session,
            number,
            buffers=self.options.buffers,
            arrays_key=self.arrays_key,
            config_key=self.config_key,
        )

    def _messages(
        self,
        nodes: Mapping[int, int],
        acts: Mapping[int, str],
        probing: Sequence[int],
        kind: str,
        config: ConfigRecord,
    ) -> list[Message]:
        """One message for each client in ``acts``; those in ``probing`` take their losses too."""
        assert self._plan is not None
        config["server-round"] = self._plan.rnd.number  # Flower's own count starts again when a run is continued
        orders = Orders(self.rounds, self.options.layout, self._order("train"), self._plan)
        self._sent = orders.order
        contents = {client: orders.content(client, acts[client], client in probing) for client in sorted(acts)}
        self._down = sum(payload(content) for content in contents.values())
        for content in contents.values():
            content[self.config_key] = config
        return [Message(content, nodes[client], kind) for client, content in contents.items()]

    def _inbox(self, replies: Iterable[Message], *, train: bool) -> Inbox:
        assert self._plan is not None
        inbox = Inbox(self.rounds, self._plan, self._sent, self._roster.client_of, self.weighted_by_key)
        for reply in replies:
            inbox.take(reply, train=train)
        self.refused += inbox.refused
        return inbox

    def _arrays(self) -> ArrayRecord:
        state = self.rounds.state
        return ArrayRecord(self.options.layout.unflatten(state.weights) | state.rest)

    def _contents(self) -> tuple[Arrays, Facts]:
        rounds = self.rounds
        return checkpoint.contents(rounds.state, self._experiment, self.options, rounds.method.controller)

    def _save(self) -> None:
        if self._log.is_open:
            self._log.save(self.rounds.state.version, *self._contents())


def _merged_in(client: Client, number: int) -> bool:
    return client.settle is not None and client.settle.number == number


def _count(nodes: Mapping[int, int], fraction: float, least: int) -> int:
    """As many as Flower's own strategies take."""
    return min(len(nodes), max(int(len(nodes) * fraction), least))
