"""The server's state as one file, written after every round, that a new run continues from."""

from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.supercore import log
from torch import Tensor

from gradsift.control import Controller, Observation, Proposal
from gradsift.errors import GradsiftError
from gradsift.flower import files
from gradsift.flower.layout import Layout
from gradsift.flower.options import Options, said
from gradsift.flower.server_state import Client, Pending, Settle, State
from gradsift.sparse import Sparse

KIND = "gradsift server state 2"


def save(path: Path, state: State, experiment: str, options: Options, controller: Controller[Any]) -> None:
    """Write everything that a new run needs."""
    arrays = {"weights": state.weights, "changed": state.changed}
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
        "fixed": options.fixed_for_good,
        "may change": options.may_change,
        "in charge": said(controller),
        "control": state.control,
        "number": state.number,
        "offset": state.offset,
        "spent": state.spent,
        "moving": sorted(state.moving),
        "clients": clients,
        "pending": None if pending is None else [list(pending.seen.proposal), *pending.seen[1:]],
    }
    files.save(path, KIND, arrays, facts)


def load(path: Path, options: Options) -> tuple[State, str, Controller[Any]]:
    """The state, the experiment it belongs to, and the controller in charge; refused if it was made otherwise."""
    found = files.load(path, KIND)
    if found is None:
        raise GradsiftError(f"there is no checkpoint {path}")
    arrays, facts = found
    layout, was = options.layout, Layout.read(facts["layout"])
    if (was.shapes, was.tied) != (layout.shapes, layout.tied):
        raise GradsiftError(
            f"checkpoint {path} is of another model: of {was.dim} weights, not {layout.dim}, or other names"
        )
    types = {f"dtype of {name}": (was.dtypes[name], now) for name, now in layout.dtypes.items()}
    fixed = {name: (facts["fixed"][name], now) for name, now in options.fixed_for_good.items()}
    for name, (then, now) in (types | fixed).items():
        if then != now:
            raise GradsiftError(f"checkpoint {path} was made with {name} {then}, not {now}")
    controller = next((each for each in options.controllers if said(each) == facts["in charge"]), None)
    if controller is None:
        raise GradsiftError(f"checkpoint {path} was made with k by {facts['in charge']}, not {options.fixed!r}")
    for name, now in options.may_change.items():
        then = facts["may change"][name]
        if then != now:
            log(WARNING, "gradsift: %s is now %s; it was %s up to round %d", name, now, then, facts["number"])

    def sparse(name: str) -> Sparse | None:
        if f"{name}/indices" not in arrays:
            return None
        return Sparse(arrays[f"{name}/indices"], arrays[f"{name}/values"], layout.dim)

    before, pending = sparse("before"), None
    if facts["pending"] is not None and before is not None:
        seen = Observation(Proposal(*facts["pending"][0]), *facts["pending"][1:])
        pending = Pending(seen, before, sparse("probe"))
    state = State(
        weights=arrays["weights"],
        rest={name.removeprefix("rest/"): value for name, value in arrays.items() if name.startswith("rest/")},
        changed=arrays["changed"],
        control=facts["control"],
        number=facts["number"],
        offset=facts["offset"],
        spent=facts["spent"],
        pending=pending,
        clients={int(number): _client(arrays, number, *about) for number, about in facts["clients"].items()},
        moving=set(facts["moving"]),
    )
    return state, facts["experiment"], controller


def _client(arrays: dict[str, Tensor], number: str, version: int, settle: list[Any] | None, can_probe: bool) -> Client:
    if settle is None:
        return Client(version, None, can_probe)
    taken, session, checksum, done = settle
    return Client(version, Settle(taken, session, checksum, arrays[f"kept/{number}"], done), can_probe)
