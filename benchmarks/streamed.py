"""Residuals in the host's memory against residuals on the GPU: the same run again, with the device filled.

    python -m benchmarks.streamed --device cuda [--clients 600] [--leave 1.5] [--json .bench/streamed.json]

The last run finds only ``--leave`` GiB free, too little for its residuals, and streams them by chunks of clients. The
two before it have them on the device, with all clients at once and by the same chunks; with the latter it must share
the k of every round and, up to rounding, the weights.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import gradsift
from benchmarks.common import KEPT, adaptive, today, write_json
from benchmarks.round import plain_cnn, random_data
from gradsift.simulation.engine import Engine
from gradsift.simulation.memory import free_bytes
from gradsift.simulation.schedule import Constant
from gradsift.simulation.settings import Settings

CHUNK = 16  # clients at a time
WARM_UP = 2


def run(
    data: gradsift.FederatedData, k: int, rounds: int, device: torch.device, chunk: int | None = CHUNK
) -> dict[str, Any]:
    """Whole adaptive rounds one after another; seconds a round after the warm-up, every k, the last weights."""
    model = plain_cnn()
    dim = sum(parameter.numel() for parameter in model.parameters())
    parts = (gradsift.sparsifier("fab-top-k"), adaptive(k, dim), gradsift.NormalizedTime(comm_time=10), Constant(0.01))
    settings = Settings(batch_size=32, clients_per_chunk=chunk)
    engine = Engine(
        model, torch.nn.functional.cross_entropy, data, *parts, settings, device=device, dtype=torch.float32
    )
    ks = [engine.step()["used_k"] for _ in range(WARM_UP)]
    began = time.perf_counter()
    ks += [engine.step()["used_k"] for _ in range(rounds)]
    seconds = (time.perf_counter() - began) / rounds
    where = engine.state.residual.device.type
    return {"residuals": where, "seconds": seconds, "k": ks, "weights": engine.state.weights.cpu()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clients", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--k", type=int, default=1000)
    parser.add_argument("--leave", type=float, default=1.5, help="GiB free in the last run")
    parser.add_argument("--json", type=Path, default=KEPT / "streamed.json")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type != "cuda":
        parser.error("--device: residuals stream between a GPU and its host; on the CPU there is nothing to compare")
    data = random_data(given.clients, each=32)
    at_once = run(data, given.k, given.rounds, device, chunk=None)
    resident = run(data, given.k, given.rounds, device)
    torch.cuda.empty_cache()
    filler = torch.empty(int(free_bytes(device) - given.leave * 2**30), dtype=torch.uint8, device=device)
    streamed = run(data, given.k, given.rounds, device)
    if streamed["residuals"] != "cpu":
        parser.error(f"--leave {given.leave}: the residuals still fit on the device")
    moved = float((resident["weights"] - streamed["weights"]).abs().max())
    same = resident["k"] == streamed["k"]
    del filler
    record = {"date": today(), "machine": torch.cuda.get_device_name(device), "torch": torch.__version__}
    record |= {"clients": given.clients, "leave_gib": given.leave, "same_k": same, "largest_difference": moved}
    for name, made in (("at once", at_once), ("resident", resident), ("streamed", streamed)):
        record[name] = {"residuals": made["residuals"], "seconds": made["seconds"], "k": made["k"]}
        print(f"{name}: residuals on {made['residuals']}, {1e3 * made['seconds']:.1f} ms a round")
    print(f"the same k in every round: {same}; largest difference between the weights: {moved:.2g}")
    write_json(given.json, record)


if __name__ == "__main__":
    main()
