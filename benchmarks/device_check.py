"""Two things that only a GPU can show: queueing a round waits for nothing, and products are as exact as convolutions.

    python -m benchmarks.device_check --device cuda       156 clients of 32 samples, as in the benchmarks
    python -m benchmarks.device_check                     a dry run on the CPU, with 6 of 4

**Waits.** Adaptive, FedAvg and send-all rounds are begun, after a warm-up, while torch reports every synchronisation
(``torch.cuda.set_sync_debug_mode``): first as warnings, which name all places, then as errors, which none can get past.
The one wait that a round is allowed is an event, which torch does not report: reading back the round before it. It is
counted, and whether it comes before or after the gradients are queued. The dry run takes the ways of a CUDA device on
the CPU and looks for operations that would make it wait.

**Exactness.** Convolutions with each client's own weights as batched products (``one_pass_conv.conv_by_rows``) against
cuDNN's, client by client, forward and for the gradient of the input: in TF32 they may differ by its rounding, in
float32 by much less.

Prints what it finds, and fails if anything is not as it should be.
"""

import argparse
import contextlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import gradsift
from benchmarks.round import MODELS, Pinned, random_data
from gradsift import sparse
from gradsift.method import Method
from gradsift.simulation import one_pass_conv
from gradsift.simulation.engine import Engine
from gradsift.simulation.flat import FlatModel
from gradsift.simulation.settings import Settings
from gradsift.simulation.state import Readings

WARM_UP, ROUNDS = 3, 3
SIZE = {"cpu": (6, 4), "cuda": (156, 32)}  # clients, samples each
SOURCE = Path(gradsift.__file__).parent
REPORTED = "called a synchronizing CUDA operation"
ASKS = ("nonzero", "_local_scalar_dense", "masked_select", "bincount", "equal", "_unique2", "unique_dim")
TF32 = 2.0**-9  # how far apart, as a part of their size, results may be: two factors lose up to 2^-10 of themselves
FLOAT32 = TF32 / 2**7  # not every sum is made in the same order, and some convolutions are transformed
KINDS = (
    *("k = 1,000", "k = 10,000", "k = D/2", "k = D", "half of the clients"),
    *("FedAvg inside a period", "FedAvg with exchanges", "send-all"),
)


class Found(NamedTuple):
    """What was seen in some rounds."""

    waits: dict[str, int]  # place -> how often
    read_before: int  # rounds that read the one before them back before their gradients are queued
    read_after: int  # and after


def make(name: str, device: torch.device, model: str, clients: int, batch: int) -> Engine:
    """A run whose rounds are of one kind."""
    build, shape = MODELS[model]
    module = build()
    dim = sum(parameter.numel() for parameter in module.parameters())
    ks = {"k = 1,000": 1000, "k = 10,000": 10_000, "k = D/2": dim // 2, "k = D": dim}
    settings = Settings(batch_size=batch)
    if name == "half of the clients":
        settings = Settings(batch_size=batch, clients_per_round=max(1, clients // 2))
    sparsifier = "fab-top-k"
    controller: gradsift.Controller[Any] = Pinned(ks.get(name, 1000))
    if name.startswith("FedAvg"):  # every other round an exchange, or never
        sparsifier, controller = "fedavg", gradsift.controller("fixed", k=dim // 4 if name.endswith("exchanges") else 1)
    elif name == "send-all":
        sparsifier, controller = "send-all", gradsift.controller("fixed", k=1)
    return Engine(
        module,
        functional.cross_entropy,
        random_data(clients, each=batch, shape=shape),
        Method.of(sparsifier=sparsifier, controller=controller),
        settings,
        device=device,
        dtype=torch.float32,
    )


def innermost(frames: traceback.StackSummary) -> str:
    """The last line of gradsift among them."""
    for frame in reversed(frames):
        if Path(frame.filename).is_relative_to(SOURCE):
            return f"{Path(frame.filename).relative_to(SOURCE)}:{frame.lineno}: {frame.line}"
    return "outside gradsift"


class Asks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations whose result a CUDA device would have to tell the host."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note, self.awake = note, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = func.overloadpacket.__name__
        masked = name.startswith("index") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ())
        )
        if self.awake and (name in ASKS or masked):
            self.note()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def as_on_cuda(note: Callable[[], None]) -> Iterator[None]:
    """The ways of a CUDA device on the CPU; what would make it wait is noted, except when a round is read back."""
    asks, finish = Asks(note), Engine._finish

    def asleep(self: Engine, *given: Any) -> Any:
        asks.awake = False
        try:
            return finish(self, *given)
        finally:
            asks.awake = True

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sparse, "queued", return_value=True))
        stack.enter_context(mock.patch.object(sparse, "_takes_lowest_first", return_value=True))
        stack.enter_context(mock.patch.object(Engine, "_finish", asleep))
        stack.enter_context(asks)
        yield


@contextlib.contextmanager
def reported(note: Callable[[], None]) -> Iterator[None]:
    """Torch's reports of synchronisations, as warnings."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if REPORTED in str(message):
            note()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        with debug_mode("warn"):
            yield


@contextlib.contextmanager
def debug_mode(mode: str) -> Iterator[None]:
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def order_of_reading(log: list[str]) -> Iterator[None]:
    """Writes down when gradients are queued and when a round is read back."""
    add, read = FlatModel.add_gradients, Readings.read

    def added(self: FlatModel, *given: Any) -> Any:
        log.append("gradients")
        return add(self, *given)

    def was_read(self: Readings) -> Any:
        log.append("read")
        return read(self)

    with mock.patch.object(FlatModel, "add_gradients", added), mock.patch.object(Readings, "read", was_read):
        yield


def watching(device: torch.device, note: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    return reported(note) if device.type == "cuda" else as_on_cuda(note)


def sees(device: torch.device) -> bool:
    """Whether a wait that is there is seen: else none would be a poor proof."""
    value, seen = torch.ones(3, device=device), list[int]()
    with watching(device, lambda: seen.append(1)):
        value.sum().item()
    return bool(seen)


def look(run: Engine) -> Found:
    """Begin some rounds, and see what the host waits for."""
    for _ in range(WARM_UP):
        run.begin()
    waits: dict[str, int] = {}

    def note() -> None:
        at = innermost(traceback.extract_stack())
        waits[at] = waits.get(at, 0) + 1

    cuda, before, after = run.device.type == "cuda", 0, 0
    with watching(run.device, note):
        for _ in range(ROUNDS):
            log: list[str] = []
            with order_of_reading(log):
                run.begin()
            before += log[0] == "read"
            after += "read" in log and log[0] != "read"
    if cuda and not waits:
        try:
            with debug_mode("error"):
                run.begin()
        except RuntimeError as problem:
            frames = traceback.extract_tb(problem.__traceback__)
            waits[f"{innermost(frames)} ({str(problem).splitlines()[0]})"] = 1
    return Found(waits, before, after)


def check_waits(device: torch.device, model: str, clients: int, batch: int) -> list[str]:
    """Every kind of round; returns what is wrong."""
    wrong = [] if sees(device) else ["a wait that was made on purpose was not reported"]
    for kind in KINDS:
        found = look(make(kind, device, model, clients, batch))
        when = "before" if found.read_before else "after"
        print(f"{model}, {kind}: {len(found.waits)} waits; the round before is read {when} the gradients are queued")
        for at, count in found.waits.items():
            print(f"  {count} in {ROUNDS} rounds: {at}")
            wrong.append(f"{model}, {kind}: {at}")
    return wrong


def client_by_client(x: Tensor, weights: Tensor, padding: tuple[int, int]) -> Tensor:
    """What ``one_pass_conv.conv_by_rows`` stands for: a convolution for every client."""
    parts = zip(x.unflatten(0, (len(weights), -1)), weights, strict=True)  # type: ignore[no-untyped-call]
    return torch.cat([functional.conv2d(own, weight, padding=padding) for own, weight in parts])


def apart(left: Tensor, right: Tensor) -> float:
    """How far, as a part of the size of ``right``."""
    return float((left.double() - right.double()).norm() / right.double().norm())


@contextlib.contextmanager
def convolutions_in(precision: str) -> Iterator[None]:
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = conv.fp32_precision
    conv.fp32_precision = precision
    try:
        yield
    finally:
        conv.fp32_precision = before


def check_exactness(device: torch.device, clients: int, batch: int) -> list[str]:
    """The second convolution of the paper's CNN, with weights of every client's own; returns what is wrong."""
    cuda = device.type == "cuda"
    source = torch.Generator().manual_seed(0)
    x = torch.randn(clients * batch, 32, 14, 14, generator=source).to(device, memory_format=torch.channels_last)
    weights = (torch.randn(clients, 32, 32, 5, 5, generator=source) / 800**0.5).to(device)
    layer = nn.Conv2d(32, 32, 5, padding=2)
    ways = {
        "forward": (weights, (2, 2)),
        "gradient of the input": (one_pass_conv.flipped(weights), one_pass_conv.flipped_padding(layer)),
    }
    has_tf32 = cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    wrong = []
    for name, (taps, padding) in ways.items():
        with convolutions_in("ieee"):
            exact = client_by_client(x.double(), taps.double(), padding)
        for precision, limit in (("tf32", TF32), ("ieee", FLOAT32)):
            with convolutions_in(precision):
                ours, theirs = one_pass_conv.conv_by_rows(x, taps, None, padding), client_by_client(x, taps, padding)
            seen = {"apart": apart(ours, theirs), "ours": apart(ours, exact), "convolution": apart(theirs, exact)}
            numbers = ", ".join(f"{key} {value:.1e}" for key, value in seen.items())
            print(f"{name}, {precision}: {numbers} (from double precision the last two); limit {limit:.1e}")
            if max(seen.values()) > limit:
                wrong.append(f"{name}, {precision}: {numbers}, more than {limit:.1e}")
            if precision == "tf32" and has_tf32 and min(seen["ours"], seen["convolution"]) < FLOAT32:
                wrong.append(f"{name}: TF32 was asked for and not all of it is: {numbers}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=["plain-cnn", "paper-cnn"])
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    clients, batch = SIZE[device.type]
    clients, batch = given.clients or clients, given.batch or batch
    wrong = check_exactness(device, clients, batch)
    for model in given.models:
        wrong += check_waits(device, model, clients, batch)
    print("\n".join(["", "wrong:", *wrong]) if wrong else "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
