"""Fill the tables of docs/results/speed.md from the results beside it: ``python -m benchmarks.page``.

The results are what the benchmarks write, put into docs/results/speed/ under the names of ``PARTS``. A test holds the
page to them.
"""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import growth_report
from benchmarks.common import ROOT, markdown
from benchmarks.peers import run as peers

PAGE = ROOT / "docs" / "results" / "speed.md"
RESULTS = ROOT / "docs" / "results" / "speed"
_PART = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def round_part(record: dict[str, Any]) -> str:
    """What benchmarks/round.py measured, over the plain batched pass and over the plain loop."""
    times = {name: statistics.median(each) for name, each in record["times"].items()}
    batched, loop = times["plain batched pass"], times["plain loop over clients"]
    rows = []
    for name, seconds in times.items():
        peak = f"{record['peaks'][name]:,.0f}" if name in record["peaks"] else "-"
        rows.append([name, f"{1e3 * seconds:.2f}", f"{seconds / batched:.2f}", f"{seconds / loop:.2f}", peak])
    heads = ["", "ms", "x batched pass", "x loop", "peak MiB"]
    head = f"{record['date']}, {record['where']}, torch {record['torch']}, {record['model']}, D = {record['dim']:,}"
    return f"{head}, {record['clients']} clients x {record['batch']} samples\n\n{markdown(heads, rows)}"


def growth_part(record: dict[str, Any]) -> str:
    """The fits, and what was left out."""
    head = f"{record['date']}, {record['machine']}, torch {record['torch']}, {record['batch']} samples a client"
    left_out = [
        f"- Left out: N = {point['clients']:,}, D = {point['dim']:,}, k = {point['k']:,}: {point['reason']}."
        for found in record["sweeps"].values()
        for point in found["skipped"]
    ]
    return "\n".join([head, "", growth_report.table(record), *([""] if left_out else []), *left_out])


def streamed_part(record: dict[str, Any]) -> str:
    """A round with its residuals on the device and in the host's memory."""
    head = f"{record['date']}, {record['machine']}, torch {record['torch']}, {record['clients']} clients"
    kept = {name: made for name, made in record.items() if isinstance(made, dict)}
    base = next(iter(kept.values()))["seconds"]
    rows = [[name, f"{1e3 * made['seconds']:.1f}", f"{made['seconds'] / base:.2f}"] for name, made in kept.items()]
    apart = f"{record['largest_difference']:.2g}"
    same = "the same k in every round" if record["same_k"] else "another k in some round"
    return f"{head}; {same}, weights at most {apart} apart\n\n{markdown(['', 'ms a round', 'x the first'], rows)}"


PARTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "peers": peers.summary,
    "round-cpu": round_part,
    "round-cuda": round_part,
    "round-cuda-paper": round_part,
    "growth-cpu": growth_part,
    "growth-cuda": growth_part,
    "streamed": streamed_part,
}


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with every part made from its result; a part without one says so."""

    def fill(found: re.Match[str]) -> str:
        path = results / f"{found[2]}.json"
        text = PARTS[found[2]](json.loads(path.read_text())) if path.exists() else "Not measured yet."
        return f"{found[1]}{text}\n{found[3]}"

    return _PART.sub(fill, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
