"""The clients of one simulated round: who they are, their shares, and the samples of their minibatches.

Shapes: N clients, n of them in a round, b samples a minibatch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradsift.data.federated import FederatedData
from gradsift.round import Participation
from gradsift.sampling import Ints, minibatches, probe_samples
from gradsift.simulation.flat import chunks

Part = slice | Ints  # some of the clients of a round, whose minibatches are equally large


@dataclass(frozen=True)
class Clients:
    """Those of one round."""

    present: Ints
    index: Tensor | None  # the same on the device; None: everyone
    share: Tensor  # float64, on the CPU
    weight: Tensor  # share, on the device
    participation: Participation
    start: Ints  # [n] the row of each one's first sample
    batch: Ints  # [n] samples of each one's minibatch

    @classmethod
    def everyone(cls, data: FederatedData, batch_size: int, buffers: int, dtype: torch.dtype) -> "Clients":
        """All clients of ``data``; ``buffers`` numbers are exchanged beside their elements."""
        share = torch.from_numpy(data.share)
        return cls(
            np.arange(data.num_clients),
            None,
            share,
            to_device(share, data.x.device).to(dtype),
            Participation(np.ones(data.num_clients, dtype=bool), buffers),
            data.start,
            np.minimum(data.size, batch_size),
        )

    def some(self, present: Ints) -> "Clients":
        """Those of all clients that take part in a round; shares are those among them."""
        share = self.share[present] / self.share[present].sum()
        took_part = np.zeros(len(self.present), dtype=bool)
        took_part[present] = True
        return Clients(
            present,
            to_device(present, self.weight.device),
            share,
            to_device(share, self.weight.device).to(self.weight.dtype),
            Participation(took_part, self.participation.buffers),
            self.start[present],
            self.batch[present],
        )

    def parts(self, size: int) -> Iterator[Part]:
        """The clients in parts of at most ``size``: slices where all minibatches are equally large."""
        if (self.batch == self.batch[0]).all():
            yield from chunks(len(self.batch), size)
            return
        for length in np.unique(self.batch)[::-1]:
            same = np.flatnonzero(self.batch == length)
            yield from (same[part] for part in chunks(len(same), size))

    def place(self, part: Part) -> Part:
        """Where a part is among all clients: a slice, which needs no copy, if everyone takes part."""
        return part if self.index is None else self.present[part]

    def rows(self, data: FederatedData, batch_size: int, seed: int, step: int) -> Tensor:
        """[n, b] the rows of the data that make each minibatch of a local step; beyond a client's own, any."""
        drawn = minibatches(data.size, batch_size, seed, step)[self.present]
        return to_device(self.start[:, None] + drawn, data.x.device)

    def probe_rows(self, rows: Tensor, total: int, samples: int, seed: int, step: int) -> tuple[Tensor, Ints]:
        """The rows of the samples that losses are taken on, and whose they are (a place in ``present``)."""
        batch = np.ones(total, dtype=np.int64)
        batch[self.present] = self.batch
        picks = probe_samples(batch, samples, seed, step)[self.present]
        owner = np.repeat(np.arange(len(picks)), samples)
        if (self.batch < samples).any():
            there = picks.reshape(-1) >= 0
            flat = owner * rows.shape[1] + picks.reshape(-1)
            return rows.reshape(-1)[to_device(flat[there], rows.device)], owner[there]
        return rows.gather(1, to_device(picks, rows.device)).reshape(-1), owner


def to_device(values: Ints | Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for it."""
    return torch.as_tensor(values).to(device, non_blocking=True)
