"""gradsift itself: a dense round, or a whole adaptive one, through ``gradsift.simulate`` as a user calls it.

The controller is the paper's, held within a tenth of k: gradients, residuals, top-k, fair merge, probe, settle, three
losses and records, every round.
"""

import functools
import sys

import numpy as np
from torch.nn.functional import cross_entropy

import gradsift
from benchmarks.common import adaptive
from benchmarks.peers.meter import Meter
from benchmarks.peers.workload import BATCH, DIM, LR, client, torch_net


def main(clients: int, k: int | None) -> None:
    meter = Meter()
    x, y = (np.concatenate(parts) for parts in zip(*map(client, range(clients)), strict=True))
    run = functools.partial(
        gradsift.simulate,
        torch_net(),
        cross_entropy,
        gradsift.FederatedData.from_arrays(x, y, np.repeat(np.arange(clients), BATCH)),
        sparsifier="send-all" if k is None else "fab-top-k",
        controller=gradsift.controller("fixed", k=DIM) if k is None else adaptive(k, DIM),
        lr=LR,
        batch_size=BATCH,
        eval_every=10**9,
    )

    def weights() -> np.ndarray:
        """Of as many rounds as are done: a run repeats exactly."""
        return run(rounds=meter.done).weights.numpy()

    meter.ready("gradsift", "torch", "numpy", weights=weights)
    run(rounds=10**9, on_round=lambda _: meter.tick(weights))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
