"""What a federated data set is like, in a few numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradsift.data.federated import FederatedData
from gradsift.draws import rng


@dataclass(frozen=True)
class Description:
    """The numbers of one data set; ``dataclasses.asdict`` makes a dict of it, ``str`` a small table."""

    name: str
    clients: int
    train_samples: int
    test_samples: int
    input_shape: tuple[int, ...]
    classes: int | None  # None: y are targets, not class labels
    smallest_client: int
    median_client: float
    largest_client: int
    skew: float | None  # see ``skew``
    chance_skew: float | None  # the same number had the same samples been dealt out at random to clients of these sizes

    def __str__(self) -> str:
        classes = "targets, not classes" if self.classes is None else str(self.classes)
        lines = {
            "data": self.name,
            "clients": str(self.clients),
            "training samples": str(self.train_samples),
            "test samples": str(self.test_samples),
            "input shape": " x ".join(map(str, self.input_shape)) or "one number",
            "classes": classes,
            "samples a client": f"{self.smallest_client} to {self.largest_client}, median {self.median_client:g}",
        }
        if self.skew is not None and self.chance_skew is not None:
            lines["label skew"] = f"{self.skew:.3f} (dealt out at random: {self.chance_skew:.3f})"
        return "\n".join(f"{what:<17} {value}" for what, value in lines.items())


def describe(data: FederatedData) -> Description:
    """The number of clients, samples and classes, the sizes of the clients, and how non-i.i.d. they are."""
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
    """How far the clients' labels are from everybody's: the mean total-variation distance.

        skew = 1/N sum_i  1/2 sum_c | p_i(c) - p(c) |

    p_i(c) is the fraction of client i's samples with label c, p(c) that of all samples. 0: all clients alike. With one
    of K equally frequent classes a client it is 1 - 1/K. Small clients differ by chance: compare ``chance_skew``.
    """
    classes, number = np.unique(labels, return_inverse=True)
    owner = np.repeat(np.arange(len(size)), size)
    counts = np.bincount(owner * len(classes) + number, minlength=len(size) * len(classes)).reshape(len(size), -1)
    everybody = counts.sum(axis=0) / counts.sum()
    each = counts / size[:, None]
    return float(np.abs(each - everybody).sum(axis=1).mean() / 2)
