"""Models by name take their sizes from the data."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradsift import GradsiftError
from gradsift.data import FederatedData
from gradsift.models import model, models, paper_cnn, small_cnn, small_mlp


def data_of(shape: tuple[int, ...], classes: int | None = 7) -> FederatedData:
    y = torch.zeros(2) if classes is None else torch.zeros(2, dtype=torch.int64)
    return FederatedData(torch.zeros(2, *shape), y, np.array([2]), torch.zeros(0), y[:0], "some", num_classes=classes)


def same(left: nn.Module, right: nn.Module) -> bool:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and str(left) == str(right)


def test_names_reach_models_of_the_right_size() -> None:
    assert models() == ["mlp", "paper-cnn", "small-cnn"]
    images = data_of((3, 9, 12))
    assert same(model("paper-cnn", images, seed=4), paper_cnn(7, 3, (9, 12), seed=4))
    assert same(model("small-cnn", images, seed=4), small_cnn(7, 3, (9, 12), seed=4))
    assert same(model("mlp", images, seed=4), small_mlp(7, 3 * 9 * 12, seed=4))
    assert same(model("mlp", images), small_mlp(7, 3 * 9 * 12, seed=0))
    assert same(model("mlp", data_of(())), small_mlp(7, 1))


def test_options_reach_the_model_and_replace_sizes() -> None:
    images = data_of((1, 8, 8))
    assert same(model("paper-cnn", images, width=0.125), paper_cnn(7, 1, 8, width=0.125))
    assert same(model("mlp", images, hidden=5, classes=9), small_mlp(9, 64, hidden=5))
    assert same(model("mlp", data_of((4,), None), classes=1), small_mlp(1, 4))


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        (
            "paper_cnn",
            data_of((1, 8, 8)),
            {},
            "unknown model 'paper_cnn'; did you mean 'paper-cnn'? valid: mlp, paper-cnn",
        ),
        ("resnet", data_of((1, 8, 8)), {}, "unknown model 'resnet'; valid: mlp, paper-cnn, small-cnn"),
        (
            "paper-cnn",
            data_of((1, 8, 8)),
            {"widht": 2},
            "model 'paper-cnn' has no option 'widht'; did you mean 'width'?",
        ),
        ("mlp", data_of((1, 8, 8)), {"width": 2}, "model 'mlp' has no option 'width'"),
        ("small-cnn", data_of((64,)), {}, "model 'small-cnn' takes images [n, channels, H, W], x of 'some' is [n, 64]"),
        (
            "paper-cnn",
            data_of((8, 8)),
            {},
            "model 'paper-cnn' takes images [n, channels, H, W], x of 'some' is [n, 8, 8]",
        ),
        (
            "mlp",
            data_of((4,), None),
            {},
            "'some' has no class labels: set the model's option classes to its number of outputs",
        ),
        ("small-cnn", data_of((1, 2, 2)), {}, "image_size must be at least 4, got 2"),
    ],
)
def test_bad_input(name: str, data: FederatedData, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GradsiftError, match=re.escape(message)):
        model(name, data, **options)
