"""What was asked of the speed, and what was measured: one table from several results."""

import statistics
from typing import Any

from benchmarks.common import markdown
from benchmarks.floor import BYTES
from benchmarks.peers import run as peers
from benchmarks.round import FEDAVG, LOOP, PASS, SEND_ALL

SMALL = (1000, 10_000)


def listed(measured: dict[str, float], digits: int = 2) -> str:
    return "; ".join(f"{name}: {value:,.{digits}f}" for name, value in measured.items())


def verdict(limit: float, measured: dict[str, float], digits: int = 2) -> list[str]:
    """The numbers as text, and whether all of them are within the limit."""
    over = [name for name, value in measured.items() if round(value, digits) > limit]
    return [listed(measured, digits), f"missed by {' and '.join(over)}" if over else "met"]


def over(record: dict[str, Any], work: str, base: str) -> float:
    return float(statistics.median(record["times"][work]) / statistics.median(record["times"][base]))


def rounds(records: dict[str, dict[str, Any]], ks: tuple[int, ...], base: str) -> dict[str, float]:
    """Adaptive rounds at those k that were measured, of the time of ``base``."""
    return {
        f"{name}, k = {k:,}": over(record, work, base)
        for name, record in records.items()
        for k in ks
        if (work := f"round, k = {k}") in record["times"]
    }


def table(plain: dict[str, Any], paper: dict[str, Any], cpu: dict[str, Any], contest: dict[str, Any]) -> str:
    """Rounds on the GPU with both networks, on the CPU, and in turns with the peers."""
    networks, dim, clients = {"plain CNN": plain, "paper's CNN": paper}, plain["dim"], plain["clients"]
    one_more = clients * dim * BYTES / 2**20 + plain["peaks"][PASS]
    memory = {f"k = {k:,}": plain["peaks"][f"round, k = {k}"] for k in SMALL}
    ratios = peers.ratios(contest)
    turns = {f"in turns, k = {k:,}": statistics.median(ratios[f"gradsift, adaptive, k = {k:,}"]) for k in SMALL}
    own = {base: {name: over(record, FEDAVG, base) for name, record in networks.items()} for base in (PASS, SEND_ALL)}
    rows = [
        [
            f"{plain['machine']}, {clients} clients, k = 1,000 and 10,000",
            "at most 1.2 x the plain batched pass, if possible 1.0",
            *verdict(1.2, rounds(networks, SMALL, PASS)),
        ],
        ["the same at k = D/2 with its probe", "at most 2.5 x", *verdict(2.5, rounds(networks, (dim // 2,), PASS))],
        ["the same at k = D", "reported", listed(rounds(networks, (dim,), PASS)), "-"],
        [
            f"{cpu['machine']}, {cpu['clients']} clients, in one process and in turns with the peers",
            "at most 1.1 x the plain loop, if possible below it",
            *verdict(1.1, rounds({"plain CNN": cpu}, SMALL, LOOP) | turns),
        ],
        [
            "memory beside residuals, MiB, plain CNN",
            f"one more [N, D] and the peak of the plain pass: {one_more:,.0f}",
            *verdict(one_more, memory, digits=0),
        ],
        [
            "FedAvg's own weights, against the plain batched pass",
            "at most 1.5 x the same number of gradients",
            *verdict(1.5, own[PASS]),
        ],
        [
            "the same, against our send-all round, which has a gradient a client too",
            "the same",
            *verdict(1.5, own[SEND_ALL]),
        ],
    ]
    return markdown(["", "asked", "measured", ""], rows)
