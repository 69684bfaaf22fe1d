"""Experiments: from the settings of runs to finished runs, and from runs to the paper's figures and the regret tables.

``settings`` says what a run can be told and ``build`` makes its parts; ``work`` carries out many runs, which ``store``
finds again. ``paper`` has the paper's figures, ``sweep`` the sweep over fixed k behind ``gradsift regret``.
"""
