"""The paper's own client as a ClientApp: one minibatch gradient a round, and the three losses on samples of it.

Every draw is that of the simulator, keyed by (seed, purpose, client, round): on the same data both take the same steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from gradsift.errors import GradsiftError
from gradsift.flower.layout import Named
from gradsift.flower.mod import LOCAL_STEP, Probe, SparseMod, client_id
from gradsift.flower.protocol import GRADIENT
from gradsift.sampling import minibatch, probe_sample

Loss = Callable[[Any, Tensor], Tensor]  # (outputs, targets) -> the mean over the batch


@dataclass(frozen=True)
class GradientTask:
    """One client's part of a run: its model, its loss, its own samples."""

    model: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor
    batch_size: int = 32
    probe_samples: int = 1
    seed: int = 0


def gradient_app(
    task: Callable[[Context], GradientTask], *, probe: bool = True, state_folder: str | Path | None = None
) -> ClientApp:
    """A ClientApp that follows Fig. 3; ``task`` is called for every message that needs it."""
    if not callable(task):
        raise GradsiftError(f"task must be a function of a context, got {task!r:.80}")

    def batch(context: Context, step: int) -> tuple[GradientTask, Tensor, Tensor]:
        own = task(context)
        client = int(client_id(context))
        rows = minibatch(len(own.x), own.batch_size, own.seed, client, step)
        picks = rows[probe_sample(len(rows), own.probe_samples, own.seed, client, step)]
        return own, own.x[picks], own.y[picks]

    def loss(state: Named, sampled: tuple[GradientTask, Tensor, Tensor]) -> float:
        own, x, y = sampled
        own.model.load_state_dict(state)
        own.model.eval()
        with torch.no_grad():
            return float(own.loss(own.model(x), y))

    app = ClientApp(mods=[SparseMod(Probe(loss, batch) if probe else None, state_folder=state_folder)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own, given = task(context), message.content
        ((arrays_key, arrays),), (config,) = given.array_records.items(), given.config_records.values()
        step = int(str(config.get(LOCAL_STEP, config["server-round"])))
        own.model.load_state_dict(arrays.to_torch_state_dict())
        own.model.train()
        own.model.zero_grad()
        rows = torch.from_numpy(minibatch(len(own.x), own.batch_size, own.seed, int(client_id(context)), step))
        value = own.loss(own.model(own.x[rows]), own.y[rows])
        value.backward()  # type: ignore[no-untyped-call]
        named = {n: p for n, p in own.model.named_parameters() if p.requires_grad}
        gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named.items()}
        metrics = MetricRecord({"train-loss": float(value.detach()), "num-examples": len(own.x)})
        rest = {n: v for n, v in own.model.state_dict().items() if n not in gradient}  # buffers that the pass moved
        content = RecordDict({GRADIENT: ArrayRecord(gradient), "metrics": metrics, arrays_key: ArrayRecord(rest)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        own = task(context)
        (arrays,) = message.content.array_records.values()
        own.model.load_state_dict(arrays.to_torch_state_dict())
        own.model.eval()
        with torch.no_grad():
            value = float(own.loss(own.model(own.x), own.y))
        metrics = MetricRecord({"loss": value, "num-examples": len(own.x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
