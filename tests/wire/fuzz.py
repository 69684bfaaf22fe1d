"""Coverage-guided fuzzing of ``decode``, by hand: ``pip install atheris``, then

    python -m tests.wire.fuzz -max_total_time=600

Every input gets a valid checksum, so that it reaches the decoders behind it; what they return must be a valid message.
"""

import sys

import atheris

with atheris.instrument_imports(include=["gradsift.wire"]):
    from gradsift.wire import CodecError, Limits, decode

from tests.wire import hostile

LIMITS = Limits(max_dim=100_000, max_elements=10_000)


def one_input(data: bytes) -> None:
    for message in (data, hostile.checksummed(data)):
        try:
            sparse = decode(message, LIMITS)
        except CodecError:
            continue
        hostile.valid(sparse, LIMITS)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
