"""The client's side on Flower: a mod around an ordinary train function.

An order updates the client's weights, says which elements of its last upload were kept, and asks it to train. The train
function receives full weights and returns full weights. The mod takes their difference as the gradient, adds it to the
residual and uploads the elements that the sparsifier chooses.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log
from torch import Tensor

from gradsift import check, check_tensors, contract, round, weighing
from gradsift.errors import GradsiftError
from gradsift.flower.client_state import ClientState, Store
from gradsift.flower.layout import Layout, Named
from gradsift.flower.protocol import BUFFERS, FULL, GRADIENT, NEVER, RECORD, Order, Report, checksum, read, write
from gradsift.flower.sync import Behind, Followed, replaced, sync
from gradsift.method import Method
from gradsift.wire import Limits, decode

LOCAL_STEP = "local-step"  # in the configuration of a train function that is called for each local step

Metrics = dict[str, MetricRecord]


class Probe(NamedTuple):
    """What a client needs to report losses: a loss function, and the samples of a round to apply it to."""

    loss: Callable[[Named, Any], float]  # (state_dict, batch) -> the mean loss over the batch, without training
    batch: Callable[[Context, int], Any]  # (context, number) -> a batch; the number is that of the round's first step


class SparseMod:
    """``ClientApp(mods=[SparseMod()])``: upload what a sparsifier chooses of the changes that a train function made.

    With ``probe`` the client reports losses to a controller that learns from them. With ``state_folder``, or
    "state-folder" in the node's configuration, which takes precedence, its state is a file there and outlives the run;
    otherwise it is in Flower's context while it fits. The names of the records are those of the strategy.
    """

    def __init__(self, probe: Probe | None = None, *, state_folder: str | Path | None = None) -> None:
        if probe is not None and not (isinstance(probe, Probe) and callable(probe.loss) and callable(probe.batch)):
            raise GradsiftError(f"probe must be a Probe of two functions, got {probe!r:.80}")
        self.probe = probe
        self.folder = None if state_folder is None else check.path("state_folder", state_folder)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Follow an order; a message without one, of another strategy, is passed on unchanged."""
        if RECORD not in message.content:
            return call_next(message, context)
        order, client = read(Order, message.content[RECORD]), client_id(context)
        folder = context.node_config.get("state-folder", self.folder)
        store = Store(context, order.experiment, client, None if folder is None else check.path("state-folder", folder))
        state = store.load()
        if order.act == "hello":
            if self.probe is None:
                log(
                    INFO, "gradsift: client %s has no probe, which only controllers that learn from losses need", client
                )
            return _reply(message, self._report(order, client, state))
        this = (order.act, order.session, order.number)
        if state is not None and state.report and this == ("train", state.session, state.uploaded):
            return _repeated_reply(message, order, state)
        version = None if state is None else state.version
        try:
            synced = sync(state, order, _arrays(message, FULL), _arrays(message, BUFFERS) or {})
        except Behind as problem:
            log(WARNING, "gradsift: round %s: client %s: %s", order.number, client, problem)
            report = self._report(order, client, None)
            return _reply(message, replace(report, behind=True, version=problem.version))
        state, followed, reset = synced
        if reset:
            log(WARNING, "gradsift: round %s: client %s discarded its residual: %s", order.number, client, reset)
        losses = self._losses(order, state, followed.before, context)
        if order.weigh and version != state.version:  # an order to evaluate may have taken the step already
            state = replace(state, left=_left(order, state.residual, followed))
        report = replace(self._report(order, client, state), losses=losses, left=state.left, reset=bool(reset))

        def call(arrays: Named, step: int | None = None) -> Message:
            return call_next(_ordinary(message, order, arrays, step), context)

        if order.act == "train":
            state, report, metrics = _train(order, state, report, call)
            store.save(state)
            return _reply(message, report, metrics, _sent_buffers(order, state))
        store.save(state)
        if order.act == "probe":
            return _reply(message, report)
        answer = call(state.layout.unflatten(state.weights) | state.non_trainable)
        return answer if answer.has_error() else _reply(message, report, dict(answer.content.metric_records))

    def _losses(self, order: Order, state: ClientState, before: Tensor | None, context: Context) -> tuple[float, ...]:
        """(C) of Fig. 3: the losses before the round, after it and at k', on one batch; () if unavailable."""
        if not order.losses or self.probe is None or before is None:
            return ()
        points = [before, state.weights]
        if order.probe:
            points.append(replaced(state.weights, decode(order.probe, Limits.of(state.layout.dim))))
        batch = self.probe.batch(context, order.steps_before + 1)
        state_dicts = (state.layout.unflatten(point) | state.non_trainable for point in points)
        losses = tuple(float(self.probe.loss(state_dict, batch)) for state_dict in state_dicts)
        if not all(map(math.isfinite, losses)):
            log(WARNING, "gradsift: round %s: the losses %s are not finite: not reported", order.number, list(losses))
            return ()
        return losses

    def _report(self, order: Order, client: str, state: ClientState | None) -> Report:
        return Report(
            client=client,
            session=order.session,
            number=order.number,
            version=NEVER if state is None else state.version,
            checksum=0 if state is None else checksum(state.weights, state.memory),
            settled=NEVER if state is None else state.last_settled,
            can_probe=self.probe is not None,
        )


def client_id(context: Context) -> str:
    """The client's number: the partition-id of its node, or the node's id if it has none."""
    return str(context.node_config.get("partition-id", context.node_id))


def _ordinary(message: Message, order: Order, arrays: Named, step: int | None = None) -> Message:
    """The message that a dense strategy would have sent; ``step`` is a local step, counted over all rounds."""
    content = RecordDict({order.arrays_key: ArrayRecord(arrays)})
    config = message.content.config_records.get(order.config_key, ConfigRecord())
    content[order.config_key] = config if step is None else ConfigRecord({**config, LOCAL_STEP: step})
    return make_message(message.metadata, content)


def _train(
    order: Order, state: ClientState, report: Report, call: Callable[[Named, int | None], Message]
) -> tuple[ClientState, Report, Metrics]:
    """(A) and step 1 of Fig. 3: train, accumulate, choose what to upload."""
    method, layout = order.method(), state.layout
    plan = order.plan(method)
    plan.rnd.validate(layout.dim)
    non_trainable, answers = state.non_trainable | state.local_buffers, list[Metrics]()

    def add_gradients(total: Tensor, point: Tensor, step: int) -> None:
        number = order.steps_before + 1 + step if plan.steps > 1 else None
        answer = call(layout.unflatten(point) | non_trainable, number)
        if answer.has_error():
            raise GradsiftError(f"the train function failed: {answer.error.reason}")
        total += _gradient(answer, order, method, layout, point)
        returned = layout.non_trainable(_arrays(answer, order.arrays_key) or {})
        non_trainable.update(_changed(non_trainable, returned, order))
        answers.append(dict(answer.content.metric_records))

    residual = state.residual.clone()
    method.local.accumulate(residual, state.weights, order.lr, add_gradients)
    contract.check_count(method, len(answers))
    check_tensors.finite("the residual", residual)
    mass = float(weighing.residual_mass(residual)) if order.weigh else 0.0
    report = replace(report, upload=round.encoded_contribution(method, plan, residual), mass=mass)
    metrics = _over_steps(answers)
    to_repeat = vars(report) | {"upload": None, "metrics": {name: dict(record) for name, record in metrics.items()}}
    state = replace(
        state,
        residual=residual,
        uploaded=order.number,
        upload=report.upload,
        session=order.session,
        sessions=" ".join(dict.fromkeys([*state.sessions.split(), order.session])),
        report=json.dumps(to_repeat),
        local_buffers={n: v for n, v in non_trainable.items() if v is not state.non_trainable.get(n)},
    )
    return state, report, metrics


def _left(order: Order, residual: Tensor, followed: Followed) -> tuple[float, ...]:
    """The product of the settled residual with the last update or, if weights are sent, with the last step.

    Returns () if the client does not know it.
    """
    if order.updates and followed.change is not None:
        return (float(weighing.left_over(residual, followed.change)),)
    return () if followed.before is None else (float(residual @ (followed.before - followed.weights)),)


def _gradient(answer: Message, order: Order, method: Method, layout: Layout, point: Tensor) -> Tensor:
    """[D] the gradient that a train function returned, or ``point`` minus the new weights that it returned."""
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
            raise GradsiftError(f"{method.local.name!r} with returned weights needs lr=1, got {order.lr}")
        # The function was given the rounded values of parameters of half precision.
        gradient = layout.flatten(layout.unflatten(point)) - layout.flatten(returned, "the returned weights")
    check_tensors.finite("the gradient", gradient)
    return gradient


def _changed(non_trainable: Named, returned: Named, order: Order) -> Named:
    """The non-trainable entries that training changed; the train function must return all of them."""
    missing = sorted(non_trainable.keys() - returned.keys())
    if missing:
        raise GradsiftError(f"the train function did not return {', '.join(missing)} in {order.arrays_key!r}")
    changed = {n: v for n, v in returned.items() if n not in non_trainable or not torch.equal(v, non_trainable[n])}
    if changed and order.buffers == "refuse":
        raise GradsiftError(
            f"{', '.join(sorted(changed))} changed in training, and are not trainable parameters of the server's model;"
            " SparseStrategy(buffers='average') averages them"
        )
    return changed


def _over_steps(answers: Sequence[Metrics]) -> Metrics:
    """The metrics of the last local step; a metric that is a float in all steps, such as a loss, is averaged."""
    last = {name: MetricRecord(dict(record)) for answer in answers for name, record in answer.items()}
    for name, record in last.items():
        for metric in list(record):
            values: list[Any] = [answer.get(name, MetricRecord()).get(metric) for answer in answers]
            if all(isinstance(value, float) for value in values):
                record[metric] = sum(values) / len(values)
    return last


def _arrays(message: Message, key: str) -> Named | None:
    record = message.content.array_records.get(key)
    return None if record is None else dict(record.to_torch_state_dict())


def _reply(
    message: Message, report: Report, metrics: Mapping[str, MetricRecord] | None = None, buffers: Named | None = None
) -> Message:
    content = RecordDict({RECORD: write(report), **(metrics or {})})
    if buffers:
        content[BUFFERS] = ArrayRecord(buffers)
    return Message(content, reply_to=message)


def _sent_buffers(order: Order, state: ClientState) -> Named:
    """The buffers that go with an upload: between two exchanges the client keeps its own."""
    return state.local_buffers if order.exchange else {}


def _repeated_reply(message: Message, order: Order, state: ClientState) -> Message:
    """The reply to an order that the client has followed already."""
    report = json.loads(state.report) | {"upload": state.upload}
    metrics = {name: MetricRecord(values) for name, values in report.pop("metrics").items()}
    report |= {name: tuple(report[name]) for name in ("losses", "left")}
    return _reply(message, Report(**report), metrics, _sent_buffers(order, state))
