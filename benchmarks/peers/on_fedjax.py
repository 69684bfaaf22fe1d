"""FedJAX: its federated averaging, jit-compiled for each client, on the CPU."""

import os
import sys
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.meter import Meter
from benchmarks.peers.workload import BATCH, LR, Floats, client, flat, start

if not hasattr(jax, "tree_map"):  # which FedJAX still calls
    jax.tree_map = jax.tree_util.tree_map

import fedjax
from fedjax.algorithms.fed_avg import federated_averaging

IMAGE, FILTER = (0, 2, 3, 1), (2, 3, 1, 0)  # from torch's order of axes to the one that is fast here


def to_jax(parameters: list[Floats]) -> list[jax.Array]:
    return [jnp.asarray(p.transpose(FILTER) if p.ndim == 4 else p.T) for p in parameters]


def to_torch(parameters: list[jax.Array]) -> list[Floats]:
    return [np.asarray(p).transpose(3, 2, 0, 1) if p.ndim == 4 else np.asarray(p).T for p in parameters]


def logits(parameters: list[jax.Array], x: jax.Array) -> jax.Array:
    """The network of ``workload.torch_net``; images [b, 28, 28, 1]."""
    first, first_bias, second, second_bias, hidden, hidden_bias, out, out_bias = parameters
    for filters, bias in ((first, first_bias), (second, second_bias)):
        x = jax.lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.lax.reduce_window(jax.nn.relu(x + bias), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return jax.nn.relu(x @ hidden + hidden_bias) @ out + out_bias


def loss(parameters: list[jax.Array], batch: dict[str, jax.Array], rng: Any) -> jax.Array:
    del rng
    log_p = jax.nn.log_softmax(logits(parameters, batch["x"]))
    return -jnp.take_along_axis(log_p, batch["y"][:, None], axis=1).mean()


def main(clients: int) -> None:
    meter = Meter()
    algorithm = federated_averaging(
        jax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(LR),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=None, num_steps=1),
    )
    cohort = []
    for number, key in enumerate(jax.random.split(jax.random.PRNGKey(0), clients)):
        x, y = client(number)
        data = fedjax.ClientDataset({"x": np.ascontiguousarray(x.transpose(IMAGE)), "y": y.astype(np.int32)})
        cohort.append((str(number), data, key))
    state = algorithm.init(to_jax(start()))

    def weights() -> Floats:
        return flat(to_torch(state.params))

    meter.ready("fedjax", "jax", "numpy", weights=weights)
    while True:
        state, _ = algorithm.apply(state, cohort)
        if meter.last:
            jax.block_until_ready(state.params)
        meter.tick(weights)


if __name__ == "__main__":
    main(int(sys.argv[1]))
