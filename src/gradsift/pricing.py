"""The traffic of a round at any k, estimated before anything is sent: a cost model makes it the price of k."""

from gradsift.cost import Traffic
from gradsift.wire import expected_size


def expected_traffic(
    dim: int, k: float, *, clients: int, encoded_bytes: bool = True, values: str = "float32"
) -> Traffic:
    """A round in which every client sends and receives k of ``dim`` elements, for any real k from 1 to ``dim``.

    Uploads have ``values`` of this type of the wire format. Without ``encoded_bytes`` an element takes 8 bytes.
    """
    if not encoded_bytes:
        return Traffic.of(dim, k, k, clients=clients)
    up, down = expected_size(dim, k, values=values), expected_size(dim, k)
    return Traffic.of(dim, k, k, clients=clients, up_bytes=up, down_bytes=down)
