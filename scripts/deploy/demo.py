"""The demonstration: the digits, trained with adaptive k over encrypted and counted links."""

import json
import sys
import time
from pathlib import Path

from scripts.deploy.deployment import CONNECTION, Deployment, DeploymentError
from scripts.deploy.following import Log, Round
from scripts.deploy.meter import Count, Meter

APP = Path(__file__).resolve().parents[2] / "examples" / "flower-paper"
HIDDEN = 1024  # wide enough for the weights to outweigh what Flower itself has to say
TIMEOUT = 60.0  # seconds for a round: the answer of a SuperNode that was killed meanwhile never comes
HEAD = f"{'round':>5} {'k':>7} {'clients':>7} {'accuracy':>8} {'up':>9} {'down':>9} {'on the links':>12} {'seconds':>7}"


def demo(folder: Path, nodes: int, rounds: int) -> None:
    """Deploy, train, say what it saved, stop."""
    began = time.monotonic()
    deployment = Deployment(folder, nodes)
    with Meter(deployment.port) as meter:
        deployment.nodes_address = f"127.0.0.1:{meter.port}"
        _say(f"Starting a SuperLink and {nodes} SuperNodes with TLS and registered keys, in {folder}")
        with deployment:
            _say(
                f"They are up after {time.monotonic() - began:.0f} s. Training, some seconds a round; bytes:\n\n{HEAD}"
            )
            log, done = _train(deployment, rounds, meter)
            status = deployment.status(log.run_id) if log.run_id else "not started"
            if status != "finished:completed" or not done:
                raise DeploymentError(f"the run is {status}; its log ends with\n{log.tail()}")
            _say(f"\n{_summary(log.dim, done, meter.read())}")
    _say(f"\nEverything is stopped, after {time.monotonic() - began:.0f} s.")


def _train(deployment: Deployment, rounds: int, meter: Meter) -> tuple[Log, list[Round]]:
    """``flwr run`` to its end, showing every round; a SuperNode that ends is started again."""
    config: dict[str, int | float | str] = {"num-server-rounds": rounds, "hidden": HIDDEN, "timeout": TIMEOUT}
    config["out"] = str(deployment.folder / "run")
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    log, done = Log(deployment.log("run")), list[Round]()
    run = deployment.processes.start(["flwr", "run", str(APP), CONNECTION, "--stream", "-c", words], log.path)
    since, before = time.monotonic(), meter.read()
    ended = False
    while not ended:
        ended = run.poll() is not None  # asked before the log is read, which then holds everything
        for said in log.new():
            if isinstance(said, Round):
                now = meter.read()
                _say(_row(said, sum(now) - sum(before), time.monotonic() - since))
                since, before = time.monotonic(), now
                done.append(said)
            else:
                _say(f"      {said}")
        for news in deployment.tend():
            _say(f"      {news}")
        _wait(f"round {len(done) + 1}, for {time.monotonic() - since:.0f} s")
    return log, done


def _row(done: Round, link_bytes: int, seconds: float) -> str:
    of, accuracy = done.record, done.tested["accuracy"]
    numbers = f"{of['round']:5.0f} {of['used-k']:7,.0f} {of['clients']:7.0f} {accuracy:8.3f}"
    return f"{numbers} {of['up-bytes']:9,.0f} {of['down-bytes']:9,.0f} {link_bytes:12,} {seconds:7.1f}"


def _summary(dim: int, done: list[Round], links: Count) -> str:
    """Against FedAvg with the same clients, each of which receives and sends all weights in every round."""
    up, down = (int(sum(each.record[name] for each in done)) for name in ("up-bytes", "down-bytes"))
    dense = int(sum(each.record["clients"] for each in done)) * dim * 4
    return (
        f"{len(done)} rounds of {dim:,} weights, accuracy {done[-1].tested['accuracy']:.3f}. Bytes of all clients:\n"
        f"  {'':12} {'gradsift':>12} {'dense FedAvg':>12} (computed)\n"
        f"  {'up':12} {up:12,} {dense:12,}   {dense / up:.1f} times less\n"
        f"  {'down':12} {down:12,} {dense:12,}   {dense / down:.1f} times less\n"
        f"  {'on the links':12} {sum(links):12,} counted: with TLS, HTTP, the start of the run, Flower's polling"
    )


def _say(line: str) -> None:
    print(f"\r{line:<78}" if sys.stdout.isatty() else line, flush=True)


def _wait(what: str) -> None:
    """A moment, in which someone who watches sees that something is under way."""
    if sys.stdout.isatty():
        print(f"\r      {what:<72}", end="", flush=True)
    time.sleep(0.2)
