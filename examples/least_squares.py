"""Least squares over eight clients, written straight on the core: every round's loss, k and traffic.

Each client holds its own noisy linear measurements of one sparse signal, and weighs some coordinates far more than
others (so the data is non-i.i.d.). FAB-top-k chooses what is sent, Algorithm 3 how much, on the paper's normalised
clock with a communication time of 10.
"""

import torch

import gradsift

CLIENTS, SAMPLES, DIM, ROUNDS, LR, SEED = 8, 60, 400, 120, 0.02, 0


def measurements() -> tuple[torch.Tensor, torch.Tensor]:
    """x [N, samples, D] and y [N, samples]: what each client saw."""
    source = torch.Generator().manual_seed(SEED)
    signal = torch.zeros(DIM)
    signal[torch.randperm(DIM, generator=source)[:40]] = 3 * torch.randn(40, generator=source)
    scales = torch.exp(torch.randn(CLIENTS, 1, DIM, generator=source))
    x = torch.randn(CLIENTS, SAMPLES, DIM, generator=source) * scales / scales.mean(-1, keepdim=True)
    return x, x @ signal + 0.1 * torch.randn(CLIENTS, SAMPLES, generator=source)


def main() -> None:
    """Train, and print a line a round."""
    x, y = measurements()
    share = torch.full((CLIENTS,), 1 / CLIENTS)

    def losses(weights: torch.Tensor) -> torch.Tensor:
        return ((x @ weights - y) ** 2).mean(-1) / 2

    def loss(weights: torch.Tensor) -> float:
        return float(share @ losses(weights))

    sparsifier = gradsift.sparsifier("fab-top-k")
    controller = gradsift.controller("extended-sign")
    cost = gradsift.NormalizedTime(comm_time=10)
    gradsift.check_pair(sparsifier, controller)

    weights, residual = torch.zeros(DIM), torch.zeros(CLIENTS, DIM)
    state = controller.init(dim=DIM, seed=SEED)
    spent = sent = 0.0
    print(f"{CLIENTS} clients, {DIM} weights, loss {loss(weights):.3f} at the start")
    print(f"{'round':>5} {'loss':>9} {'k':>6} {'used':>5} {'probe':>6} {'up':>6} {'down':>6} {'cost':>9}")
    for number in range(1, ROUNDS + 1):
        proposal = controller.propose(state, number)
        assert isinstance(proposal.k, float)  # this controller proposes one k for all clients, and always a probe
        assert isinstance(proposal.probe_k, float)
        k = gradsift.round_k(proposal.k, SEED, number)
        probe_k = gradsift.round_probe_k(proposal.probe_k, k, SEED, number)
        rnd = gradsift.Round(number=number, k=k, seed=SEED)

        residual += torch.einsum("nsd,ns->nd", x, x @ weights - y) / SAMPLES
        upload = sparsifier.upload(residual, rnd)
        merged = sparsifier.merge(upload, share, rnd)
        probed = sparsifier.probe(upload, share, rnd, probe_k)
        residual = sparsifier.settle(residual, upload, merged)

        after = gradsift.apply(weights, merged, LR)
        probe = gradsift.apply(after, gradsift.difference(probed, merged), LR)
        traffic = gradsift.Traffic.of(DIM, up=upload.size, down=merged.size, clients=CLIENTS)
        would_be = gradsift.Traffic.of(DIM, up=probe_k, down=probed.size, clients=CLIENTS)
        seen = gradsift.Observation(
            proposal=proposal,
            cost=cost.round_cost(traffic),
            probe_cost=cost.round_cost(would_be),
            loss_before=loss(weights),
            loss_after=loss(after),
            loss_probe=loss(probe),
            used_k=k,
            used_probe_k=probe_k,
        )
        state = controller.update(state, seen)
        weights, spent = after, spent + seen.cost
        sent += float(traffic.up_bytes.sum() + traffic.down_bytes.sum())
        print(
            f"{number:5d} {loss(weights):9.4f} {proposal.k:6.1f} {k:5d} {probe_k:6d}"
            f" {upload.size:6d} {merged.size:6d} {spent:9.2f}"
        )

    dense = ROUNDS * 2 * CLIENTS * DIM * 4
    print(f"\nsent {sent / 1e3:.0f} kB in {ROUNDS} rounds; the same rounds sent whole would be {dense / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
