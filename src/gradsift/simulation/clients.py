"""The clients of one simulated round: their numbers, their shares, and the samples of their minibatches.

Shapes: N clients, n of them in a round, b samples per minibatch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradsift.data.federated import FederatedData
from gradsift.round import Participation
from gradsift.sampling import NO_SAMPLE, Ints, minibatches, participants, probe_samples
from gradsift.simulation.flat import chunks

Part = slice | Ints  # selects clients of a round with equally large minibatches


@dataclass(frozen=True)
class Clients:
    """The clients that take part in one round."""

    present: Ints  # [n] their numbers
    index: Tensor | None  # ``present`` on the device; None if all clients take part
    share: Tensor  # [n] float64, on the CPU
    weight: Tensor  # ``share`` on the device
    participation: Participation
    start: Ints  # [n] the row of each client's first sample
    batch: Ints  # [n] the size of each client's minibatch

    @classmethod
    def everyone(cls, data: FederatedData, batch_size: int, buffers: int, dtype: torch.dtype) -> "Clients":
        """All clients of ``data``; ``buffers`` is ``Participation.buffers``."""
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

    def drawn(self, per_round: int | None, seed: int, period_start: int) -> "Clients":
        """The clients of the round or period that starts in round ``period_start``, drawn from all clients."""
        present = participants(len(self.present), per_round, seed, period_start)
        if len(present) == len(self.present):
            return self
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
        """Split the clients into parts of at most ``size``; they are slices if all minibatches are equally large."""
        if (self.batch == self.batch[0]).all():
            yield from chunks(len(self.batch), size)
            return
        for length in np.unique(self.batch)[::-1]:
            same = np.flatnonzero(self.batch == length)
            yield from (same[part] for part in chunks(len(same), size))

    def place(self, part: Part) -> Part:
        """The numbers of a part's clients; a slice, which needs no copy, if all clients take part."""
        return part if self.index is None else self.present[part]

    def rows(self, data: FederatedData, batch_size: int, seed: int, step: int) -> Tensor:
        """[n, b] the rows of the data in each minibatch of a local step; arbitrary beyond a smaller minibatch."""
        drawn = minibatches(data.size, batch_size, seed, step)[self.present]
        return to_device(self.start[:, None] + drawn, data.x.device)

    def probe_rows(self, rows: Tensor, total: int, samples: int, seed: int, step: int) -> tuple[Tensor, Ints]:
        """The rows of the samples that losses are taken on, and the client of each sample."""
        batch = np.ones(total, dtype=np.int64)
        batch[self.present] = self.batch
        picks = probe_samples(batch, samples, seed, step)[self.present]
        owners = np.repeat(self.present, samples)
        if (self.batch < samples).any():
            flat = (np.arange(len(picks))[:, None] * rows.shape[1] + picks)[picks != NO_SAMPLE]
            return rows.reshape(-1)[to_device(flat, rows.device)], owners[picks.reshape(-1) != NO_SAMPLE]
        return rows.gather(1, to_device(picks, rows.device)).reshape(-1), owners


def to_device(values: Ints | Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    return torch.as_tensor(values).to(device, non_blocking=True)
