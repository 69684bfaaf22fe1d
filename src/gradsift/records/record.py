"""The record of one round: the same columns from every driver, as JSON values."""

from typing import TypedDict, cast


class Record(TypedDict):
    """One round. Where a column is None, the round has no such value."""

    round: int  # counted from 1
    cost: float  # spent up to the end of this round
    round_cost: float
    lr: float
    k: float  # as the controller proposed it; the mean, where clients have different ones
    used_k: int  # k as rounded and used; the largest, where clients have different ones
    client_k: list[int] | None  # the k of each client of the round, where they differ
    probe_k: int | None  # k', the smaller k that the round was compared with
    low: float | None  # the interval in which the controller searches
    high: float | None
    steps: int  # gradients that each client computed
    train_loss: float | None  # mean minibatch loss, weighted by the clients' shares
    observed: int | None  # the round whose losses the controller was told of in this one
    sign: int | None  # the estimated sign of the derivative of the cost in k
    loss_before: float | None  # the losses of the observed round: before it, after it, and after it at k'
    loss_after: float | None
    loss_probe: float | None
    up_elements: int  # elements that each client sent; the most, where clients sent different numbers
    down_elements: int
    probe_elements: int | None  # size of the message with which a client makes the weights at k'
    up_bytes: float  # of all clients together
    down_bytes: float
    clients: int  # that took part
    contribution: list[int]  # elements of each client that the server kept, one number for every client there is
    refused: int  # replies that were not used
    resets: int  # clients that had to give up their residuals
    global_loss: float | None  # of an evaluation after the round
    accuracy: float | None


COLUMNS = tuple(Record.__annotations__)


def empty_record() -> Record:
    """A record in which all counts are zero and all other columns are None."""
    zero = {"up_elements": 0, "down_elements": 0, "up_bytes": 0.0, "down_bytes": 0.0, "clients": 0, "contribution": []}
    return cast(Record, {**dict.fromkeys(COLUMNS), **zero, "refused": 0, "resets": 0})
