"""One adaptive round of the simulator against one plain forward and backward pass over the same samples.

    python benchmarks/round.py                     20 clients on the CPU: also against the plain loop over the clients
    python benchmarks/round.py --device cuda --clients 156

Everything is measured in one process, interleaved, on the same model; the table gives medians and ratios. The
controller below proposes a given k with a probe at k/2 and learns like any other, so every part of an adaptive round
is there: gradients, residuals, top-k, fair merge, probe, settle, three losses, metrics.
"""

import argparse
import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gradsift
from gradsift.control import Controller, Observation, Proposal
from gradsift.models.paper_cnn import paper_cnn
from gradsift.simulation.engine import Engine
from gradsift.simulation.schedule import Constant
from gradsift.simulation.settings import Settings

QUEUED = 10


class Pinned(Controller[dict[str, float]]):
    """k as told, with a probe at k/2, every round."""

    name = "pinned"
    probes = True

    def __init__(self, k: int) -> None:
        self.k = k

    def start(self, dim: int, seed: int) -> dict[str, float]:
        del dim, seed
        return {"seen": 0}

    def suggest(self, state: dict[str, float], number: int) -> Proposal:
        del state
        return Proposal(number, float(self.k), max(1.0, self.k / 2))

    def learn(self, state: dict[str, float], seen: Observation) -> dict[str, float]:
        del seen
        return {"seen": state["seen"] + 1}


def plain_cnn(seed: int = 0) -> nn.Module:
    """The paper's CNN without local response normalisation: what peers' benchmarks run."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 256), nn.ReLU(), nn.Linear(256, 62)),
    )


def random_data(clients: int, each: int = 200, shape: tuple[int, ...] = (1, 28, 28)) -> gradsift.FederatedData:
    """FEMNIST's shape, or another; random pixels: what is in them does not change the time."""
    source = np.random.default_rng(0)
    x = source.random((clients * each, *shape), dtype=np.float32)
    y = source.integers(0, 62 if shape[0] == 1 else 10, clients * each)
    return gradsift.FederatedData.from_arrays(x, y, np.repeat(np.arange(clients), each), name="random")


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain-cnn": (plain_cnn, (1, 28, 28)),
    "paper-cnn": (lambda: paper_cnn(62, 1, 28), (1, 28, 28)),
    "cifar-cnn": (lambda: paper_cnn(10, 3, 32), (3, 32, 32)),
}


def timed(work: Callable[[], Any], cuda: bool, times: int) -> float:
    """Seconds each; on CUDA several are queued before waiting, as in a run, the plain pass and our round alike."""
    if cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", choices=tuple(MODELS), default="plain-cnn")
    parser.add_argument("--k", type=int, nargs="*", default=None)
    parser.add_argument("--profile", type=Path, help="write a table of CUDA/CPU operators of one round here")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device, cuda = torch.device(given.device), given.device.startswith("cuda")
    make, shape = MODELS[given.model]
    model = make()
    loss = nn.functional.cross_entropy
    data = random_data(given.clients, shape=shape)
    dim = sum(p.numel() for p in model.parameters())
    ks = given.k or [1000, 10_000, dim // 2, dim]

    baseline = make().to(device)
    xs = data.x.view(given.clients, -1, *shape)[:, : given.batch].to(device)
    ys = data.y.view(given.clients, -1)[:, : given.batch].to(device)
    all_x, all_y = xs.flatten(0, 1).contiguous(), ys.flatten().contiguous()

    def batched() -> None:
        baseline.zero_grad(set_to_none=True)
        loss(baseline(all_x), all_y).backward()

    def loop() -> None:
        total = None
        for x, y in zip(xs, ys, strict=True):
            baseline.zero_grad(set_to_none=True)
            loss(baseline(x), y).backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in baseline.parameters() if p.grad is not None])
            total = gradient if total is None else total + gradient

    works: dict[str, Callable[[], Any]] = {"plain batched pass": batched, "plain loop over clients": loop}
    cost, lr = gradsift.NormalizedTime(comm_time=10), Constant(0.01)

    def engine(sparsifier: str, controller: Controller[Any]) -> Engine:
        settings = Settings(batch_size=given.batch)
        made = gradsift.sparsifier(sparsifier)
        return Engine(model, loss, data, made, controller, cost, lr, settings, device=device, dtype=torch.float32)

    engines = {k: engine("fab-top-k", Pinned(k)) for k in ks}
    works |= {f"round, k = {k}": made.begin for k, made in engines.items()}
    # FedAvg inside a period: each client takes its gradient at weights of its own, and nothing is sent.
    works["gradients only (FedAvg)"] = engine("fedavg", gradsift.controller("fixed", k=1)).begin
    works["send-all round"] = engine("send-all", gradsift.controller("fixed", k=1)).begin
    times: dict[str, list[float]] = {name: [] for name in works}
    at_once = {name: QUEUED if cuda and work is not loop else 1 for name, work in works.items()}  # the loop is long
    for name, work in works.items():
        for _ in range(3):
            timed(work, cuda, at_once[name])
    for _ in range(given.rounds):
        for name, work in works.items():
            times[name].append(timed(work, cuda, at_once[name]))
    median = {name: statistics.median(values) for name, values in times.items()}
    peaks = {}
    if cuda:
        for name, work in works.items():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            timed(work, cuda, at_once[name])
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
    where = (
        torch.cuda.get_device_name()
        if cuda
        else f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        f"{where}; torch {torch.__version__}; {given.model}, D = {dim}, {given.clients} clients x {given.batch} samples"
    )
    print(f"{'':28} {'median ms':>10} {'min':>9} {'x batched':>10} {'x loop':>8} {'peak MiB':>9}")
    for name in works:
        ratio, per_loop = (median[name] / median[base] for base in ("plain batched pass", "plain loop over clients"))
        print(
            f"{name:28} {1e3 * median[name]:10.2f} {1e3 * min(times[name]):9.2f} {ratio:10.2f} {per_loop:8.2f}"
            f" {peaks.get(name, float('nan')):9.0f}"
        )
    if given.json:
        about = {"where": where, "torch": torch.__version__, "date": datetime.date.today().isoformat()}
        about |= {"model": given.model, "dim": dim, "clients": given.clients, "batch": given.batch}
        given.json.write_text(json.dumps({**about, "times": times, "peaks": peaks}, indent=1))
    if given.profile:
        activities = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if cuda else [])
        text = []
        for k, made in engines.items():
            with torch.profiler.profile(activities=activities) as profile:
                for _ in range(3):
                    made.begin()
                made.finish()
            key = "self_cuda_time_total" if cuda else "self_cpu_time_total"
            text.append(f"k = {k}\n{profile.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=70)}")
        given.profile.write_text("\n".join(text))


if __name__ == "__main__":
    main()
