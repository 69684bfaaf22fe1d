"""The server's state as the arrays and facts of a checkpoint, from which a new run continues."""

from logging import WARNING
from typing import Any

import torch
from flwr.supercore import log

from gradsift.control import Controller, Observation
from gradsift.describe import text
from gradsift.errors import GradsiftError
from gradsift.flower.layout import Layout, Named
from gradsift.flower.options import Options
from gradsift.flower.server_state import Client, Pending, Settle, State
from gradsift.records.files import Arrays, Facts
from gradsift.round import Server
from gradsift.sparse import Sparse

COUNTS = ("control", "number", "steps", "offset", "spent")  # of the Server


def contents(state: State, experiment: str, options: Options, controller: Controller[Any]) -> tuple[Arrays, Facts]:
    """Everything that a new run needs."""
    arrays: Named = {"weights": state.weights, "changed": state.changed}
    arrays |= {f"rest/{name}": value for name, value in state.rest.items()}
    pending = state.pending
    if pending is not None:
        arrays |= {"before/indices": pending.before.indices, "before/values": pending.before.values}
        if pending.probe is not None:
            arrays |= {"probe/indices": pending.probe.indices, "probe/values": pending.probe.values}
    clients = {}
    for number, client in state.clients.items():
        settle = None
        if client.settle is not None:
            settle = [client.settle.number, client.settle.session, client.settle.checksum, client.settle.done]
            arrays[f"kept/{number}"] = client.settle.kept
        clients[str(number)] = [client.version, settle, client.can_probe]
    facts = {
        "experiment": experiment,
        "layout": options.layout.text,
        "unchanging": options.unchanging,
        "changeable": options.changeable,
        "controller in use": text(controller),
        **{name: getattr(state.server, name) for name in COUNTS},
        "moving": sorted(state.moving),
        "clients": clients,
        "pending": None if pending is None else pending.seen.as_json(),
    }
    return {name: value.detach().cpu().numpy() for name, value in arrays.items()}, facts


def restored(arrays: Arrays, facts: Facts, options: Options) -> tuple[State, str, Controller[Any]]:
    """The state, the experiment it belongs to, and the controller in use; refused if it was made otherwise."""
    layout, was = options.layout, Layout.read(facts["layout"])
    if (was.shapes, was.tied) != (layout.shapes, layout.tied):
        raise GradsiftError(
            f"the checkpoint is of another model: of {was.dim} weights, not {layout.dim}, or other names"
        )
    types = {f"dtype of {name}": (was.dtypes[name], now) for name, now in layout.dtypes.items()}
    settings = {name: (facts["unchanging"].get(name), now) for name, now in options.unchanging.items()}
    for name, (then, now) in (types | settings).items():
        if then != now:
            raise GradsiftError(f"the checkpoint was made with {name} {then}, not {now}")
    controller = next((each for each in options.controllers if text(each) == facts["controller in use"]), None)
    if controller is None:
        raise GradsiftError(f"the checkpoint was made with k by {facts['controller in use']}, not {options.fixed!r}")
    for name, now in options.changeable.items():
        then = facts["changeable"][name]
        if then != now:
            log(WARNING, "gradsift: %s is now %s; it was %s up to round %d", name, now, then, facts["number"])
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}

    def sparse(name: str) -> Sparse | None:
        if f"{name}/indices" not in tensors:
            return None
        return Sparse(tensors[f"{name}/indices"], tensors[f"{name}/values"], layout.dim)

    before, pending = sparse("before"), None
    if facts["pending"] is not None and before is not None:
        pending = Pending(Observation.from_json(facts["pending"]), before, sparse("probe"))
    state = State(
        Server(tensors["weights"], **{name: facts[name] for name in COUNTS}),
        {name.removeprefix("rest/"): value for name, value in tensors.items() if name.startswith("rest/")},
        tensors["changed"],
        pending,
        {int(number): _client(tensors, number, *about) for number, about in facts["clients"].items()},
        set(facts["moving"]),
    )
    return state, facts["experiment"], controller


def _client(tensors: Named, number: str, version: int, settle: list[Any] | None, can_probe: bool) -> Client:
    if settle is None:
        return Client(version, None, can_probe)
    taken, session, checksum, done = settle
    return Client(version, Settle(taken, session, checksum, tensors[f"kept/{number}"], done), can_probe)
