"""The precision of products that stand for convolutions, which no result on a CPU can show."""

from collections.abc import Iterator

import pytest
import torch

from gradsift.simulation.one_pass_conv import conv_precision

CONV, MATMUL = torch.backends.cudnn.conv, torch.backends.cuda.matmul  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    conv, matmul = CONV.fp32_precision, MATMUL.fp32_precision
    yield
    CONV.fp32_precision = conv
    MATMUL.fp32_precision = matmul


@pytest.mark.parametrize(("conv", "within"), [("tf32", "tf32"), ("ieee", "ieee")])
def test_products_that_stand_for_a_convolution_are_as_exact_as_one(conv: str, within: str) -> None:
    MATMUL.fp32_precision, CONV.fp32_precision = "ieee", conv
    with conv_precision():
        assert MATMUL.fp32_precision == within
        assert MATMUL.allow_tf32 == (within == "tf32"), "torch's two switches agree"
    assert MATMUL.fp32_precision == "ieee"
    assert not MATMUL.allow_tf32


def test_products_that_are_less_exact_anyway_stay_so() -> None:
    MATMUL.allow_tf32 = True
    with conv_precision():
        assert MATMUL.allow_tf32
    assert MATMUL.allow_tf32
    MATMUL.allow_tf32 = False
