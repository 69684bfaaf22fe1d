"""What gradsift saves on a real Flower deployment: bytes on the links and time a round, against Flower's FedAvg.

    python -m benchmarks.flower

Four SuperNodes and a SuperLink on this machine, with TLS and keys. The app is examples/flower-quickstart: as it is,
with k fixed at 1 % of the weights, and without gradsift's lines, which leaves Flower's own template with FedAvg. Once
with its own model, once with the CNN of the paper. All run on one deployment, in turn. Prints the tables of
docs/results/flower.md; a round takes some 20 seconds, so it takes half an hour.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from scripts.deploy.deployment import CONNECTION, Deployment, DeploymentError
from scripts.deploy.following import Log, Round
from scripts.deploy.meter import Count, Meter

ROOT = Path(__file__).resolve().parents[1]
NODES = 4
MODELS = {"small": 4_810, "cnn": 444_062}
METHODS = ("fedavg", "fixed", "adaptive")
CNN = """

from gradsift.models import paper_cnn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = paper_cnn(62, 1, 28)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(functional.interpolate(x.reshape(-1, 1, 8, 8), size=(28, 28)))
        return logits
"""


class Exchange(NamedTuple):
    """One message to every client and back, by the client that answered last: seconds."""

    wait: float  # from the server's call to the start of the client's process
    start: float  # of that process, until Flower calls the app
    app: float  # inside the app
    back: float  # from its answer to the server's
    strategy: float  # from there to the next call

    @property
    def total(self) -> float:
        return sum(self)


class Result(NamedTuple):
    exchanges: list[Exchange]
    links: list[Count]  # of each exchange
    rounds: list[Round]  # empty for FedAvg


def variant(folder: Path, method: str, model: str) -> Path:
    """A copy of the quickstart, changed in lines that it marks as gradsift's."""
    app = folder / f"{method}-{model}"
    shutil.copytree(ROOT / "examples" / "flower-quickstart", app, ignore=shutil.ignore_patterns("__pycache__"))
    server, client, task = (app / "quickstart" / name for name in ("server_app.py", "client_app.py", "task.py"))
    if method == "fedavg":
        _edit(server, "from gradsift.flower import", "from flwr.serverapp.strategy import FedAvg")
        _edit(server, "strategy = SparseStrategy(", "    strategy = FedAvg(")
        _edit(server, "model,  # gradsift")
        _edit(client, "app = ClientApp(mods=", "app = ClientApp()")
        client.write_text(re.sub(r".*  # gradsift\n", "", client.read_text()))
    elif method == "fixed":
        _edit(server, "model,  # gradsift", '        model, controller="fixed",')
    if model == "cnn":
        task.write_text(task.read_text() + CNN)
    for path in (server, client):
        path.write_text(path.read_text() + "\nimport flower_trace  # noqa\n")
    return app


def _edit(path: Path, start: str, *new: str) -> None:
    """Other lines in the place of the only one that starts so."""
    lines = path.read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.strip().startswith(start)]
    path.write_text("\n".join([*lines[:at], *new, *lines[at + 1 :]]) + "\n")


def measure(deployment: Deployment, meter: Meter, app: Path, rounds: int) -> Result:
    """Run the app, and take apart what happened."""
    trace = deployment.folder / "trace.jsonl"
    trace.write_text("")
    log = Log(deployment.folder / "logs" / f"{app.name}-{time.time():.0f}.log")
    config = f"num-server-rounds={rounds} fraction-train=1.0 fraction-evaluate=0.0"
    run = deployment.processes.start(["flwr", "run", str(app), CONNECTION, "--stream", "-c", config], log.path)
    counted = [(time.time(), meter.read())]
    while run.poll() is None:
        time.sleep(0.05)
        counted.append((time.time(), meter.read()))
    said = list(log.new())
    if deployment.status(log.run_id) != "finished:completed":
        raise DeploymentError(log.tail())
    calls = [json.loads(line) for line in trace.read_text().splitlines()]
    servers = sorted((call for call in calls if call["who"] == "server"), key=lambda call: call["begin"])
    clients = [call for call in calls if call["who"] == "client"]
    # A strategy also calls with no messages, to evaluate nowhere.
    servers = [each for each in servers if _answered(each, clients)]
    exchanges, links = [], []
    for call, following in zip(servers, [*servers[1:], None], strict=True):
        last = max(_answered(call, clients), key=lambda client: client["end"])
        after = 0.0 if following is None else following["begin"] - call["end"]
        exchanges.append(
            Exchange(
                last["process"] - call["begin"],
                last["begin"] - last["process"],
                last["end"] - last["begin"],
                call["end"] - last["end"],
                after,
            )
        )
        until = call["end"] if following is None else following["begin"]
        first, end = (next(count for at, count in counted if at >= moment) for moment in (call["begin"], until))
        links.append(Count(end.up - first.up, end.down - first.down))
    return Result(exchanges, links, [each for each in said if isinstance(each, Round)])


def _answered(call: dict[str, float], clients: list[dict[str, float]]) -> list[dict[str, float]]:
    return [client for client in clients if call["begin"] <= client["begin"] and client["end"] <= call["end"]]


def report(results: dict[tuple[str, str], list[Result]]) -> None:
    """Both tables, and the k that was learned."""
    print("\n| model | method | up, bytes | down, bytes | links up | links down | of FedAvg |\n" + "| --- " * 7 + "|")
    dense = 0.0
    for (model, method), runs in results.items():
        # Without the first exchanges: a hello, and the weights for those who have none, are once a run.
        links = [count for run in runs for count in run.links[1 if method == "fedavg" else 2 :]]
        up, down = (statistics.mean(count[way] for count in links) / NODES for way in (0, 1))
        sent = received = 4.0 * MODELS[model]
        if method == "fedavg":
            dense = up + down
        else:
            done = [each.record for run in runs for each in run.rounds[1:]]
            sent, received = (statistics.mean(each[f"{way}-bytes"] for each in done) / NODES for way in ("up", "down"))
        numbers = " | ".join(f"{each:,.0f}" for each in (sent, received, up, down))
        print(f"| {model} | {method} | {numbers} | {(up + down) / dense:.3f} |")
    print("\n| model | method | wait | start | app | back | strategy | seconds |\n" + "| --- " * 8 + "|")
    for (model, method), runs in results.items():
        parts = [each for run in runs for each in run.exchanges[1:-1]]
        columns = [statistics.median(each[part] for each in parts) for part in range(5)]
        total = statistics.median(each.total for each in parts)
        print(f"| {model} | {method} | {' | '.join(f'{each:.2f}' for each in columns)} | {total:.2f} |")
    print()
    for (model, method), runs in results.items():
        if method == "adaptive":
            print(f"k of {model}:", "; ".join(str([int(each.record["used-k"]) for each in run.rounds]) for run in runs))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flower", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adaptive-rounds", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    results: dict[tuple[str, str], list[Result]] = {}
    with tempfile.TemporaryDirectory(prefix="gradsift-bench-") as name:
        folder = Path(name)
        path = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
        settings = {"PYTHONPATH": path, "GRADSIFT_TRACE": str(folder / "trace.jsonl")}
        deployment = Deployment(folder, NODES, settings=settings)
        with Meter(deployment.port) as meter:
            deployment.nodes_address = f"127.0.0.1:{meter.port}"
            with deployment:
                before = meter.read()
                time.sleep(30)
                idle = (sum(meter.read()) - sum(before)) / 30 / NODES
                print(f"an idle node: {idle:.0f} bytes a second on its link", flush=True)
                apps = {
                    (model, method): variant(folder, method, model) for model in options.models for method in METHODS
                }
                for repeat in range(options.repeat):
                    for which, app in apps.items():
                        rounds = options.adaptive_rounds if which[1] == "adaptive" else options.rounds
                        result = measure(deployment, meter, app, rounds)
                        results.setdefault(which, []).append(result)
                        seconds = statistics.median(each.total for each in result.exchanges)
                        print(f"{repeat + 1}/{options.repeat} {which}: {seconds:.1f} s an exchange", flush=True)
    report(results)


if __name__ == "__main__":
    main()
