"""Predict k, bytes and seconds of a round, and the time to a target against sending everything and against FedAvg.

Rounds to a target are R0 (1 + c/k)^0.7 by ``control.law``; R0, the rounds if everything were sent, is not known before
training. So times are relative to sending everything, unless R0 is given. With h local steps, at their best, they are
R0/h (1 + c sqrt(h)/k)^0.7: docs/results/local_steps.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from gradsift import check
from gradsift.control import law
from gradsift.cost import LinkTime, Traffic, checked_cost
from gradsift.errors import GradsiftError, install
from gradsift.method import EXACT, EXACT_BITS, of_bits
from gradsift.pricing import expected_traffic

MBIT = 125_000  # bytes
MOST_WEIGHTS = 10**15
WRONG = 3.0  # the factor by which c may be wrong, both ways


@dataclass(frozen=True)
class Prediction:
    """One way to train. A round ends with an exchange; bytes are those of one client in one round."""

    gradients: int  # computed by a client in a round
    up_bytes: float
    down_bytes: float
    seconds: float  # of a round: the sum of the four below
    computing: float
    sending: float
    receiving: float
    latency: float
    rounds: float  # to the target, as a multiple of R0
    relative: float  # time to the target, as a multiple of that of sending everything
    total: float | None  # seconds to the target, if R0 is known


@dataclass(frozen=True)
class WrongGuess:
    """What the planned k costs if c is another than was guessed."""

    c: float
    relative: float  # time to the target with the planned k, as a multiple of that of sending everything
    best_k: int  # the k that would have been planned for this c
    loss: float  # time with the planned k, as a multiple of that with ``best_k``


@dataclass(frozen=True)
class Setting:
    """What a plan is made for."""

    dim: int  # weights of the model
    clients: int
    up_mbit: float
    down_mbit: float
    latency: float  # seconds per message
    compute: float  # seconds per gradient
    encoded_bytes: bool
    r0: float | None  # rounds to the target if everything were sent, if known
    k_min: int
    k_max: int
    local_steps: int  # h
    bits: tuple[int, int]  # of a value up and down; 32 are exact
    buffers: int  # numbers of the model that are averaged, and travel whole

    @property
    def cost(self) -> LinkTime:
        """The cost model, to train with."""
        return LinkTime(self.up_mbit * MBIT, self.down_mbit * MBIT, self.latency, self.compute)

    def traffic(self, k: float) -> Traffic:
        """A round at k, for one client: all are alike, so that the slowest is any of them."""
        up, down = of_bits(self.bits)
        return expected_traffic(
            self.dim,
            k,
            clients=1,
            encoded_bytes=self.encoded_bytes,
            values=up,
            down_values=down,
            steps=self.local_steps,
            buffers=self.buffers,
        )

    def whole(self, steps: int = 1) -> Traffic:
        """A round in which whole vectors are sent after so many local steps."""
        return Traffic.of(self.dim, self.dim, self.dim, clients=1, dense=True, steps=steps, buffers=self.buffers)

    def price(self, k: float) -> float:
        """Seconds of a round at k."""
        return checked_cost(self.cost, self.traffic(k))

    def rounds(self, k: float, c: float) -> float:
        """Rounds to the target at k, over R0."""
        return law.slowdown(k, law.local_c(c, self.local_steps)) / self.local_steps

    def time(self, k: float, c: float) -> float:
        """Seconds to the target at k, over R0."""
        return self.price(k) * self.rounds(k, c)


@dataclass(frozen=True)
class Plan(Setting):
    """The result of ``gradsift.plan``; ``print`` shows it as a table, and ``draw`` makes the picture."""

    c: float  # the number of elements at which sending fewer starts to hurt, guessed
    k: int  # to start with; ``dim`` if whole vectors should be sent
    dense: bool  # whether to send whole vectors, without indices, because that is faster
    planned: Prediction
    everything: Prediction
    fedavg: Prediction  # with the given number of local steps, at its best
    fedavg_same_traffic: Prediction  # with the period at which it sends as much as the planned k, at its best
    wrong: tuple[WrongGuess, ...]  # for c three times smaller and three times larger

    def relative(self, k: Sequence[float], c: float) -> list[float]:
        """The time to the target with each of these k, as a multiple of that of sending everything."""
        return [self.time(one, c) / self.everything.seconds for one in k]

    def __str__(self) -> str:
        from gradsift.planning import text

        return f"{text.table(self)}\n\n{text.assumptions(self)}"

    def draw(self, path: str | Path) -> None:
        """Write a figure of the predicted time over k as a .svg, .png or .pdf file; needs matplotlib."""
        if check.path("path", path).suffix.lower() not in (".svg", ".png", ".pdf"):
            raise GradsiftError(f"the figure must be a .svg, .png or .pdf file, got {str(path)!r}")
        try:
            from gradsift.planning import figure
        except ImportError as problem:
            raise GradsiftError(f"a figure needs matplotlib ({problem}): {install('report')}") from problem
        figure.save(self, Path(path))


def plan(
    model: nn.Module | int,
    *,
    up_mbit: float,
    down_mbit: float,
    compute: float,
    clients: int,
    latency: float = 0.0,
    encoded_bytes: bool = True,
    rounds: float | None = None,
    local_steps: int = 1,
    bits: int | tuple[int, int] = EXACT_BITS,
    fedavg_steps: int = 20,
    k_min: int | None = None,
    k_max: int | None = None,
) -> Plan:
    """Plan k for ``model``, a module or its number of weights, on clients that all have the same link and speed.

    The link has ``up_mbit`` and ``down_mbit`` Mbit/s and a ``latency`` in seconds per message; a gradient takes
    ``compute`` seconds. ``rounds`` is R0, the rounds to your target if everything were sent, if you know it: then times
    are also in seconds. ``local_steps`` and ``bits`` are those of the planned round, as in ``gradsift.simulate``;
    ``fedavg_steps`` are the local steps of the FedAvg to compare with. Without ``encoded_bytes`` an element
    takes 8 bytes instead of those of the wire format. k is at least sqrt(D) / 5, as for the controller, unless
    ``k_min`` is given.
    """
    dim = _weights(model)
    check.real("up_mbit", up_mbit, above=0)
    check.real("down_mbit", down_mbit, above=0)
    check.real("latency", latency, low=0)
    check.real("compute", compute, low=0)
    check.integer("clients", clients, 1)
    check.boolean("encoded_bytes", encoded_bytes)
    check.real("rounds", rounds, above=0, optional=True)
    check.integer("local_steps", local_steps, 1)
    check.integer("fedavg_steps", fedavg_steps, 1)
    both: Any = (bits, bits) if isinstance(bits, int) else bits
    if of_bits(both) != (EXACT, EXACT) and not encoded_bytes:
        raise GradsiftError(f"bits, {bits!r}, need encoded_bytes: else a value has 4 bytes")
    check.integer("k_max", k_max, 1, dim, optional=True)
    k_max = dim if k_max is None else int(k_max)
    k_min = min(math.ceil(law.least_k(dim)), k_max) if k_min is None else k_min
    check.integer("k_min", k_min, 1, k_max)
    link = (float(up_mbit), float(down_mbit), float(latency), float(compute))
    r0 = None if rounds is None else float(rounds)
    how = (int(local_steps), tuple(both), _buffers(model))
    setting = Setting(dim, int(clients), *link, encoded_bytes, r0, int(k_min), k_max, *how)
    return _planned(setting, law.guess(dim), int(fedavg_steps))


def _weights(model: nn.Module | int) -> int:
    """D: the number of trainable weights."""
    if isinstance(model, nn.Module):
        if any(nn.parameter.is_lazy(weights) for weights in model.parameters()):
            raise GradsiftError("the model has weights without a size yet: call it on a batch first")
        model = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    name = "the number of trainable weights of the model"
    check.integer(name, model, 1)
    if model > MOST_WEIGHTS:
        raise GradsiftError(f"{name} must be at most {MOST_WEIGHTS:,}, got {model!r:.40}")
    return int(model)


def _buffers(model: nn.Module | int) -> int:
    """How many numbers a normalisation keeps besides its weights: its running statistics, which are averaged."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    kept = (part.buffers(recurse=False) for part in parts if isinstance(part, nn.modules.batchnorm._NormBase))
    return sum(buffer.numel() for buffers in kept for buffer in buffers)


def _planned(setting: Setting, c: float, fedavg_steps: int) -> Plan:
    everything = _predict(setting, setting.whole())
    k, dense, _ = _best(setting, c)
    whole = _predict(setting, setting.whole(setting.local_steps), 1 / setting.local_steps)
    planned = whole if dense else _predict(setting, setting.traffic(k), setting.rounds(k, c))
    # Section V-A, item 4 of the paper, where it is floor(D / 2k): an element takes 8 bytes there.
    more = (everything.up_bytes + everything.down_bytes) / (planned.up_bytes + planned.down_bytes)
    same = int(setting.local_steps * more)
    wrong = []
    for other in (c / WRONG, c * WRONG):
        best_k, _, best = _best(setting, other)
        time = whole.rounds * whole.seconds if dense else setting.time(k, other)
        wrong.append(WrongGuess(other, time / everything.seconds, best_k, time / best))
    # FedAvg at its best: h local steps are worth h gradients, so it needs R0 of them in all.
    fedavg, alike = (_predict(setting, setting.whole(steps), 1 / steps) for steps in (fedavg_steps, max(1, same)))
    return Plan(
        **vars(setting),
        c=c,
        k=k,
        dense=dense,
        planned=planned,
        everything=everything,
        fedavg=fedavg,
        fedavg_same_traffic=alike,
        wrong=tuple(wrong),
    )


def _best(setting: Setting, c: float) -> tuple[int, bool, float]:
    """The best k for this c, whether whole vectors are better still, and the seconds to the target over R0."""
    near = law.best_k(setting.price, law.local_c(c, setting.local_steps), setting.k_min, setting.k_max)
    time, k = min((setting.time(k, c), k) for k in (math.floor(near), math.ceil(near)))
    whole = checked_cost(setting.cost, setting.whole(setting.local_steps)) / setting.local_steps
    return (setting.dim, True, whole) if setting.k_max == setting.dim and whole <= time else (k, False, time)


def _predict(setting: Setting, traffic: Traffic, rounds: float = 1.0) -> Prediction:
    """A round with this traffic, and the time to the target in this many times R0 rounds."""
    seconds = checked_cost(setting.cost, traffic)
    parts = setting.cost.parts(traffic)
    return Prediction(
        gradients=traffic.steps,
        up_bytes=float(traffic.up_bytes[0]),
        down_bytes=float(traffic.down_bytes[0]),
        seconds=seconds,
        computing=float(parts.computing[0]),
        sending=float(parts.sending[0]),
        receiving=float(parts.receiving[0]),
        latency=float(parts.up_latency[0] + parts.down_latency[0]),
        rounds=rounds,
        relative=rounds * seconds / checked_cost(setting.cost, setting.whole()),
        total=None if setting.r0 is None else setting.r0 * rounds * seconds,
    )
