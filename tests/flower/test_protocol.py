"""Orders and reports as records, masks as bytes, checksums."""

import pytest
import torch
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from gradsift import GradsiftError
from gradsift.flower.protocol import Order, Report, checksum, pack, read, unpack, upload_checksum, write

NUMBERS = st.integers(-(2**63), 2**63 - 1)
REPORTS = st.builds(
    Report,
    client=st.text(min_size=1),
    session=st.text(min_size=1),
    number=NUMBERS,
    version=NUMBERS,
    checksum=NUMBERS,
    settled=NUMBERS,
    can_probe=st.booleans(),
    behind=st.booleans(),
    reset=st.booleans(),
    upload=st.binary(),
    losses=st.lists(st.floats(allow_nan=False)).map(tuple),
)


@given(REPORTS)
def test_a_report_is_read_as_it_was_written(report: Report) -> None:
    record = write(report)
    assert read(Report, ConfigRecord.inflate(record.deflate())) == report
    assert record.count_bytes() > 0


@given(st.text(min_size=1), st.text(min_size=1), st.binary(), st.floats(allow_nan=False), st.booleans())
def test_an_order_is_read_as_it_was_written(act: str, session: str, change: bytes, lr: float, losses: bool) -> None:
    order = Order(act, "e", session, 3, change=change, lr=lr, losses=losses)
    assert read(Order, ConfigRecord.inflate(write(order).deflate())) == order


@pytest.mark.parametrize("record", [None, ConfigRecord(), ConfigRecord({"protocol": 2}), ConfigRecord({"protocol": 1})])
def test_what_is_no_report_is_refused(record: object) -> None:
    with pytest.raises(GradsiftError):
        read(Report, record)


@given(st.lists(st.booleans()))
def test_a_mask_is_unpacked_as_it_was_packed(bits: list[bool]) -> None:
    mask = torch.tensor(bits, dtype=torch.bool)
    assert torch.equal(unpack(pack(mask), len(bits)), mask)
    for wrong in (len(bits) + 8, max(0, len(bits) - 8)):
        if -(-wrong // 8) != -(-len(bits) // 8):
            with pytest.raises(GradsiftError, match="a mask of"):
                unpack(pack(mask), wrong)


@given(st.binary())
def test_what_is_no_mask_is_refused(data: bytes) -> None:
    try:
        mask = unpack(data, 20)
    except GradsiftError:
        return
    assert mask.shape == (20,)


def test_checksums_tell_apart() -> None:
    weights = torch.tensor([0.0, 1.0])
    assert checksum(weights) == checksum(weights.clone())
    assert checksum(weights) != checksum(torch.tensor([-0.0, 1.0]))
    told = {upload_checksum(session, number, data) for session in "ab" for number in (1, 2) for data in (b"", b"x")}
    assert len(told) == 8
