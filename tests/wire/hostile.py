"""Hostile payloads: valid messages damaged in every way we can think of, and random bytes, thrown at ``decode``.

    python -m tests.wire.hostile 1000000 --seed 1

Whatever comes, ``decode`` must raise ``CodecError`` or return a valid message within its limits. Nine payloads in ten
carry a checksum that matches, so that the damage reaches the decoders behind it.
"""

import argparse
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from gradsift import Sparse, check_tensors
from gradsift.wire import VALUE_TYPES, CodecError, Limits, decode, encode
from tests.wire.messages import INDICES, VALUES, message

MAX_DIM, MAX_ELEMENTS = 5000, 1500
LIMITS = Limits(max_dim=MAX_DIM, max_elements=MAX_ELEMENTS)


def checksummed(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(4, "little")


def corpus(seed: int) -> list[bytes]:
    """Valid messages of every value type, index set and kind of value, small ones and some at the limits."""
    source = np.random.default_rng(seed)
    made = []
    for values in VALUE_TYPES:
        for indices in INDICES:
            for kind in VALUES:
                dim = int(source.choice([1, 2, 9, 60, 300, 1000]))
                k = int(source.choice([0, 1, dim // 20, dim // 3, dim - dim // 20, dim]))
                sparse = message(int(source.integers(2**32)), dim, k, indices, kind)
                # Halved, because float16 and bfloat16 rightly refuse to round the largest float32 up.
                made.append(encode(sparse._replace(values=sparse.values / 2), values=values))
    return made


def _varint(number: int) -> bytes:
    groups = []
    while number >= 128:
        groups.append(number % 128 + 128)
        number //= 128
    return bytes([*groups, number])


def _number(source: np.random.Generator) -> int:
    """Small, near the limits, or huge."""
    bits = int(source.integers(0, 64))
    near = int(source.choice([MAX_DIM, MAX_ELEMENTS, 2**31, 2**32, 2**48, 2**63])) + int(source.integers(-2, 3))
    return near if source.random() < 0.3 else int(source.integers(0, 2**62)) >> (62 - min(bits, 62))


def damage(source: np.random.Generator, content: bytearray, others: list[bytes]) -> bytearray:
    """One act of damage to a message without its checksum."""
    way = source.integers(0, 11)
    place = int(source.integers(0, len(content) + 1)) if source.random() < 0.5 else int(source.integers(0, 40))
    place = min(place if source.random() < 0.1 else max(place, 7), len(content))  # magic, version and type seldom
    if way <= 2 and content:
        content[place - 1] ^= 1 << int(source.integers(8))
    elif way == 3 and content:
        content[place - 1] = int(source.choice([0, 1, 2, 3, 127, 128, 254, 255, int(source.integers(256))]))
    elif way == 4:
        del content[place:]
    elif way == 5:
        content += source.bytes(int(source.integers(1, 40)))
    elif way == 6:
        content[place:place] = source.bytes(int(source.integers(1, 9)))
    elif way == 7:
        del content[place : place + int(source.integers(1, 9))]
    elif way == 8:
        other = others[int(source.integers(len(others)))][:-4]
        content[place:] = other[int(source.integers(0, len(other) + 1)) if source.random() < 0.5 else place :]
    elif way == 9:  # another dim and count
        tail = content[place:]
        content[6:] = _varint(_number(source)) + _varint(_number(source)) + tail
    else:
        length = int(source.integers(1, 30))
        content[place : place + length] = source.bytes(1) * length
    return content


def payloads(seed: int, count: int) -> Iterator[bytes]:
    """``count`` payloads, the same for the same seed."""
    source = np.random.default_rng(seed)
    valid = corpus(seed)
    for _ in range(count):
        if source.random() < 0.1:
            content = bytearray(source.bytes(int(source.integers(0, 200))))
            if source.random() < 0.7:  # a plausible header before it
                dim = int(source.integers(1, MAX_DIM + 1))
                header = b"GSFT\x01" + bytes([int(source.integers(1, 6))])
                content[:0] = header + _varint(dim) + _varint(int(source.integers(0, min(dim, 64) + 1)))
        else:
            content = bytearray(valid[int(source.integers(len(valid)))][:-4])
            for _ in range(int(source.integers(1, 4))):
                content = damage(source, content, valid)
        yield checksummed(bytes(content)) if source.random() < 0.9 else bytes(content)


def valid(sparse: Sparse, limits: Limits) -> None:
    """Raises unless this is a message that ``decode`` may return under these limits."""
    check_tensors.sparse("decoded", sparse, rows=False)
    if not (1 <= sparse.dim <= limits.max_dim and sparse.size <= limits.max_elements):
        raise AssertionError(f"beyond the limits: {sparse.dim}, {sparse.size}")
    if not bool((sparse.indices.diff() > 0).all()):
        raise AssertionError("not ascending")
    if sparse.values.dtype not in (torch.float32, torch.float64):
        raise AssertionError(f"values are {sparse.values.dtype}")


def attempt(data: bytes) -> str | None:
    """Why ``decode`` refused it, or None if it returned a valid message; anything else raises."""
    try:
        sparse = decode(data, LIMITS)
    except CodecError as refused:
        return str(refused)
    valid(sparse, LIMITS)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reasons: Counter[str] = Counter()
    slowest = 0.0
    started = time.perf_counter()
    for data in payloads(options.seed, options.count):
        before = time.thread_time()
        try:
            reason = attempt(data)
        except BaseException:
            print(f"the payload: {data.hex()}")
            raise
        slowest = max(slowest, time.thread_time() - before)
        reasons["".join("#" if c.isdigit() else c for c in reason or "accepted")[:40]] += 1
    for name, count in reasons.most_common(40):
        print(f"{count:9d}  {name}")
    print(f"{options.count} payloads in {time.perf_counter() - started:.0f} s, the slowest {1e3 * slowest:.1f} ms")


if __name__ == "__main__":
    main()
