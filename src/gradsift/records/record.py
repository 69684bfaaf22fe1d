"""The record of one round: the same columns from every driver, as JSON values."""

from typing import TypedDict, cast


class Record(TypedDict):
    """The columns of a record; None means that the round has no such value."""

    round: int  # counted from 1
    cost: float  # total of all rounds up to this one
    round_cost: float
    lr: float
    k: float  # as the controller proposed it; the mean, if k differs between clients
    used_k: int  # after rounding; the largest, if k differs between clients
    client_k: list[int] | None  # the k of each client that took part, if k differs between clients
    probe_k: int | None  # k', the smaller k with which the round is compared
    low: float | None  # the controller's search interval
    high: float | None
    c: float | None  # of the law, as the controller that plans k knew it before the round
    steps: int  # gradients that each client computed
    train_loss: float | None  # mean minibatch loss, weighted by the clients' shares
    observed: int | None  # the round whose losses the controller learned from in this round
    sign: int | None  # the estimated sign of the derivative of the cost with respect to k
    loss_before: float | None  # losses before the observed round, after it, and after the same round at k'
    loss_after: float | None
    loss_probe: float | None
    waiting: float | None  # of the observed round: mass left in the residuals over the mass sent
    agreement: float | None  # of the observed round: what the clients held where something was sent, over what was sent
    up_elements: int  # that each client sent; the largest number, if they differ
    down_elements: int
    probe_elements: int | None  # size of the message from which a client computes the weights at k'
    up_bytes: float  # the sum over all clients
    down_bytes: float
    clients: int  # that took part
    contribution: list[int]  # elements of each client's upload that the server kept, for all N clients
    refused: int  # replies that were not used
    resets: int  # clients that had to discard their residuals
    global_loss: float | None  # evaluated after the round
    accuracy: float | None


COLUMNS = tuple(Record.__annotations__)


def empty_record() -> Record:
    """A record in which all counts are zero and all other columns are None."""
    zero = {"up_elements": 0, "down_elements": 0, "up_bytes": 0.0, "down_bytes": 0.0, "clients": 0, "contribution": []}
    return cast(Record, {**dict.fromkeys(COLUMNS), **zero, "refused": 0, "resets": 0})
