"""Experiments: from the settings of runs to finished runs, and from runs to the paper's figures and the regret tables.

``settings`` lists the settings of a run and ``build`` makes its parts; ``work`` carries out many runs and ``store``
finds them again. ``paper`` has the paper's figures, ``sweep`` the sweep over fixed k behind ``gradsift regret``.
"""
