"""Code subsets of range(total): the indices of a message, and which of its values are negative.

There are three modes, and the encoder takes the smallest: a bitmap; the gaps between members, or between non-members if
those are fewer; the lengths of the alternating runs of non-members and members, for clustered sets.
"""

from operator import attrgetter

import numpy as np

from gradsift.wire import integers
from gradsift.wire.bits import CodecError, Ints, Mask, Part, Reader, byte_count, pack_bits, varint, varint_sizes

BITMAP, GAPS, RUNS = 0, 1, 2  # modes; RUNS + 1 means that the first run is of members

# Runs are tried only below these ratios, because above them another mode is smaller.
_MAX_BREAKS_PER_MEMBER = 0.7
_MAX_CHANGES_PER_BIT = 0.45


def plan_indices(indices: Ints, total: int) -> Part:
    """Prepare to write ascending ``indices``; the empty and the full set take no bytes, as their count is known."""
    if len(indices) in (0, total):
        return Part(0, bytes)
    best = _plan_gaps(indices, total)
    breaks = (indices[1:] - indices[:-1] > 1).nonzero()[0]
    if len(breaks) < _MAX_BREAKS_PER_MEMBER * min(len(indices), total - len(indices)):
        starts, ends = indices.take(breaks + 1), indices.take(breaks) + 1
        inner = np.stack([ends, starts], axis=1).reshape(-1)
        best = min(
            best, _plan_runs(np.concatenate([indices[:1], inner, indices[-1:] + 1]), total), key=attrgetter("size")
        )
    return best if best.size <= 1 + byte_count(total) else _plan_bitmap(_mask(indices, total))


def indices_sizes(gaps: Ints, runs: Ints, coded: Ints, breaks: Ints, count: int, total: int) -> Ints:
    """Return the sizes of sets [N] of ``count`` indices, at most half of ``total``.

    ``gaps`` and ``runs`` are the sizes of the gaps and of the lengths of ``coded`` runs minus one, as integers;
    ``breaks`` of the indices do not follow their neighbour.
    """
    few = breaks < _MAX_BREAKS_PER_MEMBER * count
    best = np.where(few, np.minimum(gaps, _runs_sizes(runs, coded)), gaps)
    return 1 + np.minimum(best, byte_count(total))


def mask_sizes(runs: Ints, coded: Ints, total: int) -> Ints:
    """Return the sizes of masks [N] of ``total`` bits; ``runs`` and ``coded`` as in ``indices_sizes``."""
    few = coded <= _MAX_CHANGES_PER_BIT * total
    return 1 + np.where(few, np.minimum(_runs_sizes(runs, coded), byte_count(total)), byte_count(total))


def _runs_sizes(runs: Ints, coded: Ints) -> Ints:
    return varint_sizes(coded) + np.where(coded, runs, 0)


def plan_mask(mask: Mask) -> Part:
    """Prepare to write a mask; an empty one takes no bytes."""
    if not len(mask):
        return Part(0, bytes)
    bitmap = _plan_bitmap(mask)
    bounds = (mask[1:] != mask[:-1]).nonzero()[0] + 1
    if len(bounds) > _MAX_CHANGES_PER_BIT * len(mask):
        return bitmap
    if mask[0]:
        bounds = np.concatenate([[0], bounds])
    return min(_plan_runs(bounds, len(mask)), bitmap, key=attrgetter("size"))


def read_indices(reader: Reader, count: int, total: int) -> Ints:
    """Read ``count`` ascending indices in range(total)."""
    if count == 0:
        return np.zeros(0, np.int64)
    if count == total:
        return np.arange(total)
    mode = reader.byte()
    if mode == BITMAP:
        bits = reader.bits(total)
        _check_members(int(np.count_nonzero(bits)), count)  # before memory is allocated for their indices
        return bits.nonzero()[0]
    if mode == GAPS:
        return _read_gaps(reader, count, total)
    runs = _read_runs(reader, mode, total, most=2 * count)
    members = slice(RUNS + 1 - mode, None, 2)
    starts, lengths = (np.cumsum(runs) - runs)[members], runs[members]
    _check_members(int(lengths.sum()), count)
    # Within a run the indices are consecutive: those of one arange, shifted to the start of the run.
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(count)


def read_mask(reader: Reader, total: int) -> Mask:
    """Read a mask of ``total`` bits."""
    if not total:
        return np.zeros(0, np.bool_)
    mode = reader.byte()
    if mode == BITMAP:
        return reader.bits(total).view(np.bool_)
    lengths = _read_runs(reader, mode, total, most=total)
    return np.repeat(np.arange(mode - RUNS, mode - RUNS + len(lengths)) % 2 == 1, lengths)


def _mask(indices: Ints, total: int) -> Mask:
    mask = np.zeros(total, np.bool_)
    mask[indices] = True
    return mask


def _check_members(members: int, count: int) -> None:
    if members != count:
        raise CodecError(f"the index set holds {members} elements, the header says {count}")


def _plan_bitmap(mask: Mask) -> Part:
    return Part(1 + byte_count(len(mask)), lambda: bytes([BITMAP]) + pack_bits(mask))


def _plan_gaps(indices: Ints, total: int) -> Part:
    if 2 * len(indices) > total:
        indices = (~_mask(indices, total)).nonzero()[0]
    gaps = integers.plan(np.diff(indices, prepend=-1) - 1)
    return Part(1 + gaps.size, lambda: bytes([GAPS]) + gaps.write())


def _read_gaps(reader: Reader, count: int, total: int) -> Ints:
    present = 2 * count <= total
    members = count if present else total - count
    indices = np.cumsum(integers.read(reader, members, total - members) + 1) - 1
    return indices if present else (~_mask(indices, total)).nonzero()[0]


def _plan_runs(bounds: Ints, total: int) -> Part:
    """Prepare to write runs, given where members begin, end, begin again, ...; the last run ends at ``total``."""
    first = 0
    if len(bounds) and bounds[0] == 0:
        first, bounds = 1, bounds[1:]
    if len(bounds) and bounds[-1] == total:
        bounds = bounds[:-1]
    header = bytes([RUNS + first]) + varint(len(bounds))
    if not len(bounds):
        return Part(len(header), lambda: header)
    lengths = integers.plan(np.diff(bounds, prepend=0) - 1)
    return Part(len(header) + lengths.size, lambda: header + lengths.write())


def _read_runs(reader: Reader, mode: int, total: int, most: int) -> Ints:
    """Read the lengths of all runs: at most ``most`` + 1 of them, at least 1 each, together ``total``."""
    if mode not in (RUNS, RUNS + 1):
        raise CodecError(f"set mode {mode} is unknown")
    coded = reader.varint()
    if coded >= total or coded > most:
        raise CodecError(f"{coded + 1} runs are more than the set can have")
    if not coded:
        return np.array([total])
    lengths = integers.read(reader, coded, total - 1 - coded) + 1
    return np.append(lengths, total - int(lengths.sum()))
