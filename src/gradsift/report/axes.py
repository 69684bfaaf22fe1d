"""The name and unit of the cost axis, from the cost models of the runs."""

from collections.abc import Sequence

from gradsift.report.methods import Method

NAMES = {
    "LinkTime": "Time (s)",
    "Energy": "Energy (J)",
    "Money": "Money (in the currency of the prices)",
    "WeightedSum": "Cost (weighted sum)",
}


def cost_axis(methods: Sequence[Method]) -> str:
    """What one unit of the horizontal axis is."""
    costs = [method.runs[0].config.get("cost") or {} for method in methods]
    kinds = {str(cost.get("class")) for cost in costs}
    if len(kinds) > 1:
        return "Cost (each method by its own cost model)"
    kind = kinds.pop()
    if kind == "NormalizedTime":
        one = all(cost.get("comp_time", 1) == 1 for cost in costs)
        return "Normalised time (computation of a round = 1)" if one else "Normalised time"
    return NAMES.get(kind, "Cost" if kind == "None" else f"Cost ({kind})")
