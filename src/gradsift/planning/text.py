"""A plan in words: a table, and the assumptions behind it."""

import math
from collections.abc import Callable

from gradsift.control import law
from gradsift.control.law import EXPONENT
from gradsift.cost import NUMBER_BYTES
from gradsift.planning.predict import WRONG, Plan, Prediction, WrongGuess
from gradsift.report.text import aligned, number, some_bytes


def predictions(plan: Plan) -> dict[str, Prediction]:
    """The ways to train that are compared, by name."""
    fedavg = {f"FedAvg, {plan.fedavg.gradients:,} steps": plan.fedavg}
    if plan.dense and plan.local_steps == 1:
        return {"send everything": plan.everything, **fedavg}
    steps = f", {plan.local_steps:,} steps" if plan.local_steps > 1 else ""
    ours = f"everything{steps}" if plan.dense else f"k = {plan.k:,}{steps}"
    ways = {ours: plan.planned, "send everything": plan.everything}
    return {**ways, **fedavg, "FedAvg, same traffic": plan.fedavg_same_traffic}


def table(plan: Plan) -> str:
    """The table, with a column for each way to train."""
    ways, unit = predictions(plan), " R0" if plan.r0 is None else ""
    rows: list[tuple[str, Callable[[Prediction], str]]] = [
        ("gradients a round and client", lambda way: f"{way.gradients:,}"),
        ("bytes up a round and client", lambda way: some_bytes(way.up_bytes)),
        ("bytes down a round and client", lambda way: some_bytes(way.down_bytes)),
        ("bytes of all clients, both ways", lambda way: some_bytes(plan.clients * (way.up_bytes + way.down_bytes))),
        ("seconds a round", lambda way: number(way.seconds, 3)),
        ("  computing", lambda way: number(way.computing, 3)),
        ("  sending up", lambda way: number(way.sending, 3)),
        ("  receiving down", lambda way: number(way.receiving, 3)),
        ("  latency", lambda way: number(way.latency, 3)),
        ("rounds to a target", lambda way: f"{_at_least(way)}{number(way.rounds * (plan.r0 or 1), 3)}{unit}"),
        ("time, 1 = send everything", lambda way: f"{_at_least(way)}{number(way.relative, 3)}"),
    ]
    if plan.r0 is not None:
        rows.append(("time to a target", lambda way: f"{_at_least(way)}{_duration(way.total or 0.0)}"))
    return aligned([("", *ways), *((name, *map(cell, ways.values())) for name, cell in rows)])


def _at_least(way: Prediction) -> str:
    return ">= " if way.gradients > 1 else ""  # FedAvg at its best


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{number(seconds / size, 3)} {unit}"
    return f"{number(seconds, 3)} s"


def assumptions(plan: Plan) -> str:
    """What the predictions rest on, and what a wrong guess of c costs."""
    link = f"{plan.up_mbit:g} Mbit/s up, {plan.down_mbit:g} down, {plan.latency:g} s latency a message"
    elements = plan.planned.up_bytes - NUMBER_BYTES * plan.buffers
    size = f"about {number(elements / plan.k, 3)} in the wire format" if plan.encoded_bytes else "8"
    element = "" if plan.dense else f" Bytes of an element sent, index and value: {size}."
    lines = [
        f"{plan.clients:,} clients, each with {link}, {plan.compute:g} s a gradient; the server takes no time.",
        f"D = {plan.dim:,} weights.{element} Bytes of a number in a whole vector: {NUMBER_BYTES}.",
        f"Rounds to a target at k: R0 (1 + c/k)^{EXPONENT:g}. R0, the rounds if everything is sent, is the task's own."
        f" c = {number(plan.c, 3)}, the square root of D, is a guess.",
        *_of_local_steps(plan),
        *(_if_wrong(size, wrong) for size, wrong in zip(("smaller", "larger"), plan.wrong, strict=True)),
        "The law does not cover FedAvg. Shown is its best case, h local steps worth h gradients; with different data at"
        f" each client it needs more. {_against_fedavg(plan)}",
    ]
    if plan.buffers:
        lines[1] += f" Numbers of averaged buffers, which travel whole besides: {plan.buffers:,}."
    if (floor := _at_the_floor(plan)) is not None:
        lines.insert(3, floor)
    if plan.dense:
        lines.insert(0, "Sending whole vectors is predicted to be faster than any k.")
    return "\n".join(f"- {line}" for line in lines)


def _of_local_steps(plan: Plan) -> list[str]:
    if plan.local_steps == 1:
        return []
    steps = f"{plan.local_steps:,} local steps"
    return [
        f"At best, {steps} are worth as many gradients, and c grows with their square root, as on FEMNIST; with other"
        " data at each client they are worth less."
    ]


def _at_the_floor(plan: Plan) -> str | None:
    """A line where only the smallest k that is allowed keeps k from being smaller."""
    free = law.best_k(plan.price, law.local_c(plan.c, plan.local_steps), 1, plan.k_max)
    if plan.dense or plan.k > plan.k_min or free >= plan.k_min:
        return None
    why = ", sqrt(D)/5, below which training may stall" if plan.k_min == math.ceil(law.least_k(plan.dim)) else ""
    return f"k is the smallest that is allowed{why}; the law alone would take {max(1, round(free)):,}."


def _if_wrong(size: str, wrong: WrongGuess) -> str:
    time, loss = number(wrong.relative, 3), number(wrong.loss, 3)
    return f"If c is {WRONG:g} times {size}: time {time}, {loss} times that of the best k then, {wrong.best_k:,}."


def _against_fedavg(plan: Plan) -> str:
    ours, steps = (
        "Sending everything" if plan.dense else "The planned k",
        f"FedAvg with {plan.fedavg.gradients:,} steps",
    )
    ratio = plan.planned.relative / plan.fedavg.relative
    if ratio <= 1:
        return f"{ours} is faster than {steps} even so: {number(1 / ratio, 3)} times."
    return f"{ours} is faster than {steps} if that needs more than {number(ratio, 3)} times the rounds shown."
