"""Plan k for a model and a link before training: ``gradsift.plan``, and ``gradsift plan`` on the command line."""

from gradsift.planning.predict import Plan, Prediction, WrongGuess, plan

__all__ = ["Plan", "Prediction", "WrongGuess", "plan"]
