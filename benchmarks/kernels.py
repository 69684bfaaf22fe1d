"""What a GPU is busy with: kernels of some rounds, summed by name, and the groups that docs/results/speed.md shows."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

ROUNDS = 3  # under the profiler
KEPT = 40  # kernels by name; what is left is summed
NAME = 160  # characters of a name that are kept: some are whole pages

# Group -> how its kernels are named, by torch, cuDNN, cuBLAS and CUB; the first that fits counts.
GROUPS = {
    "top-k": r"topk|radixFind|computeBlockwise|computeDigit",
    "sorting": r"sort|onesweep|reverse_indices",
    "pooling": r"max_pool|pooling",
    "change of layout or type": r"nchwToNhwc|nhwcToNchw|direct_copy|CatArray|im2col|transpose",
    "convolution": r"fprop|dgrad|wgrad|cudnn|conv|winograd|implicit",
    "product": r"gemm|gemv|cublas|nvjet|cutlass|splitK",
    "scatter, gather, index": r"scatter|gather|index",
    "sum or maximum": r"reduce|scan|softmax|nll_loss",
    "copy or zeros": r"Memcpy|Memset|FillFunctor",
    "elementwise": r"elementwise",
}
REST = "the rest"


def profiled(work: Callable[[], Any], after: Callable[[], Any], cuda: bool) -> torch.profiler.profile:
    """Some rounds of ``work`` under the profiler, and what is left of them in ``after``."""
    kinds = torch.profiler.ProfilerActivity
    profile = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if cuda else [kinds.CPU])
    with profile:
        for _ in range(ROUNDS):
            work()
        after()
        if cuda:
            torch.cuda.synchronize()
    return profile


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def summary(profile: torch.profiler.profile) -> dict[str, Any]:
    """Of a round: how long the device was busy, how many kernels it ran, and how long each kind of them took."""
    events = [
        event
        for event in profile.events() or ()  # type: ignore[no-untyped-call]
        if event.device_type == torch.profiler.DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    times: dict[str, float] = {}
    for event in events:
        times[event.name[:NAME]] = times.get(event.name[:NAME], 0.0) + event.time_range.elapsed_us()
    named = sorted(times.items(), key=lambda each: -each[1])
    kernels = {name: _each_ms(time) for name, time in named[:KEPT]}
    if named[KEPT:]:
        kernels[REST] = _each_ms(sum(time for _, time in named[KEPT:]))
    spans = ((event.time_range.start, event.time_range.end) for event in events)
    return {"busy_ms": _each_ms(busy(spans)), "kernels": len(events) / ROUNDS, "ms": kernels}


def _each_ms(microseconds: float) -> float:
    return round(microseconds / 1e3 / ROUNDS, 4)


def group(name: str) -> str:
    """Which group a kernel belongs to."""
    return next((title for title, pattern in GROUPS.items() if re.search(pattern, name, re.IGNORECASE)), REST)


def grouped(kernels: dict[str, float]) -> dict[str, float]:
    """Group -> ms a round."""
    total = dict.fromkeys([*GROUPS, REST], 0.0)
    for name, milliseconds in kernels.items():
        total[group(name)] += milliseconds
    return total
