"""Summarise a federated data set in a few numbers: sizes, classes, and how much the clients' labels differ."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradsift.data.federated import FederatedData
from gradsift.draws import rng


@dataclass(frozen=True)
class Description:
    """The summary of one data set; ``str`` prints it as a small table."""

    name: str
    clients: int
    train_samples: int
    test_samples: int
    input_shape: tuple[int, ...]
    classes: int | None  # None if y are targets and not class labels
    smallest_client: int
    median_client: float
    largest_client: int
    skew: float | None  # see the function ``skew``; None without class labels
    chance_skew: float | None  # the skew of a random partition into clients of the same sizes

    def __str__(self) -> str:
        lines = {
            "data": self.name,
            "clients": str(self.clients),
            "training samples": str(self.train_samples),
            "test samples": str(self.test_samples),
            "input shape": " x ".join(map(str, self.input_shape)) or "one number",
            "classes": "targets, not classes" if self.classes is None else str(self.classes),
            "client sizes": f"{self.smallest_client} to {self.largest_client}, median {self.median_client:g}",
        }
        if self.skew is not None and self.chance_skew is not None:
            lines["label skew"] = f"{self.skew:.3f} (in a random partition: {self.chance_skew:.3f})"
        return "\n".join(f"{label:<17} {value}" for label, value in lines.items())


def describe(data: FederatedData) -> Description:
    """Count clients, samples and classes, and measure the sizes of the clients and how non-i.i.d. their labels are."""
    measured = chance = None
    if data.labelled:
        labels = data.y.cpu().numpy()
        measured = skew(labels, data.size)
        chance = skew(rng(0, "describe").permutation(labels), data.size)
    return Description(
        name=data.name,
        clients=data.num_clients,
        train_samples=len(data.x),
        test_samples=len(data.test_x),
        input_shape=tuple(data.x.shape[1:]),
        classes=data.classes if data.labelled else None,
        smallest_client=int(data.size.min()),
        median_client=float(np.median(data.size)),
        largest_client=int(data.size.max()),
        skew=measured,
        chance_skew=chance,
    )


def skew(labels: NDArray[np.int64], size: NDArray[np.int64]) -> float:
    """Return the mean total-variation distance between the label distribution of a client and that of all samples.

        skew = 1/N sum_i  1/2 sum_c | p_i(c) - p(c) |

    p_i(c) is the fraction of client i's samples with label c, p(c) that of all samples. The skew is 0 if all clients
    have the same distribution, and 1 - 1/K if each has one of K equally frequent classes. Small clients differ by
    chance: compare ``chance_skew``.
    """
    classes, number = np.unique(labels, return_inverse=True)
    owner = np.repeat(np.arange(len(size)), size)
    counts = np.bincount(owner * len(classes) + number, minlength=len(size) * len(classes)).reshape(len(size), -1)
    overall = counts.sum(axis=0) / counts.sum()
    return float(np.abs(counts / size[:, None] - overall).sum(axis=1).mean() / 2)
