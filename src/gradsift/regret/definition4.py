"""The paper's regret: R(M) = what M rounds cost, less what the best fixed k needs to bring the loss as far."""

from gradsift.regret.reach import Floats, cost_to
from gradsift.report.curves import Curve


def regret(curve: Curve, best: Curve) -> Floats:
    """R after each evaluation of ``curve``; NaN where ``best`` never came so far. Both as ``descent`` makes them.

    The sum over rounds of tau_m(k_m) is what was spent, and the integral of t(k*, l) from L_M to L_0 is what a run at
    k* spends until its loss is L_M.
    """
    return curve.x - cost_to(best, curve.y)
