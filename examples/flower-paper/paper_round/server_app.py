"""The server: fair sparse rounds, with a k that is learned from what they cost."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from gradsift import NormalizedTime
from gradsift.flower import SparseStrategy
from paper_round.task import LOSS, digits, network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run as configured; what came of it is printed, and kept in the run folder ``out``."""
    config = context.run_config
    model = network(context)
    strategy = SparseStrategy(
        model,
        sparsifier=str(config["sparsifier"]),
        controller=str(config["controller"]),
        k=float(config["k"]) or None,
        cost=NormalizedTime(comm_time=float(config["comm-time"])),
        lr=float(config["learning-rate"]),
        seed=int(config["seed"]),
        exchanges=int(config["exchanges"]),
        out=str(config["out"]) or None,
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=0,
        min_available_nodes=int(config["min-available-nodes"]),
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del server_round
        data = digits(20)
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            outputs = model.float()(data.test_x)
        right = float((outputs.argmax(dim=1) == data.test_y).double().mean())
        return MetricRecord({"loss": float(LOSS(outputs, data.test_y)), "accuracy": right})

    result = strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    for record in strategy.records:
        print(json.dumps(record))
    if config["out"]:
        torch.save(result.arrays.to_torch_state_dict(), Path(str(config["out"])) / "model.pt")
