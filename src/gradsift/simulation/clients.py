"""The clients of one simulated round: who they are, their shares, and the samples of their minibatches.

Shapes: N clients, n of them in a round, b samples a minibatch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradsift.data.federated import FederatedData
from gradsift.round import Attendance
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
    attendance: Attendance
    batch: Ints  # [n] samples of each one's minibatch

    @classmethod
    def of(cls, data: FederatedData, present: Ints, batch_size: int, buffers: int, dtype: torch.dtype) -> "Clients":
        """``present`` of the clients of ``data``; ``buffers`` numbers are exchanged beside their elements."""
        total, device = data.num_clients, data.x.device
        everyone = len(present) == total
        share = torch.from_numpy(data.share)
        if not everyone:
            share = share[present] / share[present].sum()
        took_part = np.zeros(total, dtype=bool)
        took_part[present] = True
        return cls(
            present,
            None if everyone else to_device(present, device),
            share,
            to_device(share, device).to(dtype),
            Attendance(took_part, buffers),
            np.minimum(data.size[present], batch_size),
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
        return to_device(data.start[self.present][:, None] + drawn, data.x.device)

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
