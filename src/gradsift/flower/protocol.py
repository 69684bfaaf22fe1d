"""The messages between server and clients: two flat records, whose fields are checked one by one when they are read.

Sparse vectors travel in the wire format. With a plain step they are new values of weights: a client that sets them
holds the server's bits on any hardware, and setting them twice does no harm. Otherwise they are the updates of single
rounds, as the server rounded them: a client makes the server's step of each of them, once.
"""

import functools
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
from gradsift.round import Named, Plan
from gradsift.server_step import server_optimizer
from gradsift.sparsify import Round, sparsifier
from gradsift.values import value_type

PROTOCOL = 6
RECORD = "gradsift"  # the key of an Order or a Report in a message
FULL = "gradsift-full"  # ArrayRecord: the flat weights, the server optimizer's memory, the non-trainable entries
BUFFERS = "gradsift-buffers"  # ArrayRecord: the non-trainable entries that change in training
GRADIENT = "gradient"  # ArrayRecord: what a train function may return instead of new weights
NEVER = -1  # the version of a client that holds no weights

T = TypeVar("T", "Order", "Report")
LISTS: dict[Any, tuple[type, str]] = {tuple[float, ...]: (float, "numbers"), tuple[bytes, ...]: (bytes, "bytes")}


@dataclass(frozen=True)
class Order:
    """A message from the server to one client, which first updates its weights, then settles, then does ``act``."""

    act: str  # "hello", "train", "evaluate", or "probe", which takes the losses only
    experiment: str  # shared by all servers that continue the same run
    session: str  # a random name, new whenever a server starts or resumes
    number: int  # the round, from 1
    version: int = NEVER  # of the weights that the client must have: the number of rounds in them
    checksum: int = 0  # of those weights, and of the server optimizer's memory
    base: int = NEVER  # the oldest version that this order can update; NEVER if the message has the full weights
    layout: str = ""  # sent with the full weights
    change: bytes = b""  # with a plain step: the weights that have changed since ``base``
    updates: tuple[bytes, ...] = ()  # otherwise: the updates of all rounds since ``base``, in their order
    settle_number: int = 0  # the round of the client's last merged upload
    settle_session: str = ""  # the session of that upload
    settle_checksum: int = 0  # of that upload
    settled: bool = False  # whether the client has reported that it settled that upload
    kept: bytes = b""  # which of its elements were kept, unless it is settled or they are those of the change
    losses: bool = False  # whether to compute the losses before the last round, after it, and at k'
    before: bytes = b""  # the weights before that round, unless the client still holds them
    probe: bytes = b""  # the weights at k'
    weigh: bool = False  # whether to report ``mass`` and ``left``
    slots: str = ""  # the names and options of the parts in ``CLIENT_SLOTS``, as JSON
    k: int = 1
    seed: int = 0
    offset: int = 0
    lr: float = 1.0
    steps_before: int = 0  # gradients that a client has computed by now if it took part in all rounds
    exchange: bool = True  # whether the client is to upload
    last_exchange: int = 0  # the last round with an exchange that the server has completed; 0 if there is none
    buffers: str = "refuse"
    arrays_key: str = "arrays"  # the names of the records for the client's own functions
    config_key: str = "config"

    def method(self) -> Method:
        """The client's part of the method; its other slots hold placeholders."""
        names: dict[str, tuple[str, dict[str, Any]]] = json.loads(self.slots)
        slots = {slot: CLIENT_SLOTS[slot](name, **options) for slot, (name, options) in names.items()}
        return Method.of(**slots, controller=Fixed(1))

    def plan(self, method: Method) -> Plan:
        """The plan of the round for this client."""
        return Plan(
            rnd=Round(self.number, self.k, self.seed, self.offset),
            proposal=Proposal(self.number, self.k),
            probe_k=None,
            lr=self.lr,
            period_start=self.number,
            steps=method.local.computations,
            steps_before=self.steps_before,
            exchange=self.exchange,
            search_interval=None,
        )


CLIENT_SLOTS: dict[str, Callable[..., Any]]
CLIENT_SLOTS = {"local": local_computation, "sparsifier": sparsifier, "values": value_type, "server": server_optimizer}


def client_slots(method: Method) -> str:
    """The slots of a method that its clients use, as ``Order.slots`` holds them."""
    parts = {slot: getattr(method, slot) for slot in CLIENT_SLOTS}
    return json.dumps({slot: (part.name, vars(part) if is_dataclass(part) else {}) for slot, part in parts.items()})


@dataclass(frozen=True)
class Report:
    """A message from one client to the server."""

    client: str
    session: str  # of the order
    number: int  # of the order
    version: int  # of the weights that the client holds
    checksum: int  # of those weights, and of the server optimizer's memory
    settled: int  # checksum of the upload that the client settled last
    can_probe: bool
    behind: bool = False  # whether it could not follow the order because it has missed something
    reset: bool = False  # whether it had to discard its residual
    upload: bytes = b""
    losses: tuple[float, ...] = ()
    mass: float = 0.0  # the sum of the absolute values of its residual before this upload
    left: tuple[float, ...] = ()  # the product of its settled residual with the last step or update, if it knows it


def write(message: Order | Report) -> ConfigRecord:
    """The message as a record, without its empty values, whose bytes Flower cannot count."""
    record = ConfigRecord({"protocol": PROTOCOL})
    for name, value in vars(message).items():
        if value not in (b"", "", ()):
            record[name] = list(value) if isinstance(value, tuple) else value
    return record


def read(kind: type[T], record: Any) -> T:
    """The order or report in a record; anything else is refused with the field's name."""
    if not isinstance(record, ConfigRecord):
        raise GradsiftError(f"the message has no ConfigRecord {RECORD!r}")
    values: dict[str, Any] = dict(record)
    protocol = values.pop("protocol", None)
    if protocol != PROTOCOL:
        raise GradsiftError(f"protocol {protocol!r} is not {PROTOCOL}: both sides need the same gradsift")
    types = {field.name: field.type for field in fields(kind)}
    for name, value in values.items():
        if name not in types:
            raise GradsiftError(f"unknown field {name!r}")
        values[name] = _checked(name, value, types[name])
    try:
        return kind(**values)
    except TypeError as problem:
        raise GradsiftError(f"a field is missing: {problem}") from problem


def _checked(name: str, value: Any, expected: Any) -> Any:
    if expected in LISTS:
        kind, plural = LISTS[expected]
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise GradsiftError(f"{name} must be a list of {plural}, got {value!r:.80}")
        return tuple(value)
    if type(value) is not expected:
        raise GradsiftError(f"{name} must be {expected.__name__}, got {value!r:.80}")
    return value


def checksum(weights: Tensor, memory: Named | None = None) -> int:
    """CRC-32 of the bits of the flat weights, and of the vectors in a server optimizer's memory."""
    vectors = [weights, *(vector for _, vector in sorted((memory or {}).items()))]
    return functools.reduce(lambda crc, vector: zlib.crc32(vector.contiguous().numpy().data, crc), vectors, 0)


def upload_checksum(session: str, number: int, upload: bytes) -> int:
    """CRC-32 of an upload with its session and round, so that equal uploads of two rounds differ."""
    return zlib.crc32(upload, zlib.crc32(f"{session} {number}".encode()))


def pack(mask: Tensor) -> bytes:
    """A bool mask as compressed bytes."""
    return zlib.compress(np.packbits(mask.numpy()).tobytes(), 1)


def unpack(data: bytes, count: int) -> Tensor:
    """The mask of ``count`` elements that ``pack`` was given."""
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
    """The size in bytes of gradsift's part of a message, without the user's own records and Flower's envelope."""
    total = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    order = content.config_records.get(RECORD, ConfigRecord())
    # Flower's own count fails on an empty value, which any client may send.
    return total + sum(len(name) + _size(value) for name, value in order.items())


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 8
