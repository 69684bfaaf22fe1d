"""The server's state as one file, written after every round, that a new run continues from."""

from pathlib import Path
from typing import Any

from torch import Tensor

from gradsift.control import Controller, Observation, Proposal
from gradsift.errors import GradsiftError
from gradsift.flower import files
from gradsift.flower.layout import Layout
from gradsift.flower.server_state import Client, Pending, Settle, State
from gradsift.sparse import Sparse
from gradsift.sparsify import Sparsifier

KIND = "gradsift server state 1"


def save(
    path: Path, state: State, experiment: str, layout: Layout, sparsifier: Sparsifier, controller: Controller[Any]
) -> None:
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
            settle = [client.settle.number, client.settle.checksum, client.settle.done]
            arrays[f"kept/{number}"] = client.settle.kept
        clients[str(number)] = [client.version, settle, client.can_probe]
    facts = {
        "experiment": experiment,
        "layout": layout.text,
        "sparsifier": repr(sparsifier),
        "controller": repr(controller),
        "control": state.control,
        "number": state.number,
        "offset": state.offset,
        "spent": state.spent,
        "moving": sorted(state.moving),
        "clients": clients,
        "pending": None if pending is None else [list(pending.seen.proposal), *pending.seen[1:]],
    }
    files.save(path, KIND, arrays, facts)


def load(
    path: Path, layout: Layout, sparsifier: Sparsifier, controllers: list[Controller[Any]]
) -> tuple[State, str, Controller[Any]]:
    """The state, the experiment it belongs to, and which of ``controllers`` was in charge."""
    found = files.load(path, KIND)
    if found is None:
        raise GradsiftError(f"there is no checkpoint {path}")
    arrays, facts = found
    if facts["layout"] != layout.text:
        raise GradsiftError(f"checkpoint {path} is of another model")
    if facts["sparsifier"] != repr(sparsifier):
        raise GradsiftError(f"checkpoint {path} was made with {facts['sparsifier']}, not {sparsifier!r}")
    controller = next((each for each in controllers if repr(each) == facts["controller"]), None)
    if controller is None:
        raise GradsiftError(f"checkpoint {path} was made with {facts['controller']}, not {controllers[0]!r}")

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
    return Client(version, Settle(settle[0], settle[1], arrays[f"kept/{number}"], settle[2]), can_probe)
