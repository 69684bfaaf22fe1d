"""The ways that a round takes through memory, taken on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gradsift import sparse
from gradsift.simulation import memory

WAYS = ("plain", "queued", "queued, long rows", "streamed", "streamed, merged on the host")


@contextmanager
def going(way: str) -> Iterator[None]:
    """As it is on the CPU, as it is queued on CUDA, and with residuals that the device has no room for."""
    with pytest.MonkeyPatch.context() as patch:
        if "queued" in way:
            patch.setattr(sparse, "queued", lambda _: True)
        if "long rows" in way:
            patch.setattr(sparse, "_LONG_ROW", 1)
        if "streamed" in way:
            patch.setattr(memory, "must_stream", lambda *_, **__: True)
        if "merged on the host" in way:
            patch.setattr(memory, "free_bytes", lambda _: 0)
        yield
