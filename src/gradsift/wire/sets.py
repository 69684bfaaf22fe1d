"""Subsets of range(total): the indices of a message, and which of its values are negative.

Three ways, and the encoder takes the smallest: a bitmap; the gaps between members, or between absent ones where those
are fewer; the lengths of the runs of absent and present, in turn, for sets that come in clusters.
"""

import numpy as np

from gradsift.wire import integers
from gradsift.wire.bits import Ints, Mask, Reader, byte_count, pack_bits, varint
from gradsift.wire.errors import CodecError
from gradsift.wire.huffman import Part

BITMAP, GAPS, RUNS = 0, 1, 2  # RUNS + 1: the first run is present

# Beyond these runs cannot be the smallest, and are not tried: runs for each member, and changes for each bit.
_CLUSTERED = 0.7
_STEADY = 0.45


def plan_indices(indices: Ints, total: int) -> Part:
    """The part that holds ascending ``indices``; nothing at all if there are none or all, which their number says."""
    if len(indices) in (0, total):
        return Part(0, bytes)
    best = _plan_gaps(indices, total)
    breaks = (indices[1:] - indices[:-1] > 1).nonzero()[0]
    if len(breaks) < _CLUSTERED * min(len(indices), total - len(indices)):
        starts, ends = indices.take(breaks + 1), indices.take(breaks) + 1
        inner = np.stack([ends, starts], axis=1).reshape(-1)
        best = min(best, _plan_runs(np.concatenate([indices[:1], inner, indices[-1:] + 1]), total), key=_size)
    return best if best.size <= 1 + byte_count(total) else _plan_bitmap(_mask(indices, total))


def plan_mask(mask: Mask) -> Part:
    """The part that holds a mask; nothing for an empty one."""
    if not len(mask):
        return Part(0, bytes)
    bitmap = _plan_bitmap(mask)
    bounds = (mask[1:] != mask[:-1]).nonzero()[0] + 1
    if len(bounds) > _STEADY * len(mask):
        return bitmap
    if mask[0]:
        bounds = np.concatenate([[0], bounds])
    return min(_plan_runs(bounds, len(mask)), bitmap, key=_size)


def read_indices(reader: Reader, count: int, total: int) -> Ints:
    """``count`` ascending indices in range(total)."""
    if count == 0:
        return np.zeros(0, np.int64)
    if count == total:
        return np.arange(total)
    mode = reader.byte()
    if mode == BITMAP:
        bits = reader.bits(total)
        _check_members(int(np.count_nonzero(bits)), count)  # before the indices of more than were announced are made
        return bits.nonzero()[0]
    if mode == GAPS:
        return _read_gaps(reader, count, total)
    starts, lengths = _present(mode, _read_runs(reader, mode, total, most=2 * count))
    _check_members(int(lengths.sum()), count)
    # Within a run each index is one more than the last: an arange, moved by where the run starts.
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(count)


def read_mask(reader: Reader, total: int) -> Mask:
    """A mask of ``total`` bits."""
    if not total:
        return np.zeros(0, np.bool_)
    mode = reader.byte()
    if mode == BITMAP:
        return reader.bits(total).view(np.bool_)
    lengths = _read_runs(reader, mode, total, most=total)
    return np.repeat(np.arange(mode - RUNS, mode - RUNS + len(lengths)) % 2 == 1, lengths)


def _size(part: Part) -> int:
    return part.size


def _mask(indices: Ints, total: int) -> Mask:
    mask = np.zeros(total, np.bool_)
    mask[indices] = True
    return mask


def _check_members(members: int, count: int) -> None:
    if members != count:
        raise CodecError(f"the index set holds {members} elements, not {count}")


def _plan_bitmap(mask: Mask) -> Part:
    return Part(1 + byte_count(len(mask)), lambda: bytes([BITMAP]) + pack_bits(mask))


def _plan_gaps(indices: Ints, total: int) -> Part:
    if 2 * len(indices) > total:
        indices = (~_mask(indices, total)).nonzero()[0]
    steps = indices.copy()
    steps[1:] -= indices[:-1] + 1
    gaps = integers.plan(steps)
    return Part(1 + gaps.size, lambda: bytes([GAPS]) + gaps.write())


def _read_gaps(reader: Reader, count: int, total: int) -> Ints:
    present = 2 * count <= total
    members = count if present else total - count
    indices = np.cumsum(integers.read(reader, members, total - members) + 1) - 1
    return indices if present else (~_mask(indices, total)).nonzero()[0]


def _plan_runs(bounds: Ints, total: int) -> Part:
    """``bounds``: where the members begin, end, begin again, ...; the length of the last run is what is left."""
    first = 0
    if len(bounds) and bounds[0] == 0:
        first, bounds = 1, bounds[1:]
    if len(bounds) and bounds[-1] == total:
        bounds = bounds[:-1]
    header = bytes([RUNS + first]) + varint(len(bounds))
    if not len(bounds):
        return Part(len(header), lambda: header)
    less_one = bounds - 1
    less_one[1:] -= bounds[:-1]
    lengths = integers.plan(less_one)
    return Part(len(header) + lengths.size, lambda: header + lengths.write())


def _read_runs(reader: Reader, mode: int, total: int, most: int) -> Ints:
    """The lengths of all runs, at least 1 each, ``total`` together; at most ``most`` of them, and the last."""
    if mode not in (RUNS, RUNS + 1):
        raise CodecError(f"set mode {mode} is unknown")
    coded = reader.varint()
    if coded >= total or coded > most:
        raise CodecError(f"{coded + 1} runs are more than the set can have")
    if not coded:
        return np.array([total])
    lengths = integers.read(reader, coded, total - 1 - coded) + 1
    return np.append(lengths, total - int(lengths.sum()))


def _present(mode: int, lengths: Ints) -> tuple[Ints, Ints]:
    """Starts and lengths of the runs of members."""
    starts = np.cumsum(lengths) - lengths
    skip = RUNS + 1 - mode
    return starts[skip::2], lengths[skip::2]
