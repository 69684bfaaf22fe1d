"""What server and clients say to each other: two flat records of plain fields, checked one by one when read.

Sparse vectors travel in the wire format, as absolute weights: whoever sets them holds the server's bits on any
hardware, and to set them twice does no harm.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from gradsift.control import Proposal
from gradsift.control.fixed import Fixed
from gradsift.errors import GradsiftError
from gradsift.local import local_computation
from gradsift.method import Method
from gradsift.round import Plan
from gradsift.sparsify import Round, sparsifier
from gradsift.values import value_type

PROTOCOL = 3
RECORD = "gradsift"  # the key of an Order or a Report in a message
FULL = "gradsift-full"  # ArrayRecord: the flat weights, and the rest of a state_dict
BUFFERS = "gradsift-buffers"  # ArrayRecord: the entries of the rest that change in training
GRADIENT = "gradient"  # ArrayRecord: what a train function may return instead of new weights
NEVER = -1  # the version of a client that has none

T = TypeVar("T", "Order", "Report")


@dataclass(frozen=True)
class Order:
    """From the server to one client. First it catches up and settles, then it acts."""

    act: str  # "hello", "train", "evaluate", or "probe": take the losses only
    experiment: str  # the same over all runs that continue from each other
    session: str  # one run
    number: int  # the round, from 1
    version: int = NEVER  # of the weights that the client shall hold: so many rounds are in them
    checksum: int = 0  # of those weights
    base: int = NEVER  # ``change`` brings any version from this one on up to date; NEVER: everything is here
    layout: str = ""
    change: bytes = b""
    settle_number: int = 0  # the round of the client's last merged upload
    settle_session: str = ""  # and the run
    settle_checksum: int = 0  # of that upload
    settled: bool = False  # the client has said that it settled it
    kept: bytes = b""  # if not: which of its elements were kept; left out where they are those of ``change``
    losses: bool = False  # take those of the last round: before it, after it, and as it would have been at k'
    before: bytes = b""  # left out where the client still holds it
    probe: bytes = b""
    slots: str = ""  # the names and options of local computation, sparsifier and value type, as JSON
    k: int = 1
    seed: int = 0
    offset: int = 0
    lr: float = 1.0
    steps_before: int = 0  # gradients that a client that took part in all rounds has computed before this one
    exchange: bool = True  # whether an upload is due
    buffers: str = "refuse"
    arrays_key: str = "arrays"  # the names of the records that the client's own functions are given
    config_key: str = "config"

    def method(self) -> Method:
        """The slots that a client fills; those of the server, which it never asks, are filled with anything."""
        names: dict[str, tuple[str, dict[str, Any]]] = json.loads(self.slots)
        made = {slot: _MAKE[slot](name, **options) for slot, (name, options) in names.items()}
        return Method.of(**made, controller=Fixed(1))

    def plan(self, method: Method) -> Plan:
        """The round as the client is to follow it."""
        rnd = Round(self.number, self.k, self.seed, self.offset)
        proposal, steps = Proposal(self.number, self.k), method.local.computations
        return Plan(rnd, proposal, None, self.lr, self.number, steps, self.steps_before, self.exchange, None)


_MAKE: dict[str, Callable[..., Any]] = {
    "local": local_computation,
    "sparsifier": sparsifier,
    "values": value_type,
}


def client_slots(method: Method) -> str:
    """What ``Order.slots`` holds: the slots of a method that its clients fill."""
    parts = {slot: getattr(method, slot) for slot in _MAKE}
    return json.dumps({slot: (part.name, vars(part) if is_dataclass(part) else {}) for slot, part in parts.items()})


@dataclass(frozen=True)
class Report:
    """From one client to the server."""

    client: str
    session: str
    number: int
    version: int  # of the weights it holds
    checksum: int
    settled: int  # checksum of the upload it settled last
    can_probe: bool
    behind: bool = False  # it could not follow the order, and did nothing: it needs what it missed
    reset: bool = False  # it had to give up its residual
    upload: bytes = b""
    losses: tuple[float, ...] = ()


def write(what: Order | Report) -> ConfigRecord:
    """As a record; what is empty is left out, since Flower cannot count the bytes of nothing."""
    record = ConfigRecord({"protocol": PROTOCOL})
    for field in fields(what):
        value = getattr(what, field.name)
        if value != b"" and value != "" and value != ():
            record[field.name] = list(value) if isinstance(value, tuple) else value
    return record


def read(kind: type[T], record: Any) -> T:
    """The order or report in a record; anything else is refused with the field's name."""
    if not isinstance(record, ConfigRecord):
        raise GradsiftError(f"the message has no ConfigRecord {RECORD!r}")
    if record.get("protocol") != PROTOCOL:
        raise GradsiftError(f"protocol {record.get('protocol')!r} is not {PROTOCOL}: both sides need the same gradsift")
    wanted = {field.name: field for field in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in record.items():
        if name == "protocol":
            continue
        if name not in wanted:
            raise GradsiftError(f"unknown field {name!r}")
        values[name] = _checked(name, value, wanted[name].type)
    try:
        return kind(**values)
    except TypeError as problem:
        raise GradsiftError(f"a field is missing: {problem}") from problem


def _checked(name: str, value: Any, expected: Any) -> Any:
    if expected == tuple[float, ...]:
        if not isinstance(value, list) or not all(type(each) is float for each in value):
            raise GradsiftError(f"{name} must be a list of numbers, got {value!r:.80}")
        return tuple(value)
    if type(value) is not expected:
        raise GradsiftError(f"{name} must be {expected.__name__}, got {value!r:.80}")
    return value


def checksum(weights: Tensor) -> int:
    """CRC-32 of the bits of a flat vector."""
    return zlib.crc32(weights.contiguous().numpy().data)


def upload_checksum(session: str, number: int, upload: bytes) -> int:
    """CRC-32 of an upload and of when it was made: two that are alike, of two rounds, are not the same upload."""
    return zlib.crc32(upload, zlib.crc32(f"{session} {number}".encode()))


def pack(mask: Tensor) -> bytes:
    """A mask as bytes."""
    return zlib.compress(np.packbits(mask.numpy()).tobytes(), 1)


def unpack(data: bytes, count: int) -> Tensor:
    """The mask of ``count`` elements that ``pack`` made."""
    size = -(-count // 8)
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(data, size + 1)
    except zlib.error as problem:
        raise GradsiftError(f"not a mask: {problem}") from problem
    if len(raw) != size or not unpacker.eof:
        raise GradsiftError(f"a mask of {count} elements takes {size} bytes, got {len(raw)}")
    return torch.from_numpy(np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(np.bool_))


def payload(content: RecordDict) -> int:
    """The bytes of a message that are ours: without the user's own records and Flower's envelope."""
    total = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    order = content.config_records.get(RECORD, ConfigRecord())
    # Not Flower's own count, which fails on an empty value: a stranger may send one.
    return total + sum(len(name) + _size(value) for name, value in order.items())


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(_size(each) for each in value)
    return len(value) if isinstance(value, str | bytes) else 8
