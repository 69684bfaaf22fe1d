"""Which controller may drive which sparsifier: every pair of the two registries."""

from typing import Any

import pytest

import gradsift
from gradsift import GradsiftError, check_pair
from tests.sparsify.cases import ALL, DENSE, make

NEEDED: dict[str, dict[str, Any]] = {"fixed": {"k": 3}, "replay": {"sequence": [3, 3]}}
FIXED = {"fixed"}


@pytest.mark.parametrize("controller", gradsift.controllers())
@pytest.mark.parametrize("sparsifier", ALL)
def test_dense_sparsifiers_take_a_fixed_k_only(sparsifier: str, controller: str) -> None:
    pair = make(sparsifier), gradsift.controller(controller, **NEEDED.get(controller, {}))
    if sparsifier in DENSE and controller not in FIXED:
        with pytest.raises(GradsiftError, match=f"'{sparsifier}' is dense.*fixed k.*'{controller}' varies it"):
            check_pair(*pair)
    else:
        check_pair(*pair)


@pytest.mark.parametrize("sparsifier", ALL)
def test_dense_sparsifiers_take_no_k_that_rounding_would_vary(sparsifier: str) -> None:
    check_pair(make(sparsifier), gradsift.controller("fixed", k=3.0))
    between = gradsift.controller("fixed", k=2.5)
    if sparsifier in DENSE:
        with pytest.raises(GradsiftError, match=f"'{sparsifier}' is dense and accepts only an integer k, got 2.5"):
            check_pair(make(sparsifier), between)
    else:
        check_pair(make(sparsifier), between)


def test_the_table_names_every_controller_of_the_paper() -> None:
    assert {"fixed", "replay", "sign", "extended-sign", "value", "exp3", "continuous-bandit"} <= set(
        gradsift.controllers()
    )


@pytest.mark.parametrize("wrong", ["fab-top-k", None])
def test_what_is_neither_is_refused(wrong: Any) -> None:
    with pytest.raises(GradsiftError, match=f"sparsifier must be a Sparsifier, got {wrong!r}"):
        check_pair(wrong, gradsift.controller("fixed", k=3))
    with pytest.raises(GradsiftError, match=f"controller must be a Controller, got {wrong!r}"):
        check_pair(make("fab-top-k"), wrong)
