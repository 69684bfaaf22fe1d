"""The paper's experiments: one function a figure, each returning complete experiments, and what carries them out.

An experiment is printable: a name, a label, and every setting of ``gradsift run``. ``gradsift paper`` runs them.
"""
