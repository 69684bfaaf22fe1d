"""How close a controller comes to the best fixed k, computed from recorded curves of loss against cost.

The rounds of a run with a fixed k do not depend on what a round costs, so one sweep of fixed k serves every cost model.

Shapes: K values of k, S seeds, L losses, M rounds.
"""
