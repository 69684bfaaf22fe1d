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

import torch
from torch import nn

from benchmarks import asked, floor, growth_report, kernels
from benchmarks.common import ROOT, markdown
from benchmarks.peers import run as peers
from benchmarks.round import LOOP, MODELS, PASS

PAGE = ROOT / "docs" / "results" / "speed.md"
RESULTS = ROOT / "docs" / "results" / "speed"
MISSING = "Not measured yet."
_PART = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def round_part(record: dict[str, Any]) -> str:
    """What benchmarks/round.py measured, over the plain batched pass and over the plain loop."""
    times = {name: statistics.median(each) for name, each in record["times"].items()}
    batched, loop = times[PASS], times[LOOP]
    peaks, profile = record["peaks"], record["profile"]
    heads = ["", "ms", "fastest", "x batched pass", "x loop"]
    rows = []
    for name, seconds in times.items():
        fastest = f"{1e3 * min(record['times'][name]):.2f}"
        rows.append([name, f"{1e3 * seconds:.2f}", fastest, f"{seconds / batched:.2f}", f"{seconds / loop:.2f}"])
    if profile:
        heads.append("device busy, ms")
        for row in rows:
            row.append(f"{profile[row[0]]['busy_ms']:.2f}" if row[0] in profile else "-")
    if peaks:
        heads.append("peak MiB")
        for row in rows:
            row.append(f"{peaks[row[0]]:,.0f}")
    shape = f"D = {record['dim']:,}, {record['clients']} clients x {record['batch']} samples"
    return f"{_head(record)}; {record['model']}, {shape}\n\n{markdown(heads, rows)}"


def _head(record: dict[str, Any]) -> str:
    """When, where and how often."""
    threads = "" if "host" in record else f", {record['threads']} threads"
    host = f" with {record['host']}" if "host" in record else ""
    return f"{record['date']}, {record['machine']}{host}{threads}, torch {record['torch']}, {record['repeats']} repeats"


def kernels_part(record: dict[str, Any]) -> str:
    """What the device was busy with in a round of each kind, by the names of its kernels."""
    if not record["profile"]:
        return MISSING
    found = {name: kernels.grouped(each["ms"]) for name, each in record["profile"].items()}
    rows = [[title, *(f"{each[title]:.2f}" for each in found.values())] for title in [*kernels.GROUPS, kernels.REST]]
    rows.append(["in all", *(f"{each['busy_ms']:.2f}" for each in record["profile"].values())])
    rows.append(["kernels", *(f"{each['kernels']:,.0f}" for each in record["profile"].values())])
    return markdown(["ms a round", *found], rows)


def floor_part(record: dict[str, Any]) -> str:
    """How far the plain pass, and our round where k is small, are from what the memory allows."""
    make, shape = MODELS[record["model"]]
    model = make()
    assert isinstance(model, nn.Sequential)
    activations = floor.activation_bytes(model, torch.zeros(1, *shape))
    samples, residuals = record["clients"] * record["batch"], record["clients"] * record["dim"]
    rows = []
    for name, elements in {PASS: 0, "round, k = 1000": residuals, "round, k = 10000": residuals}.items():
        least = floor.milliseconds(record["machine"], activations, samples, elements)
        if least is None:
            return MISSING
        cells = [name, f"{least:.2f}"]
        busy = record["profile"][name]["busy_ms"] if name in record["profile"] else None
        for value in (busy, 1e3 * statistics.median(record["times"][name])):
            cells += ["-", "-"] if value is None else [f"{value:.2f}", f"{value / least:.1f}"]
        rows.append(cells)
    return markdown(["", "floor, ms", "device busy, ms", "x floor", "ms", "x floor"], rows)


def growth_part(record: dict[str, Any]) -> str:
    """The fits, and what was left out."""
    head = f"{_head(record)} a point at most, {record['batch']} samples a client"
    left_out = [
        f"- Left out: N = {point['clients']:,}, D = {point['dim']:,}, k = {point['k']:,}: {point['reason']}."
        for found in record["sweeps"].values()
        for point in found["skipped"]
    ]
    return "\n".join([head, "", growth_report.table(record), *([""] if left_out else []), *left_out])


def streamed_part(record: dict[str, Any]) -> str:
    """A round with its residuals on the device and in the host's memory."""
    runs = record["runs"]
    base = runs["at once"]["seconds"]
    rows = [[name, f"{1e3 * made['seconds']:.1f}", f"{made['seconds'] / base:.2f}"] for name, made in runs.items()]
    apart = ", ".join(f"{name} {part:.2g}" for name, part in record["apart"].items())
    same = "; ".join(record["wrong"]) or "the same k in every round"
    size = record["residual_bytes"] / 1e9
    added = runs["streamed"]["seconds"] - runs["resident"]["seconds"]
    return (
        f"{_head(record)}; {record['clients']} clients; {same}; weights, as a part of their way from those of"
        f" resident: {apart}\n\n{markdown(['', 'ms a round', 'x the first'], rows)}\n\n"
        f"Streaming adds {1e3 * added:.0f} ms for {size:.2f} GB there and back: {2 * size / added:.1f} GB/s."
    )


# Part -> the results that it is made from, and how.
PARTS: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "peers": (("peers",), peers.summary),
    "round-cpu": (("round-cpu",), round_part),
    "round-cuda": (("round-cuda",), round_part),
    "round-cuda-paper": (("round-cuda-paper",), round_part),
    "asked": (("round-cuda", "round-cuda-paper", "round-cpu", "peers"), asked.table),
    "floor": (("round-cuda",), floor_part),
    "kernels": (("round-cuda",), kernels_part),
    "growth-cpu": (("growth-cpu",), growth_part),
    "growth-cuda": (("growth-cuda",), growth_part),
    "streamed": (("streamed",), streamed_part),
}


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with every part made from its results; a part without them says so."""

    def fill(found: re.Match[str]) -> str:
        names, make = PARTS[found[2]]
        paths = [results / f"{name}.json" for name in names]
        known = all(path.exists() for path in paths)
        text = make(*(json.loads(path.read_text()) for path in paths)) if known else MISSING
        return f"{found[1]}{text}\n{found[3]}"

    return _PART.sub(fill, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
