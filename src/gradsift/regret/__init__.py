"""How near to the best fixed k a controller comes: arithmetic on curves of loss against cost. Nothing is run here.

A fixed k gives one trajectory, whatever a round costs: one sweep of fixed k serves every cost model.

Shapes: K values of k, S seeds, L losses.
"""
