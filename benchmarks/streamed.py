"""Residuals in the host's memory against residuals on the GPU: the same run again, with the device filled.

    python -m benchmarks.streamed --device cuda [--clients 600] [--leave 1.5] [--json .bench/streamed.json]

The last run finds only ``--leave`` GiB free, too little for its residuals, and streams them by chunks of clients. The
two before it have them on the device, with all clients at once and by the same chunks. All three must use the same k in
every round. The weights of the last two may differ by rounding; those of the first by a small part of their way, since
a convolution of more samples may be another kernel. If they do not agree the command fails, after it has written what
it measured.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

import gradsift
from benchmarks.common import KEPT, about, adaptive, write_json
from benchmarks.round import plain_cnn, random_data
from gradsift.method import Method
from gradsift.simulation.engine import Engine
from gradsift.simulation.memory import free_bytes
from gradsift.simulation.settings import Settings

CHUNK = 16  # clients at a time
WARM_UP = 2
BASE = "resident"
ALLOWED = {"at once": 0.01, "streamed": 1e-6}  # how far from ``BASE`` its weights may be, as a part of their way


def run(
    data: gradsift.FederatedData, k: int, rounds: int, device: torch.device, chunk: int | None = CHUNK
) -> dict[str, Any]:
    """Whole adaptive rounds one after another; seconds a round after the warm-up, every k, the way of the weights."""
    model = plain_cnn()
    dim = sum(parameter.numel() for parameter in model.parameters())
    method, settings = Method.of(controller=adaptive(k, dim)), Settings(batch_size=32, clients_per_chunk=chunk)
    engine = Engine(
        model, torch.nn.functional.cross_entropy, data, method, settings, device=device, dtype=torch.float32
    )
    start = engine.state.server.weights.cpu()
    ks = [engine.step()["used_k"] for _ in range(WARM_UP)]
    began = time.perf_counter()
    ks += [engine.step()["used_k"] for _ in range(rounds)]
    seconds = (time.perf_counter() - began) / rounds
    residual = engine.state.residual
    where, size = residual.device.type, residual.numel() * residual.element_size()
    return {
        "residuals": where,
        "residual_bytes": size,
        "seconds": seconds,
        "k": ks,
        "moved": engine.state.server.weights.cpu() - start,
    }


def disagreement(runs: dict[str, dict[str, Any]]) -> tuple[dict[str, float], list[str]]:
    """How far each one's weights are from ``BASE``'s, as a part of the way those have moved; and what is too far."""
    base, apart, wrong = runs[BASE], {}, []
    for name, allowed in ALLOWED.items():
        apart[name] = float((runs[name]["moved"] - base["moved"]).norm() / base["moved"].norm())
        if runs[name]["k"] != base["k"]:
            wrong.append(f"{name}: k {runs[name]['k']}, {BASE}: {base['k']}")
        if not apart[name] <= allowed:
            wrong.append(f"{name}: its weights are {apart[name]:.2g} of the way from those of {BASE}")
    return apart, wrong


def main() -> int:
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
    runs = {"at once": run(data, given.k, given.rounds, device, chunk=None)}
    runs[BASE] = run(data, given.k, given.rounds, device)
    torch.cuda.empty_cache()
    filler = torch.empty(int(free_bytes(device) - given.leave * 2**30), dtype=torch.uint8, device=device)
    runs["streamed"] = run(data, given.k, given.rounds, device)
    del filler
    if runs["streamed"]["residuals"] != "cpu":
        parser.error(f"--leave {given.leave}: the residuals still fit on the device")
    apart, wrong = disagreement(runs)
    record = {
        **about("benchmarks.streamed", device),
        "repeats": given.rounds,
        "clients": given.clients,
        "chunk": CHUNK,
        "leave_gib": given.leave,
        "residual_bytes": runs[BASE]["residual_bytes"],
        "apart": apart,
        "wrong": wrong,
        "runs": {name: {key: made[key] for key in ("residuals", "seconds", "k")} for name, made in runs.items()},
    }
    write_json(given.json, record)
    for name, made in runs.items():
        print(f"{name}: residuals on {made['residuals']}, {1e3 * made['seconds']:.1f} ms a round")
    print(f"weights apart, as a part of their way: {', '.join(f'{name} {part:.2g}' for name, part in apart.items())}")
    print("\n".join(wrong) if wrong else "the same k in every round")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
