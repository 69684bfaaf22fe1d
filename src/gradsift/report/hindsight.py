"""Mark the best of several fixed k: which one that is, is known only once all of them were run."""

from collections.abc import Sequence
from dataclasses import replace

from gradsift.report import text
from gradsift.report.methods import Method, but_for_k
from gradsift.report.summary import Row, Spread

MANY = 3  # from so many fixed k on, the best is marked and the others are put aside


def mark(methods: Sequence[Method], rows: Sequence[Row]) -> tuple[list[Method], list[Row], list[str]]:
    """Return the methods and rows with the best of many fixed k named as such, and notes on how it was chosen."""
    families: dict[str | None, list[int]] = {}
    for i, method in enumerate(methods):
        families.setdefault(but_for_k(method), []).append(i)
    marked, numbers, notes = list(methods), list(rows), []
    for family, members in families.items():
        if family is None or len(members) < MANY:
            continue
        place, criterion = best([rows[i] for i in members])
        if place is None:
            continue
        for i in members:
            aside = i != members[place]
            label = methods[i].label if aside else f"{methods[i].label}, best of {len(members)} in hindsight"
            marked[i] = replace(methods[i], label=label, aside=aside)
            numbers[i] = replace(rows[i], label=label, aside=aside, best_of=0 if aside else len(members))
        notes.append(f"{marked[members[place]].label}: {criterion}.")
    return marked, numbers, notes


def best(rows: Sequence[Row]) -> tuple[int | None, str]:
    """Return the number of the best row and why it is the best; None if nothing tells.

    The best reaches the target at the least mean cost, among those that reach it in the most seeds; if there is no
    target, or none reaches it, the best has the lowest mean loss at the cost that all methods spent, or the highest
    accuracy if the target is one.
    """
    first = rows[0]
    costs, target = [row.cost_to_loss for row in rows], f"loss {text.number(first.target_loss or 0)}"
    if first.target_loss is None:
        costs, target = [row.cost_to_accuracy for row in rows], f"accuracy {text.percent(first.target_accuracy or 0)}"
    if any(cost is not None and cost.values for cost in costs):
        reached = max(len(cost.values) for cost in costs if cost is not None)
        among = [cost if cost is not None and len(cost.values) == reached else None for cost in costs]
        some = (
            "" if reached == len(first.seeds) else f", of those that reach it in {reached} of {len(first.seeds)} seeds"
        )
        return _least(among), f"the least mean cost to {target}{some}"
    where = "the end" if first.equal_cost is None else f"cost {text.number(first.equal_cost)}"
    if first.target_loss is None and first.target_accuracy is not None:
        reached_by = [row.accuracy if first.equal_cost is None else row.accuracy_at_equal_cost for row in rows]
        return _least(reached_by, -1), f"the highest accuracy at {where}"
    losses = [row.loss if first.equal_cost is None else row.loss_at_equal_cost for row in rows]
    return _least(losses), f"the lowest loss at {where}"


def _least(spreads: Sequence[Spread | None], by: int = 1) -> int | None:
    means = [
        (by * spread.mean, i) for i, spread in enumerate(spreads) if spread is not None and spread.mean is not None
    ]
    return min(means)[1] if means else None
