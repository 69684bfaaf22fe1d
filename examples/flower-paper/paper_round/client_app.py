"""The clients: one minibatch gradient a round, and three losses on a sample of it."""

from gradsift.flower import gradient_app
from paper_round.task import task

app = gradient_app(task)
