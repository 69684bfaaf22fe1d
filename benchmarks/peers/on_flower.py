"""Flower's simulation: its FedAvg strategy and Ray, one actor a core."""

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.common import KEPT

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_HOME=str(KEPT / "flower"),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)
Path(os.environ["FLWR_HOME"]).mkdir(parents=True, exist_ok=True)

import ray  # noqa: E402
from flwr.app import ArrayRecord, Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from benchmarks.peers.flower_client import app as client_app  # noqa: E402
from benchmarks.peers.meter import Meter  # noqa: E402
from benchmarks.peers.workload import flat, torch_net  # noqa: E402


class Ticking(FedAvg):
    """FedAvg without evaluation, which comes at the end of a round."""

    meter: Meter

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, *rest: Any) -> list[Any]:
        del server_round, rest
        self.meter.tick(lambda: flat(arrays.to_torch_state_dict().values()))
        return []


def main(clients: int) -> None:
    meter, server = Meter(), ServerApp()
    meter.at_end = ray.shutdown
    logging.getLogger("flwr").setLevel(logging.ERROR)

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        del context
        net = torch_net()
        strategy = Ticking(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        strategy.meter = meter
        meter.ready("flwr", "ray", "torch", "numpy", weights=lambda: flat(net.parameters()))
        strategy.start(grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=10**9)

    started = {"num_cpus": meter.threads, "object_store_memory": 2**30, "log_to_driver": False}
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    try:
        run_simulation(
            server, client_app, clients, backend_config={"client_resources": resources, "init_args": started}
        )
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # the thread of the ServerApp would wait for ever


if __name__ == "__main__":
    main(int(sys.argv[1]))
