"""The client's side: a Flower mod around an ordinary train function.

An order brings the client's weights up to date, says which elements of its last upload were kept, and asks it to train.
The train function gets whole weights and returns whole weights; the mod takes the difference as the gradient, adds it
to the residual and uploads the part that the sparsifier chooses.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log
from torch import Tensor

from gradsift import check, check_tensors, round
from gradsift.errors import GradsiftError
from gradsift.flower.client_state import ClientState, Store
from gradsift.flower.layout import Layout, Named
from gradsift.flower.protocol import BUFFERS, FULL, GRADIENT, NEVER, RECORD, Order, Report, checksum, read, write
from gradsift.flower.sync import Behind, replaced, sync
from gradsift.method import Method
from gradsift.wire import Limits, decode

LOCAL_STEP = "local-step"  # in the config of a train function that is called for several local steps a round


class Probe(NamedTuple):
    """What adaptive k needs of a client: a loss, and the samples of a round to take it on."""

    loss: Callable[[Named, Any], float]  # (state_dict, batch) -> the mean loss over the batch, without training
    batch: Callable[[Context, int], Any]  # (context, number) -> a batch; the number is that of the round's first step


class SparseMod:
    """``ClientApp(mods=[SparseMod()])``: uploads what a sparsifier chooses of what the train function changed.

    With ``probe`` the client reports the losses that adaptive k is learned from. ``state_folder`` keeps its state in a
    file there that outlives the run, and a node's own "state-folder" takes its place; without one, the state is kept in
    Flower's context while it fits. The names of the records are those of the strategy.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        *,
        state_folder: str | Path | None = None,
    ) -> None:
        if probe is not None and not (isinstance(probe, Probe) and callable(probe.loss) and callable(probe.batch)):
            raise GradsiftError(f"probe must be a Probe of two functions, got {probe!r:.80}")
        self.probe = probe
        self.folder = None if state_folder is None else check.path("state_folder", state_folder)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Follow an order; a message that is none goes through as it is."""
        if RECORD not in message.content:
            return call_next(message, context)
        order = read(Order, message.content[RECORD])
        client = client_id(context)
        folder = context.node_config.get("state-folder", self.folder)
        place = None if folder is None else check.path("state-folder", folder)
        store = Store(context, order.experiment, client, place)
        state = store.load()
        if order.act == "hello":
            if self.probe is None:
                log(INFO, "gradsift: client %s was given no probe: it takes no part in choosing k", client)
            return _reply(message, self._report(order, client, state))
        if order.act == "train" and state is not None and _answered(state, order):
            return _again(message, state)
        try:
            now, before, reset = sync(state, order, _arrays(message, FULL), _arrays(message, BUFFERS) or {})
        except Behind as problem:
            log(WARNING, "gradsift: round %s: client %s: %s", order.number, client, problem)
            report = self._report(order, client, None)
            return _reply(message, replace(report, behind=True, version=problem.version))
        if reset:
            log(WARNING, "gradsift: round %s: client %s gave up its residual: %s", order.number, client, reset)
        report = replace(
            self._report(order, client, now), losses=self._losses(order, now, before, context), reset=bool(reset)
        )
        if order.act == "train":
            now, report, metrics = self._train(message, context, call_next, order, now, report)
            store.save(now)
            return _reply(message, report, metrics, now.moved)
        store.save(now)
        if order.act == "probe":
            return _reply(message, report)
        answer = call_next(_ordinary(message, order, now.layout.unflatten(now.weights) | now.rest), context)
        return answer if answer.has_error() else _reply(message, report, dict(answer.content.metric_records))

    def _train(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        order: Order,
        state: ClientState,
        report: Report,
    ) -> tuple[ClientState, Report, dict[str, MetricRecord]]:
        """(A) and step 1 of Fig. 3: train, accumulate, choose."""
        method = order.method()
        plan, layout = order.plan(method), state.layout
        plan.rnd.validate(layout.dim)
        rest = dict(state.rest)
        answers: list[dict[str, MetricRecord]] = []

        def add_gradients(total: Tensor, point: Tensor, step: int) -> None:
            given = layout.unflatten(point) | rest
            number = order.steps_before + 1 + step if plan.steps > 1 else None
            answer = call_next(_ordinary(message, order, given, number), context)
            if answer.has_error():
                raise GradsiftError(f"the train function failed: {answer.error.reason}")
            total += _gradient(answer, order, method, layout, point)
            rest.update(_moved(rest, layout.rest(_arrays(answer, order.arrays_key) or {}), order))
            answers.append(dict(answer.content.metric_records))

        residual = state.residual.clone()
        method.local.accumulate(residual, state.weights, order.lr, add_gradients)
        check_tensors.finite("the residual", residual)
        moved = {name: value for name, value in rest.items() if value is not state.rest.get(name)}
        metrics = _over_steps(answers)
        upload = round.encoded_contribution(method, plan, residual)
        report = replace(report, upload=upload)
        again = asdict(replace(report, upload=b"")) | {
            "upload": None,
            "metrics": {n: dict(m) for n, m in metrics.items()},
        }
        after = replace(
            state,
            residual=residual,
            uploaded=order.number,
            upload=upload,
            session=order.session,
            sessions=" ".join(dict.fromkeys([*state.sessions.split(), order.session])),
            report=json.dumps(again),
            moved=moved,
        )
        return after, report, metrics

    def _losses(self, order: Order, state: ClientState, before: Tensor | None, context: Context) -> tuple[float, ...]:
        """(C): before the round, after it, and as it would have been at k', on one batch; none if it cannot say."""
        if not order.losses or self.probe is None or before is None:
            return ()
        points = [before, state.weights]
        if order.probe:
            points.append(replaced(state.weights, decode(order.probe, Limits.of(state.layout.dim))))
        batch = self.probe.batch(context, order.steps_before + 1)
        losses = [float(self.probe.loss(state.layout.unflatten(point) | state.rest, batch)) for point in points]
        if not all(math.isfinite(loss) for loss in losses):
            log(WARNING, "gradsift: round %s: the losses of the probe are %s", order.number, losses)
            return ()
        return tuple(losses)

    def _report(self, order: Order, client: str, state: ClientState | None) -> Report:
        return Report(
            client=client,
            session=order.session,
            number=order.number,
            version=NEVER if state is None else state.version,
            checksum=0 if state is None else checksum(state.weights),
            settled=NEVER if state is None else state.settled,
            can_probe=self.probe is not None,
        )


def client_id(context: Context) -> str:
    """The client's number: the partition-id of its node, or the node's own id where it has none."""
    return str(context.node_config.get("partition-id", context.node_id))


def _ordinary(message: Message, order: Order, arrays: Named, step: int | None = None) -> Message:
    """The message as a dense strategy would have sent it; ``step`` is a local step, counted over the whole run."""
    content = RecordDict({order.arrays_key: ArrayRecord(arrays)})
    config = message.content.config_records.get(order.config_key, ConfigRecord())
    content[order.config_key] = config if step is None else ConfigRecord({**config, LOCAL_STEP: step})
    return make_message(message.metadata, content)


def _gradient(answer: Message, order: Order, method: Method, layout: Layout, point: Tensor) -> Tensor:
    """[D] what the train function returned: a gradient, or new weights and so the difference to those it was given."""
    gradients, returned = _arrays(answer, GRADIENT), _arrays(answer, order.arrays_key)
    if gradients is not None:
        gradient = layout.flatten(gradients, "the gradient")
    elif returned is None:
        raise GradsiftError(f"the train function returned neither {order.arrays_key!r} nor {GRADIENT!r}")
    elif method.local.computations > 1:
        raise GradsiftError(
            f"the train function returned new weights, so it takes local steps of its own; {method.local!r} needs"
            f" one that returns {GRADIENT!r}"
        )
    else:
        if order.lr != 1 and method.local.period(layout.dim, order.k) > 1:
            raise GradsiftError(f"{method.local.name!r} of new weights needs a server rate of 1, got {order.lr}")
        # Against what the function was given: parameters of half precision were rounded on the way.
        gradient = layout.flatten(layout.unflatten(point)) - layout.flatten(returned, "the returned weights")
    check_tensors.finite("the gradient", gradient)
    return gradient


def _moved(rest: Named, returned: Named, order: Order) -> Named:
    """The entries that training changed, which are no trainable parameters; all must be there, or it cannot be told."""
    missing = sorted(rest.keys() - returned.keys())
    if missing:
        raise GradsiftError(f"the train function did not return {', '.join(missing)} in {order.arrays_key!r}")
    moved = {n: v for n, v in returned.items() if n not in rest or not torch.equal(v, rest[n])}
    if moved and order.buffers == "refuse":
        raise GradsiftError(
            f"{', '.join(sorted(moved))} changed in training, and are not trainable parameters of the server's model;"
            " SparseStrategy(buffers='average') averages them"
        )
    return moved


def _over_steps(answers: Sequence[Mapping[str, MetricRecord]]) -> dict[str, MetricRecord]:
    """The metrics of the last local step; where all steps have a fraction, such as a loss, their mean."""
    last = {name: MetricRecord(dict(record)) for answer in answers for name, record in answer.items()}
    for name, record in last.items():
        for metric in list(record):
            values = [answer[name][metric] for answer in answers if metric in answer.get(name, ())]
            fractions = [value for value in values if isinstance(value, float)]
            if len(fractions) == len(answers):
                record[metric] = sum(fractions) / len(fractions)
    return last


def _arrays(message: Message, key: str) -> Named | None:
    record = message.content.array_records.get(key)
    return None if record is None else dict(record.to_torch_state_dict())


def _reply(
    message: Message, report: Report, metrics: dict[str, MetricRecord] | None = None, moved: Named | None = None
) -> Message:
    content = RecordDict({RECORD: write(report)})
    for name, record in (metrics or {}).items():
        content[name] = record
    if moved:
        content[BUFFERS] = ArrayRecord(moved)
    return Message(content, reply_to=message)


def _answered(state: ClientState, order: Order) -> bool:
    return bool(state.report) and (state.session, state.uploaded) == (order.session, order.number)


def _again(message: Message, state: ClientState) -> Message:
    """The answer to an order that was followed already."""
    parts = json.loads(state.report)
    metrics = {name: MetricRecord(values) for name, values in parts.pop("metrics").items()}
    report = Report(**{**parts, "upload": state.upload, "losses": tuple(parts["losses"])})
    return _reply(message, report, metrics, state.moved)
