"""The paper's own client as a ClientApp: one minibatch gradient per round, and three losses on some of its samples.

Draws are keyed by (seed, purpose, client, round) as in the simulator: on the same data both take the same steps.
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
    """One client's model, loss and data."""

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

    def probe_batch(context: Context, step: int) -> tuple[GradientTask, Tensor, Tensor]:
        mine, client = task(context), int(client_id(context))
        rows = minibatch(len(mine.x), mine.batch_size, mine.seed, client, step)
        samples = rows[probe_sample(len(rows), mine.probe_samples, mine.seed, client, step)]
        return mine, mine.x[samples], mine.y[samples]

    def loss(state: Named, batch: tuple[GradientTask, Tensor, Tensor]) -> float:
        mine, x, y = batch
        mine.model.load_state_dict(state)
        mine.model.eval()
        with torch.no_grad():
            return float(mine.loss(mine.model(x), y))

    app = ClientApp(mods=[SparseMod(Probe(loss, probe_batch) if probe else None, state_folder=state_folder)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        mine, given = task(context), message.content
        ((arrays_key, arrays),), (config,) = given.array_records.items(), given.config_records.values()
        step = int(str(config.get(LOCAL_STEP, config["server-round"])))
        rows = torch.from_numpy(minibatch(len(mine.x), mine.batch_size, mine.seed, int(client_id(context)), step))
        mine.model.load_state_dict(arrays.to_torch_state_dict())
        mine.model.train()
        mine.model.zero_grad()
        value = mine.loss(mine.model(mine.x[rows]), mine.y[rows])
        value.backward()  # type: ignore[no-untyped-call]
        trainable = {name: p for name, p in mine.model.named_parameters() if p.requires_grad}
        gradient = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trainable.items()}
        metrics = MetricRecord({"train-loss": float(value.detach()), "num-examples": len(mine.x)})
        # The forward pass may have changed buffers.
        others = {name: value for name, value in mine.model.state_dict().items() if name not in gradient}
        content = RecordDict({GRADIENT: ArrayRecord(gradient), "metrics": metrics, arrays_key: ArrayRecord(others)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        mine = task(context)
        (arrays,) = message.content.array_records.values()
        value = loss(dict(arrays.to_torch_state_dict()), (mine, mine.x, mine.y))
        metrics = MetricRecord({"loss": value, "num-examples": len(mine.x)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
